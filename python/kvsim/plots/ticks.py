"""Places of ticks."""

import math

import matplotlib


class PowersOfTen(matplotlib.ticker.LogLocator):
    """Powers of ten, at most `numticks`; 2 and 5 times them on an axis of half as many decades."""

    def tick_values(self, vmin, vmax):
        few = vmax < vmin * 10 ** (self.numticks / 2)
        self.set_params(subs=(1, 2, 5) if few else (1,))
        return super().tick_values(vmin, vmax)


def log_ticks(axis, most=4, every=None):
    """A few ticks at powers of ten, or at `every` multiple of them, written as typed: the text is never
    parsed as maths."""
    axis.set_major_locator(PowersOfTen(numticks=most) if every is None else
                           matplotlib.ticker.LogLocator(subs=every))
    axis.set_major_formatter(matplotlib.ticker.FuncFormatter(lambda value, _: f"{value:g}"))
    axis.set_minor_locator(matplotlib.ticker.NullLocator())


def legible(places, most=5):
    """Which of the ascending places get a tick: a few, none so close to the last that both touch."""
    kept = [0]
    for at in range(0, places.size, math.ceil(places.size / most)):
        if places[at] - places[kept[-1]] > (places[-1] - places[0]) / 8:
            kept.append(at)
    return kept
