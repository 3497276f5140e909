"""Statistics over results (docs/results.md has the variables): bootstrap, ranks, Pareto fronts.

Random draws are the hash u(seed, a, b, c) of the whole program, so that the same results give the
same intervals everywhere.
"""

import numpy as np

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


def resampled_traces(count):
    """[RESAMPLES, count] numbers of traces, drawn with replacement."""
    return (_draws(count) * count).astype(np.int64)


def resampled_steps(count):
    """[RESAMPLES, count] numbers of steps: moving blocks of 16 steps, cut to `count`."""
    block = min(BLOCK, count)
    starts = (_draws(-(-count // block)) * (count - block + 1)).astype(np.int64)
    return (starts[..., None] + np.arange(block)).reshape(RESAMPLES, -1)[:, :count]


def interval(values):
    """95 % interval of resampled values along the last axis: (2.5th, 97.5th percentile)."""
    return np.percentile(values, [2.5, 97.5], axis=-1)


def over_traces(values):
    """Mean over the last axis, which is traces, with its 95 % interval; NaN from two on only."""
    values = np.asarray(values, np.float64)
    resampled = values[..., resampled_traces(values.shape[-1])].mean(axis=-1)
    return values.mean(axis=-1), interval(resampled)


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
