"""Stream error against the bytes that are held, in every form that a cache may have."""

import xarray

from .. import axes as places, measures, style
from .stream_error import LABEL

TITLE = "stream error by bytes held, flattened, padded, in pages, and the peak while decoding"
FORMS = {"bytes_flattened": "heads flattened", "bytes_padded": "heads padded to the largest",
         "bytes_paged": "pages of 16 slots of a head",
         "bytes_in_place": "pages of 16 positions, nothing moves",
         "bytes_peak": "flattened, peak while decoding"}
NEEDS = ("stream_error_rms", *FORMS)
LACKING = "no stream error, or no bytes held"
MEASURE = "stream_error_rms"
MEBIBYTE = 2 ** 20


def draw(results, options):
    error = results.variable("stream_error_rms", "policy", "budget")
    chosen = results.data.attrs.get("equal_bytes")
    told = f"\nbudgets are shares of the full cache's bytes ({chosen})" if chosen else ""
    looks = style.line_looks(results, results.policies)
    fig, axes = style.panels(
        "Stream error by bytes held",
        f"{results.subtitle}{measures.layers_note([results])}{told}\n"
        "Each marker is a budget. Lower and further left is better.", len(FORMS), 3, 2.2,
        style.policy_keys(results, results.policies), ("bytes held (MiB)", LABEL), sharex=True, sharey=True)
    for ax, (variable, title) in zip(axes, FORMS.items()):
        held = results.variable(variable, "policy", "budget") / MEBIBYTE
        points = xarray.Dataset({"held": held, "error": error.where(error > 0)})
        for policy, look in looks.items():
            own = points.sel(policy=policy).dropna("budget").sortby("held")
            marker = "" if look is style.OTHERS else look["marker"] or "o"
            ax.plot(own.held, own.error, **{**look, "marker": marker})
        ax.set(xscale="log", yscale="log", title=title)
        places.mark(ax, "y", MEASURE)
        places.mark(ax, "x", "bytes")
        for axis in (ax.xaxis, ax.yaxis):
            style.log_ticks(axis, every=(1, 2, 5))
    return fig
