"""Output error against the steps since the last compression, for several periods: what a cache that
is compressed anew now and then, from the full one, loses until the next time."""

import numpy as np
import xarray

from .. import load, style

TITLE = "output error against steps since the last compression, for several periods"


def pages(results, options):
    found = families(results)
    if not found or not results.has("output_error"):
        raise load.NotMeasured(f"{results.path}: no policy with schedule=periodic")
    budget = results.nearest_budget(options.budget)
    return [("periodic", lambda: draw(results, budget, found))]


def families(results):
    """[{period: record}]: records that differ in their period only; 0 is compressed once."""
    known = load.parameters(results)
    groups = []
    for records in load.alike(results, lambda key: key in ("schedule", "period")):
        members = {}
        for record in records:
            schedule = known[record].get("schedule")
            if schedule in ("periodic", "prefill"):
                period = int(known[record]["period"]) if schedule == "periodic" else 0
                members.setdefault(period, record)
        groups.append(members)
    return [members for members in groups if any(members)][:4]


def draw(results, budget, groups):
    periods = sorted({period for members in groups for period in members})
    error = results.variable("output_error", "policy", "budget", "layer", "step")
    error = error.sel(budget=budget)
    fig, axes = style.frame(
        f"Output error since the last compression at budget {results.budget_text(budget)}",
        f"{results.subtitle}\nmean over layers, compressions and neighbouring steps", 1, len(groups), 2.5,
        [style.key(f"every {period} steps" if period else "once, at the end of the prompt",
                   style.line_style(periods.index(period))) for period in periods],
        ("steps since the last compression", "output error (relative)"), sharey=True)
    since = error.step - int(results.data.attrs["prompt_len"])
    for ax, members in zip(axes[0], groups):
        for period, record in sorted(members.items()):
            at = 1 + (since % period if period else since).rename("since")
            line = error.sel(policy=record).groupby(at).mean(...).dropna("since")
            if line.size == 0:
                continue
            # Single steps are noisy: means of neighbours, of more of them further out.
            edges = np.unique(np.round(np.geomspace(1, at.max() + 1, 12)).astype(int))
            cells = xarray.Dataset({"error": line, "at": line.since}).groupby_bins(
                "since", edges, right=False).mean().dropna("since_bins")
            ax.plot(cells["at"], cells["error"], **style.line_style(periods.index(period)))
        ax.set_xscale("log")
        style.log_ticks(ax.xaxis)
        ax.set_title(style.wrapped(members[min(members)]))
    style.error_axis(axes[0, 0], error)
    return fig
