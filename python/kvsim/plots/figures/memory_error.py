"""Memory at equal output error: fewer entries, fewer bits, or both."""

import numpy as np
import xarray

from .. import load, style

TITLE = "memory at equal output error, by entries kept and form of their numbers"
WHOLE = "not quantised"


def pages(results, options):
    found = families(results)
    if not found or not results.has("compression", "output_error_mean") or \
            results.data["output_error_mean"].isnull().all():
        raise load.NotMeasured(f"{results.path}: no selection at several numbers of bits")
    return [("memory_error", lambda: draw(results, found))]


def families(results):
    """[{form: record}]: records that differ in their quantisation only."""
    known = load.parameters(results)
    groups = []
    for records in load.alike(results, lambda key: key.startswith("quant")):
        members = {}
        for record in records:
            members[form_of(known[record])] = record
        groups.append(members)
    return [members for members in groups if len(members) > 1][:3]


def form_of(keys):
    """Words of a record on quantising, without those that all kinds take."""
    kind = keys.get("quantize", "none")
    if kind == "none":
        return WHOLE
    if kind != "formats":
        return f"{kind}, {keys['quant_bits']} bits"
    forms = "/".join(keys[key] for key in ("quant_keys", "quant_values"))
    turned = keys["quant_keys_turn"]
    return forms if turned == "none" else f"{forms}, {turned}"


def draw(results, groups):
    every = sorted({form for members in groups for form in members}, key=lambda form: (form != WHOLE, form))
    error = results.variable("output_error_mean", "policy", "budget", "layer").mean("layer")
    # A full cache that is not quantised has none: nothing to draw on a log axis.
    points = xarray.Dataset({"error": error.where(error > 0)})
    points["memory"] = 1 / results.variable("compression", "policy", "budget")
    fig, axes = style.frame(
        "Memory at equal output error", f"{results.subtitle}\nabove: each marker is a budget; "
        "below: memory that reaches an error, interpolated along the lines above", 2, len(groups),
        2.1, [style.key(form, style.line_style(every.index(form))) for form in every],
        ("", ""), sharex="row", sharey="row")
    for column, members in zip(axes.T, groups):
        for form, record in members.items():
            own = points.sel(policy=record).sortby("memory")
            look = style.line_style(every.index(form))
            column[0].plot(own.memory, own.error, **look)
            reached(column[1], own.memory.values, own.error.values, look)
        column[0].set(xscale="log", yscale="log", title=style.wrapped(members.get(WHOLE, next(iter(members.values())))),
                      xlabel="memory (fraction of the full cache)")
        column[1].set(xscale="log", yscale="log", xlabel="output error that is reached (relative)")
    for axis in (axis for ax in axes.flat for axis in (ax.xaxis, ax.yaxis)):
        style.log_ticks(axis, every=(1, 2, 5))
    axes[0, 0].set_ylabel("output error (relative)")
    axes[1, 0].set_ylabel("memory (fraction of the full cache)")
    return fig


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
