"""Do intervals over few texts hold what they say? studies/make.sh coverage

Simulates texts whose true mean is known and counts how often the 95 % interval of the mean holds
it: Student's t (statistics.over_traces), and the percentile bootstrap beside it.
"""

import numpy as np

from kvsim.plots import statistics

COUNTS = (4, 6, 8)
RUNS = 4000
RESAMPLES = 1000

# Logarithms of a ratio by text -> (draws [runs, texts], their true mean).
KINDS = {
    "normal (ratios are log-normal)": (lambda g, size: g.normal(size=size), 0.0),
    "skewed: logarithm of an exponential": (
        lambda g, size: np.log(g.exponential(size=size)), -np.euler_gamma),
    "skewed: gamma of shape 2": (lambda g, size: g.gamma(2, size=size), 2.0),
    "one text in ten far off on one side": (
        lambda g, size: g.normal(size=size) + 3 * (g.random(size) < 0.1), 0.3),
    "one text in ten five times as scattered": (
        lambda g, size: g.normal(size=size) * np.where(g.random(size) < 0.1, 5, 1), 0.0),
    "two kinds of text": (
        lambda g, size: 0.3 * g.normal(size=size) + (g.random(size) < 0.5), 0.5),
}


def resampled(values, generator):
    """Percentile bootstrap of the mean of each row: (low, high)."""
    count = values.shape[-1]
    weights = generator.multinomial(count, [1 / count] * count, size=RESAMPLES) / count
    return np.percentile(values @ weights.T, [2.5, 97.5], axis=-1)


def covered(kind, count, interval, runs=RUNS):
    """Share of the runs whose interval holds the true mean."""
    generator = np.random.default_rng(count)
    draw, mean = KINDS[kind]
    values = draw(generator, (runs, count))
    low, high = interval(values, generator)
    return float(((low <= mean) & (mean <= high)).mean())


INTERVALS = {
    "t": lambda values, _: statistics.over_traces(values)[1],
    "percentile bootstrap": resampled,
}


def table():
    """Header and rows: coverage in percent by kind of data, a column per interval and count."""
    header = ["logarithms over texts", *(f"{name}, {count} texts" for name in INTERVALS
                                         for count in COUNTS)]
    return header, [[kind, *(f"{100 * covered(kind, count, one):.0f} %"
                             for one in INTERVALS.values() for count in COUNTS)]
                    for kind in KINDS]


if __name__ == "__main__":
    for row in (lambda made: [made[0], *made[1]])(table()):
        print("| " + " | ".join(row) + " |")
