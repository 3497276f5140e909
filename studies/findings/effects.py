"""Verdicts on ratios, one for each trace."""

import numpy as np
from kvsim.plots.statistics import over_traces

# No effect is smaller than this, whatever its interval: a ratio within 1/1.05 to 1.05.
SMALLEST_EFFECT = 0.05


def effect(logs):
    """Verdict of a ratio's logarithms, one per trace: -1 less than 1, 1 more, 0 level, None
    undecided. More or less needs an interval without 1 and a mean beyond SMALLEST_EFFECT; level an
    interval within it.
    """
    mean, (low, high) = over_traces(logs)
    least = np.log1p(SMALLEST_EFFECT)
    if abs(mean) >= least and (low > 0 or high < 0):
        return int(np.sign(mean))
    return 0 if -least <= low and high <= least else None
