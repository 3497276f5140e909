"""Statistics over results (docs/results.md has the variables): intervals, ranks, Pareto fronts.

Over traces, of which there are few, intervals are Student's: resampling 4, 6 or 8 traces covers
80 to 88 % where 95 are meant (study/coverage.py). Over the steps of one trace blocks are resampled,
by the hash u(seed, a, b, c) of the whole program, so that the same results give the same intervals
everywhere.
"""

import numpy as np

LEVEL = 0.95     # of every interval
# What is smaller is no effect, whatever its interval: a ratio within 1/1.05 to 1.05.
SMALLEST_EFFECT = 0.05
RESAMPLES = 1000
BLOCK = 16       # steps of a block, when there is one trace only
SEED = 0


def uniform(seed, a, b, c):
    """u(seed, a, b, c) in [0, 1): four rounds of SplitMix64, one per argument; arrays broadcast."""
    with np.errstate(over="ignore"):
        x = _splitmix(np.asarray(seed, np.uint64))
        for part in (a, b, c):
            x = _splitmix(x + np.asarray(part, np.uint64))
    return (x >> np.uint64(11)).astype(np.float64) * 2.0 ** -53


def _splitmix(y):
    z = y + np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


def _draws(count):
    a, b = np.ogrid[:RESAMPLES, :count]
    return uniform(SEED, a, b, 1)


def resampled_steps(count):
    """[RESAMPLES, count] numbers of steps: moving blocks of 16 steps, cut to `count`."""
    block = min(BLOCK, count)
    starts = (_draws(-(-count // block)) * (count - block + 1)).astype(np.int64)
    return (starts[..., None] + np.arange(block)).reshape(RESAMPLES, -1)[:, :count]


def interval(values):
    """95 % interval of resampled steps along the last axis: (2.5th, 97.5th percentile)."""
    return np.percentile(values, [2.5, 97.5], axis=-1)


def over_traces(values):
    """Mean over the last axis, which is traces, with its 95 % interval, Student's t; the interval of
    a single trace is NaN. What is multiplied (losses, ratios) is to be given as logarithms.
    """
    values = np.asarray(values, np.float64)
    count = values.shape[-1]
    mean = values.mean(axis=-1)
    if count < 2:
        return mean, np.stack([np.full_like(mean, np.nan)] * 2)
    half = student(count - 1, (1 + LEVEL) / 2) * values.std(axis=-1, ddof=1) / np.sqrt(count)
    return mean, np.stack([mean - half, mean + half])


def student(freedom, share):
    """Quantile of Student's distribution."""
    from scipy import special   # takes longer to load than most figures to draw

    return special.stdtrit(freedom, share)


def chance(values):
    """How likely a mean as far from 0 is where the true one is 0, two-sided (Student's t)."""
    from scipy import special

    values = np.asarray(values, np.float64)
    spread = values.std(ddof=1) if values.size > 1 else np.nan
    if not spread > 0:
        return float(spread == 0 and values[0] == 0) if values.size > 1 else np.nan
    t = abs(values.mean()) / (spread / np.sqrt(values.size))
    return float(2 * special.stdtr(values.size - 1, -t))


def holm(chances, level=1 - LEVEL):
    """Which of many comparisons differ so clearly that none of them is expected to do so by chance
    (Holm's correction: family-wise error at most `level`)."""
    chances = np.asarray(chances, np.float64)
    order = np.argsort(chances)
    passed = chances[order] <= level / np.arange(chances.size, 0, -1)
    found = np.zeros(chances.size, bool)
    found[order] = np.logical_and.accumulate(passed)
    return found


def effect(logs):
    """What the logarithms of a ratio, one per trace, say: -1 less than 1, 1 more, 0 level, None
    undecided. More or less needs an interval without 1 and a mean beyond SMALLEST_EFFECT; level an
    interval within it.
    """
    mean, (low, high) = over_traces(logs)
    least = np.log1p(SMALLEST_EFFECT)
    if abs(mean) >= least and (low > 0 or high < 0):
        return int(np.sign(mean))
    return 0 if -least <= low and high <= least else None


def spearman(x, y):
    """Spearman's rank correlation of the pairs that are defined; NaN for fewer than two of them, or
    where all of one side are equal.
    """
    defined = ~(np.isnan(x) | np.isnan(y))
    x, y = np.asarray(x)[defined], np.asarray(y)[defined]
    if x.size < 2 or np.ptp(x) == 0 or np.ptp(y) == 0:
        return np.nan
    from scipy import stats   # takes longer to load than most figures to draw

    return float(stats.spearmanr(x, y).statistic)


def pareto(points):
    """Which rows of (loss, loss) have no other row that is nowhere worse and somewhere better."""
    points = np.asarray(points, np.float64)
    below = (points[None] <= points[:, None]).all(axis=2)
    better = (points[None] < points[:, None]).any(axis=2)
    return ~(below & better).any(axis=1) & ~np.isnan(points).any(axis=1)
