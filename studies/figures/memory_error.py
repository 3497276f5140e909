"""Memory at equal output error: fewer entries, fewer bits, or both."""

import numpy as np
import xarray

from .. import load, style

TITLE = "memory at equal output error, by entries kept and form of their numbers"
NEEDS = ("compression", "output_error_mean")
LACKING = "no selection at several numbers of bits"
WHOLE = "not quantised"


def find(results, options):
    """[{form: record}]: records that differ in their quantisation only."""
    if results.data["output_error_mean"].isnull().all():
        return []
    groups = [{form_of(keys): record for record, keys in records.items()}
              for records in load.alike(results, lambda key: key.startswith("quant"))]
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


def draw(results, options, groups):
    every = sorted({form for members in groups for form in members}, key=lambda form: (form != WHOLE, form))
    looks = {form: style.line_style(k) for k, form in enumerate(every)}
    error = results.variable("output_error_mean", "policy", "budget", "layer").mean("layer")
    # A full cache that is not quantised has none: nothing to draw on a log axis.
    points = xarray.Dataset({"error": error.where(error > 0)})
    points["memory"] = 1 / results.variable("compression", "policy", "budget")
    fig, axes = style.frame(
        "Memory at equal output error", f"{results.subtitle}\nabove: each marker is a budget; "
        "below: memory that reaches an error, interpolated along the lines above", 2, len(groups),
        2.1, [style.key(*one) for one in looks.items()], sharex="row", sharey="row")
    for (above, below), members in zip(axes.T, groups):
        for form, record in members.items():
            own = points.sel(policy=record).sortby("memory")
            above.plot(own.memory, own.error, **looks[form])
            memory, error = own.dropna("budget")[["memory", "error"]].to_array().values
            best = np.flatnonzero(np.diff(np.minimum.accumulate(error), prepend=np.inf) < 0)
            if best.size > 1:
                below.plot(*reached(memory[best], error[best]), **looks[form])
        above.set(title=style.wrapped(members.get(WHOLE, next(iter(members.values())))),
                  xlabel="memory (fraction of the full cache)")
        below.set_xlabel("output error that is reached (relative)")
    for ax in axes.flat:
        ax.set(xscale="log", yscale="log")
        for axis in (ax.xaxis, ax.yaxis):
            style.log_ticks(axis, every=(1, 2, 5))
    axes[0, 0].set_ylabel("output error (relative)")
    axes[1, 0].set_ylabel("memory (fraction of the full cache)")
    return fig


def reached(memory, error):
    """Errors, and the memory with which each is reached between points that fall."""
    wanted = np.geomspace(error.min(), error.max(), 9)
    return wanted, np.exp(np.interp(np.log(wanted), np.log(error[::-1]), np.log(memory[::-1])))
