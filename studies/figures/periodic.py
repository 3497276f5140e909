"""Output error against the steps since the last compression, for several periods: what a cache that
is compressed anew now and then, from the full one, loses until the next time."""

import numpy as np
import xarray

from .. import load, style

TITLE = "output error against steps since the last compression, for several periods"
NEEDS = ("output_error",)
LACKING = "no policy with schedule=periodic"


def find(results, options):
    """[{period: record}]: records that differ in their period only; 0 is compressed once."""
    groups = []
    for records in load.alike(results, lambda key: key in ("schedule", "period")):
        members = {}
        for record, keys in records.items():
            if keys.get("schedule") in ("periodic", "prefill"):
                members.setdefault(int(keys["period"]) if keys["schedule"] == "periodic" else 0, record)
        groups.append(dict(sorted(members.items())))
    return [members for members in groups if any(members)][:4]


def draw(results, options, groups):
    budget = results.nearest_budget(options.budget)
    looks = {period: style.line_style(k) for k, period in enumerate(sorted(set().union(*groups)))}
    error = results.variable("output_error", "policy", "budget", "layer", "step")
    error = error.sel(budget=budget)
    fig, axes = style.frame(
        f"Output error since the last compression at budget {results.budget_text(budget)}",
        f"{results.subtitle}\nmean over layers, compressions and neighbouring steps", 1, len(groups), 2.5,
        [style.key(f"every {period} steps" if period else "once, at the end of the prompt", look)
         for period, look in looks.items()],
        ("steps since the last compression", "output error (relative)"), sharey=True)
    since = error.step - int(results.data.attrs["prompt_len"])
    for ax, members in zip(axes[0], groups):
        for period, record in members.items():
            at = 1 + (since % period if period else since).rename("since")
            line = error.sel(policy=record).groupby(at).mean(...).dropna("since")
            if line.size == 0:
                continue
            # Single steps are noisy: means of neighbours, of more of them further out.
            edges = np.unique(np.round(np.geomspace(1, at.max() + 1, 12)).astype(int))
            cells = xarray.Dataset({"error": line, "at": line.since}).groupby_bins(
                "since", edges, right=False).mean().dropna("since_bins")
            ax.plot(cells["at"], cells["error"], **looks[period])
        ax.set_xscale("log")
        style.log_ticks(ax.xaxis)
        ax.set_title(style.wrapped(next(iter(members.values()))))
    style.error_axis(axes[0, 0], error)
    return fig
