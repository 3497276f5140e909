"""Intervals over the steps of one trace beside the package arch, which has the same methods."""

import sys
import unittest
from pathlib import Path

import numpy as np
from arch.bootstrap import CircularBlockBootstrap, optimal_block_length

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "python"))
from kvsim import ranking  # noqa: E402
from kvsim.errors import DataError  # noqa: E402

SEED = 11


def autocorrelated(rng, steps, rho, shape):
    """[series, step]: processes of first order, log-normal."""
    noise = rng.normal(size=(shape, steps + 100))
    for t in range(1, steps + 100):
        noise[:, t] = rho * noise[:, t - 1] + np.sqrt(1 - rho ** 2) * noise[:, t]
    return np.exp(0.5 * noise[:, 100:])


def judged(series, scale="plain"):
    """The rows of one contest over steps."""
    return ranking.rank([ranking.contest(series, units="steps", scale=scale)])[0]["rows"]


class RankingTest(unittest.TestCase):
    def setUp(self):
        self.rng = np.random.default_rng(SEED)

    def test_blocks_are_as_long_as_those_of_arch(self):
        for steps in (64, 208, 500):
            for rho in (0.0, 0.3, 0.6, 0.8):
                series = autocorrelated(self.rng, steps, rho, 10)
                wanted = [max(1, np.ceil(optimal_block_length(one)["circular"].iloc[0] - 1e-9))
                          for one in series]
                self.assertEqual([row["block"] for row in judged(series)], wanted, (steps, rho))

    def test_errors_of_means_are_those_of_many_resamples(self):
        from scipy import stats

        for one in autocorrelated(self.rng, 208, 0.6, 5):
            row, = judged([one])
            means = CircularBlockBootstrap(row["block"], one, seed=SEED).apply(np.mean, 4000)
            half = (row["estimate"]["high"] - row["estimate"]["low"]) / 2
            error = half / stats.t.ppf(0.975, one.size / row["block"] - 1)
            self.assertAlmostEqual(error / means.std(), 1, delta=0.06)
            self.assertAlmostEqual(row["estimate"]["value"], one.mean())

    def test_who_holds_more_or_sees_what_comes_is_never_the_best(self):
        steps = np.ones((4, 50)) * [[1.0], [2.0], [3.0], [4.0]]
        answer, = ranking.rank([ranking.contest(
            steps, units="steps", scale="log", held=[1, 1.3, 0.9, 1.02],
            unranked=[ranking.HINDSIGHT, ranking.HOLDS_MORE, ranking.HOLDS_LESS, ranking.RANKED])])
        self.assertEqual([row["mark"] for row in answer["rows"]], ["", "more", "less", "best"])
        self.assertEqual(answer["best"], 3)

    def test_who_is_not_ranked_is_compared_between_its_own_points(self):
        steps = np.ones((2, 50)) * [[1.0], [0.5]]
        answer, = ranking.rank([ranking.contest(
            steps, units="steps", scale="log", unranked=[ranking.RANKED, ranking.HOLDS_MORE],
            points=[[], [(2.0, steps[1]), (0.5, 2 * steps[0])]])])
        self.assertIsNone(answer["rows"][0]["equal_bytes"]["estimate"]["value"])
        equal = answer["rows"][1]["equal_bytes"]
        self.assertAlmostEqual(equal["estimate"]["value"], 1)   # halfway from 2 to 0.5, in logarithms
        self.assertAlmostEqual(equal["difference"]["value"], 1)

    def test_a_number_at_a_share_lies_between_its_own_points(self):
        own = [(0.2, 0.25), (0.1, 1.0), (0.4, 0.0625)]
        np.testing.assert_allclose(ranking.at_shares([own] * 4, [0.1, 0.2 ** 0.5 / 10 ** 0.5, 0.5, 0.4], "log"),
                                   [1, 0.5, np.nan, 0.0625])
        np.testing.assert_allclose(ranking.at_shares([own, []], [0.1 * 2 ** 0.5, 0.2], "share"), [0.625, np.nan])

    def test_odd_contests_are_one_line(self):
        for given, said in (([{"series": [[1, 2], [1]]}], "different lengths"), ([{}], "series"),
                            ({"series": []}, "no list"), ([{"series": [[1]], "units": "x"}], "units"),
                            ([{"series": [[1]], "unranked": [9]}], "unranked 9"),
                            ([{"series": [[1]], "points": [[], []]}], "points of another length"),
                            ([{"series": [[1]], "points": [[{"held": 1, "series": []}]]}],
                             "different lengths")):
            with self.assertRaisesRegex(DataError, f"not a list of contests.*{said}"):
                ranking.rank(given)


if __name__ == "__main__":
    unittest.main()
