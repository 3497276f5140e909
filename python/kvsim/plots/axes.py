"""Axes: their ticks, the scales of budgets, layers and errors, and one axis for a measure in all figures of
a call, however many files they are of."""

import math

import matplotlib
import numpy as np

LOG = "log scale"
BUDGET = "budget (fraction of the prompt kept)"


class PowersOfTen(matplotlib.ticker.LogLocator):
    """Powers of ten, at most `numticks`; 2 and 5 times them on an axis of half as many decades."""

    def tick_values(self, vmin, vmax):
        few = vmax < vmin * 10 ** (self.numticks / 2)
        self.set_params(subs=(1, 2, 5) if few else (1,))
        return super().tick_values(vmin, vmax)


def log_ticks(axis, most=4, every=None):
    """A few ticks at powers of ten, or at `every` multiple of them, written as typed: the text is never
    parsed as maths."""
    axis.set_major_locator(PowersOfTen(numticks=most) if every is None else matplotlib.ticker.LogLocator(subs=every))
    axis.set_major_formatter(matplotlib.ticker.FuncFormatter(lambda value, _: f"{value:g}"))
    axis.set_minor_locator(matplotlib.ticker.NullLocator())


def legible(places, most=5):
    """Which of the ascending places get a tick: a few, none so close to the last that both touch."""
    kept = [0]
    for at in range(0, places.size, math.ceil(places.size / most)):
        if places[at] - places[kept[-1]] > (places[-1] - places[0]) / 8:
            kept.append(at)
    return kept


def slanted_ticks(ax, places, texts, slanted, **look):
    """Texts below the x axis, slanted where they have no room beside each other."""
    ax.set_xticks(places, texts, rotation=40 if slanted else 0, ha="right" if slanted else "center",
                  rotation_mode="anchor", **look)


def budget_label(results):
    if results.budgets_are_counts:
        return "budget (tokens kept per KV head)"
    return BUDGET


def budget_axis(ax, results):
    """Scale and ticks for budgets: logarithmic, as halving a budget is the same step everywhere."""
    budgets, labels = results.budgets, results.budget_labels()
    ticks, first = np.unique(budgets, return_index=True)
    if ticks[0] > 0:
        ax.set_xscale("log")
        ax.minorticks_off()
    counts = results.budgets_are_counts
    shown = first[legible(ticks if ax.get_xscale() == "linear" else np.log(ticks))]
    ax.set_xticks(budgets[shown], [labels[i] if counts else f"{budgets[i]:.3g}" for i in shown])


def error_axis(ax, values, axis="y", measure=None):
    """Errors and losses have a logarithmic axis in every figure, whatever the numbers: half an error
    is the same step everywhere. An error of 0 has no place on it. Linear where all are 0. `measure`:
    the variable, whose axis is the same in all figures of a call (one_scale)."""
    if measure:
        mark(ax, axis, measure)
    if (values > 0).any():
        ax.set(**{f"{axis}scale": "log"})
        log_ticks(getattr(ax, f"{axis}axis"), 6 if axis == "y" else 4)


def say_log(fig):
    """Adds ", log scale" to the label of every logarithmic axis: its own, or that of all panels."""
    for ax in fig.axes:
        for name, axis in (("x", ax.xaxis), ("y", ax.yaxis)):
            row = getattr(ax, f"get_shared_{name}_axes")().get_siblings(ax)
            labels = [axis.label, getattr(ax.figure, f"_sup{name}label", None),
                      *(getattr(one, f"{name}axis").label for one in row)]
            place = ax.get_subplotspec()   # a bar of colours has none
            label = next((one for one in labels if one and one.get_text()),
                         axis.label if name == "y" or place is None or place.is_last_row() else None)
            if axis.get_scale() == "log" and label and LOG not in label.get_text():
                label.set_text(f"{label.get_text()}, {LOG}".lstrip(", "))


def mark(ax, axis, measure):
    """Says which variable an axis ("x" or "y") shows; others are known by their labels."""
    ax.kvsim_measures = {**getattr(ax, "kvsim_measures", {}), axis: measure}


def one_scale(figures):
    """Equal limits for all axes of a measure in (name, figure) pairs: of one that is marked, else of what stands along
    y, by its label and title. Rows, which count downwards, and pictures keep their own."""
    together = {}
    for name, fig in figures:
        for ax in fig.axes:
            if ax.get_subplotspec() is None or ax.images:
                continue
            for axis in "xy":
                low, high = getattr(ax, f"get_{axis}lim")()
                measure = getattr(ax, "kvsim_measures", {}).get(axis)
                if not measure and axis == "y":
                    shared = ax.get_shared_y_axes().get_siblings(ax)
                    label = next(filter(None, (one.get_ylabel() for one in shared)),
                                 getattr(getattr(ax.figure, "_supylabel", None), "get_text", str)())
                    title = ax.get_title() if len(shared) == 1 else ""
                    measure = (name, label, title) if label or title else None
                if measure and low <= high:
                    scale = getattr(ax, f"get_{axis}scale")()
                    together.setdefault((measure, scale), []).append((ax, axis, low, high))
    for places in together.values():
        low, high = min(one[2] for one in places), max(one[3] for one in places)
        for ax, axis, *own in places:
            if own != [low, high] and np.isfinite([low, high]).all():
                getattr(ax, f"set_{axis}lim")(low, high)
