"""Memory at equal output error: fewer entries, fewer bits, or both."""

import numpy as np
import xarray
from matplotlib.ticker import LogLocator

from .. import load, style

TITLE = "memory at equal output error, by entries kept and bits per number"
FULL_BITS = 0   # stands for entries that are not quantised


def pages(results, options):
    found = families(results)
    if not found or not results.has("compression", "output_error_mean") or \
            results.data["output_error_mean"].isnull().all():
        raise load.NotMeasured(f"{results.path}: no selection at several numbers of bits")
    return [("memory_error", lambda: draw(results, found))]


def families(results):
    """[{bits: record}]: records that differ in their quantisation only."""
    known = load.parameters(results)
    groups = []
    for records in load.alike(results, lambda key: key.startswith("quant")):
        members = {}
        for record in records:
            members.setdefault(bits_of(known[record]), record)
        groups.append(members)
    return [members for members in groups if len(members) > 1][:3]


def bits_of(keys):
    return FULL_BITS if keys.get("quantize", "none") == "none" else int(keys["quant_bits"])


def draw(results, groups):
    every = sorted({bits for members in groups for bits in members}, reverse=True)
    error = results.variable("output_error_mean", "policy", "budget", "layer").mean("layer")
    # A full cache that is not quantised has none: nothing to draw on a log axis.
    points = xarray.Dataset({"error": error.where(error > 0)})
    points["memory"] = 1 / results.variable("compression", "policy", "budget")
    fig, axes = style.frame(
        "Memory at equal output error", f"{results.subtitle}\nabove: each marker is a budget; "
        "below: memory that reaches an error, interpolated along the lines above", 2, len(groups),
        2.1, [style.key(name(bits), style.line_style(every.index(bits))) for bits in every],
        ("", ""), sharex="row", sharey="row")
    for column, members in zip(axes.T, groups):
        for bits, record in members.items():
            own = points.sel(policy=record).sortby("memory")
            look = style.line_style(every.index(bits))
            column[0].plot(own.memory, own.error, **look)
            reached(column[1], own.memory.values, own.error.values, look)
        column[0].set(xscale="log", yscale="log", title=style.wrapped(members[min(members)]),
                      xlabel="memory (fraction of the full cache)")
        column[1].set(xscale="log", yscale="log", xlabel="output error that is reached (relative)")
    for axis in (axis for ax in axes.flat for axis in (ax.xaxis, ax.yaxis)):
        style.log_ticks(axis)
        axis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes[0, 0].set_ylabel("output error (relative)")
    axes[1, 0].set_ylabel("memory (fraction of the full cache)")
    return fig


def name(bits):
    return f"{bits} bits" if bits else "not quantised"


def reached(ax, memory, error, look):
    """The least memory whose error is at most that of the axis."""
    memory, error = memory[np.isfinite(error)], error[np.isfinite(error)]
    if not error.size:
        return
    best = np.minimum.accumulate(error)
    keep = np.concatenate([[True], np.diff(best) < 0])
    if keep.sum() < 2:
        return
    wanted = np.geomspace(best[keep].min(), best[keep].max(), 9)
    logs = np.interp(np.log(wanted), np.log(best[keep][::-1]), np.log(memory[keep][::-1]))
    ax.plot(wanted, np.exp(logs), **look)
