"""Statistics over results (docs/results.md has the variables): intervals and ranks.

Over traces, of which there are few, intervals are Student's: resampling 4, 6 or 8 traces covers
80 to 88 % where 95 are meant. They lie on scales that keep them where the numbers can be
(docs/metrics.md 6). Over the steps of one trace they come from the program (kvsim.ranking)."""

import numpy as np

LEVEL = 0.95     # of every interval
LEAST = 1e-12    # of a logarithm: nothing is lost


def over_traces(values, scale="plain"):
    """Mean over the last axis, which is traces, with its 95 % interval, Student's t; the interval of a single trace is
    NaN. `scale`: "log" for positive numbers (geometric mean), "share" for what is in [0, 1], "count", else "plain"."""
    values = np.asarray(values, np.float64)
    if scale == "log":
        mean, ends = over_traces(np.log(np.maximum(values, LEAST)))
        nothing = (values <= 0).all(axis=-1)
        return np.where(nothing, 0, np.exp(mean)), np.where(nothing, 0, np.exp(ends))
    count = values.shape[-1]
    mean = values.mean(axis=-1)
    if count < 2:
        return mean, np.stack([np.full_like(mean, np.nan)] * 2)
    half = student(count - 1, (1 + LEVEL) / 2) * values.std(axis=-1, ddof=1) / np.sqrt(count)
    return mean, about(mean, half, scale)


def about(mean, half, scale):
    """(low, high): half the width of an interval about a mean, on a scale of its own."""
    if scale == "plain":
        return np.stack([mean - half, mean + half])
    if scale == "count":
        root = np.sqrt(np.maximum(mean, LEAST))
        return np.stack([np.maximum(root - half / (2 * root), 0) ** 2, (root + half / (2 * root)) ** 2])
    # Of the arcsine of the square root, with its slope; where nothing varies the mean stays.
    slope = 0.5 / np.sqrt(np.maximum(mean * (1 - mean), LEAST))
    angle = np.arcsin(np.sqrt(np.clip(mean, 0, 1)))
    ends = np.stack([angle - half * slope, angle + half * slope])
    return np.where(half == 0, mean, np.sin(np.clip(ends, 0, np.pi / 2)) ** 2)


def student(freedom, share):
    """Quantile of Student's distribution."""
    from scipy import special   # takes longer to load than most figures to draw

    return special.stdtrit(freedom, share)


def chance(values):
    """How likely a mean as far from 0 is where the true one is 0, two-sided (Student's t)."""
    from scipy import stats

    values = np.asarray(values, np.float64)
    if values.size > 1 and np.ptp(values) == 0:
        return float(values[0] == 0)
    return float(stats.ttest_1samp(values, 0).pvalue) if values.size > 1 else np.nan


def wilson(mean, count):
    """95 % interval of a share of `count` answers, or of a mean in [0, 1] that varies as such a share."""
    z = student(np.inf, (1 + LEVEL) / 2)
    centre = mean + z * z / (2 * count)
    half = z * np.sqrt(mean * (1 - mean) / count + z * z / (4 * count * count))
    return (max(0.0, (centre - half) / (1 + z * z / count)), min(1.0, (centre + half) / (1 + z * z / count)))


def holm(chances, level=1 - LEVEL):
    """Which of many comparisons differ so clearly that none of them is expected to do so by chance
    (Holm's correction: family-wise error at most `level`)."""
    chances = np.asarray(chances, np.float64)
    order = np.argsort(chances)
    passed = chances[order] <= level / np.arange(chances.size, 0, -1)
    found = np.zeros(chances.size, bool)
    found[order] = np.logical_and.accumulate(passed)
    return found


def spearman(x, y):
    """Spearman's rank correlation of the pairs that are defined; NaN for fewer than two of them, or
    where all of one side are equal."""
    defined = ~(np.isnan(x) | np.isnan(y))
    x, y = np.asarray(x)[defined], np.asarray(y)[defined]
    if x.size < 2 or np.ptp(x) == 0 or np.ptp(y) == 0:
        return np.nan
    from scipy import stats   # takes longer to load than most figures to draw

    return float(stats.spearmanr(x, y).statistic)
