"""Which candidates of `kvsim search` are ranked, and what goes on from what a killed process left. Run: python
tests/python/test_search_ranks.py"""

import sys
import unittest
import unittest.mock
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

import numpy as np
import test_search   # puts the package on the path
import kvsim
from kvsim import units
from kvsim.searches import config as configuration
from kvsim.searches import evaluate, summary
from kvsim.searches.study import Study


class Ranks(test_search.WithTexts):
    def test_what_holds_more_is_not_ranked(self):
        vary = {"allocate": ["uniform", "threshold"], "window": {"low": 4, "high": 8},
                "threshold": {"low": 0.001, "high": 0.003}}
        found = kvsim.search(self.document(vary=vary), self.folder / "study")
        off = found.trials[found.trials.state == "not ranked"]
        self.assertGreater(len(off), 0)
        self.assertEqual(set(off.allocate), {"threshold"})
        self.assertTrue(off.reason.str.match(r"alpha_96_0: holds [1-4]\S+ times what budget 0.2 gives").all())
        self.assertNotIn("threshold", found.best[0])
        self.assertIn(f"not ranked, {len(off)} candidate", found.summary)
        study = Study(self.config(vary=vary), self.folder / "study")
        self.assertEqual(summary.counts(study)["unranked"], len(off))
        # Of what is weighed in bytes all are ranked.
        objective = [{"reference": "snapkv"}, {"variable": "bytes_ragged"}]
        found = kvsim.search(self.document(vary=vary, objective=objective), self.folder / "front")
        self.assertEqual(set(found.trials.state), {"measured"})

    def test_where_the_base_holds_more_others_must_hold_as_it_does(self):
        base = "snapkv,window=8,allocate=threshold,threshold=0.001"
        found = kvsim.search(self.document(base=base, vary={"threshold": [0.001, 0.003]},
                                           trials=8), self.folder / "study")
        self.assertRegex(found.summary, rf"{base} holds 3\S+ times at 0.2, 1\S+ times at 0.5 of what the")
        states = dict(zip(found.trials.threshold.astype(float), found.trials.state))
        self.assertEqual(states, {0.001: "measured", 0.003: "not ranked"})


class Worst(test_search.WithTexts):
    """An objective for the worst part, against whichever reference is best there."""

    REFERENCES = ["snapkv,window=8", "h2o", "streaming"]

    def errors(self, records):
        """[texts, records, budgets] of the two texts that are searched."""
        return np.array([kvsim.replay(self.traces / f"{name}.h5", records, [0.2, 0.5]).stream_error_rms.values
                         for name in ("alpha_96_0", "beta_96_0")])

    def test_the_worst_text_or_budget_counts_against_the_best_reference_there(self):
        for worst, axis in (("text", 1), ("budget", 0)):
            objective = {"reference": self.REFERENCES, "worst": worst}
            found = kvsim.search(self.document(trials=4, objective=objective), self.folder / worst, report=True)
            row = found.trials[found.trials.state == "measured"].iloc[-1]
            own, *others = np.moveaxis(self.errors([row.record, *self.REFERENCES]), 1, 0)
            parts = np.log(own / np.min(others, axis=0)).mean(axis)
            self.assertAlmostEqual(row.filter(like="ln ").iloc[0], parts.max(), places=5)
            self.assertIn(f"stream_error_rms relative to {' or '.join(self.REFERENCES)}, the worst {worst} (minimize",
                          found.summary)
            self.assertRegex(found.summary, r"\n +0\.2 +0\.5 +worst  candidate\n")
            self.assertIn(f"stream_error_rms relative to {' or '.join(self.REFERENCES)}: geometric mean", found.report)
        unlike = {"reference": "snapkv,window=8"}
        with self.assertRaisesRegex(kvsim.UsageError, "expected the same|made with another"):
            kvsim.search(self.document(trials=4, objective=unlike), self.folder / "text")

    def test_means_of_models_and_budgets_apart(self):
        texts = [configuration.Text("", str(at), model, 9, 9) for at, model in enumerate(("a", "b", "b"))]
        values = np.array([[1.0, 2.0], [4.0, 0.0], [0.0, 0.0]])
        for worst, direction, expected in ((("model", "budget"), "minimize", 2), (("model", "budget"), "maximize", 0),
                                           (("model",), "minimize", 1.5), (("text",), "minimize", 2),
                                           ((), "minimize", 7 / 6)):
            objective = configuration.Objective(("x",), "", direction, worst=worst)
            self.assertAlmostEqual(evaluate.folded(objective, values, texts), expected)

    def test_what_it_may_be_told_apart_by(self):
        with self.assertRaisesRegex(kvsim.UsageError, r'worst: found \["layer"\], expected some of model, text, budget'):
            self.config(objective={"worst": "layer"})
        with self.assertRaisesRegex(kvsim.UsageError, "reference: found 3, expected a record, or a list of records"):
            self.config(objective={"reference": 3})


class Kills(test_search.WithTexts):
    def killed(self, method):
        """Candidates of a study that is killed while it measures or tells a group, and then goes on."""
        folder = self.folder / method
        study = Study(self.config(), folder)
        worker = units.Worker(study.workers)
        group = study._ask(worker, 4)
        with unittest.mock.patch.object(study, method, side_effect=KeyboardInterrupt), \
                self.assertRaises(KeyboardInterrupt):
            study._evaluate(group)
            study._tell()
        worker.close()
        again = Study(self.config(), folder)
        with unittest.mock.patch.object(again.replayer, "measure", side_effect=AssertionError("measured again")):
            again.run(4)
        self.assertEqual(list(again.workers.iterdir()), [])
        return self.values(folder)

    def test_what_was_measured_is_not_measured_again(self):
        Study(self.config(), self.folder / "whole").run(4)
        whole = self.values(self.folder / "whole")
        self.assertEqual(self.killed("_values"), whole)   # all texts are measured, nothing is told
        self.assertEqual(self.killed("_tell"), whole)

    def test_a_folder_of_an_earlier_version_goes_on(self):
        """It has the journal, and what a process had measured but not told, which is measured again."""
        Study(self.config(), self.folder / "whole").run(8)
        Study(self.config(), self.folder / "old").run(4)
        (self.folder / "old" / "units.jsonl").unlink()
        (self.folder / "old" / "workers" / "somebody.json").write_text("[]")
        Study(self.config(), self.folder / "old").run(8)
        self.assertEqual(self.values(self.folder / "old"), self.values(self.folder / "whole"))


if __name__ == "__main__":
    unittest.main()
