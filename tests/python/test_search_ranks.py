"""Which candidates of `kvsim search` are ranked, and what goes on from what a killed process left. Run: python
tests/python/test_search_ranks.py"""

import sys
import unittest
import unittest.mock
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

import test_search   # puts the package on the path
import kvsim
from kvsim import units
from kvsim.searches import summary
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
