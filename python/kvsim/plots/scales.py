"""One axis for a measure in all figures of a call, however many files they are of."""

import numpy as np


def mark(ax, axis, measure):
    """Says which variable an axis ("x" or "y") shows; others are known by their labels."""
    ax.kvsim_measures = {**getattr(ax, "kvsim_measures", {}), axis: measure}


def measure_of(ax, axis, figure):
    """Name of what an axis shows, the same where it is the same; None where nothing is measured."""
    marked = getattr(ax, "kvsim_measures", {}).get(axis)
    if marked or axis == "x":
        return marked
    together = ax.get_shared_y_axes().get_siblings(ax)
    label = next(filter(None, (one.get_ylabel() for one in together)),
                 getattr(getattr(ax.figure, "_supylabel", None), "get_text", str)())
    title = ax.get_title() if len(together) == 1 else ""
    return (figure, label, title) if label or title else None


def one_scale(figures):
    """Equal limits for all axes of a measure in (name, figure) pairs. Rows, which count downwards, and
    pictures keep their own."""
    together = {}
    for name, fig in figures:
        for ax in fig.axes:
            if ax.get_subplotspec() is None or ax.images:
                continue
            for axis in "xy":
                low, high = getattr(ax, f"get_{axis}lim")()
                measure = measure_of(ax, axis, name)
                if measure and low <= high:
                    scale = getattr(ax, f"get_{axis}scale")()
                    together.setdefault((measure, scale), []).append((ax, axis, low, high))
    for places in together.values():
        low, high = min(one[2] for one in places), max(one[3] for one in places)
        for ax, axis, *own in places:
            if own != [low, high] and np.isfinite([low, high]).all():
                getattr(ax, f"set_{axis}lim")(low, high)
