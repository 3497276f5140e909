"""Dots and ticks of figures whose axis counts layers."""

import matplotlib

from .. import style

DOTS = {"color": "0.55", "linestyle": "", "marker": ".", "markersize": 2.5}   # one of many


def layer_ticks(axis, results):
    """Numbers of layers on an axis that counts them."""
    every = max(1, len(results.layers) // 8)
    axis.set_ticks(range(0, len(results.layers), every), results.layers[::every])


def layer_axis(ax, results):
    """Whole numbers as ticks, also where the file has few layers."""
    ax.xaxis.set_major_locator(matplotlib.ticker.MaxNLocator(8, integer=True))
    if len(results.layers) == 1:
        ax.set_xlim(results.layers[0] - 1, results.layers[0] + 1)


def dots_by_layer(ax, results, values, look):
    """`values` [layer, head]: a dot for every head, a line of `look` for their mean."""
    ax.plot(values.layer, values, **DOTS)
    ax.plot(values.layer, values.mean(values.dims[1]), **look)
    ax.axhline(0, **style.DOTTED)
    layer_axis(ax, results)
    if values.isnull().all():
        style.note_undefined(ax)
