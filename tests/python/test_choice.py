"""Tests of kvsim choose on a tiny model. Run: python tests/python/test_choice.py

Needs data/requirements.txt; without it one line says so.
"""

import io
import subprocess
import unittest
from unittest import mock

import numpy as np
from test_study import SMALL, WithTexts

import kvsim
from kvsim.program import find_program
from kvsim.studies import choice

POLICIES = ["snapkv,window=4", "streaming", "kvzip", "oracle-stream"]


class Choice(WithTexts):
    def choose(self, *names, **changes):
        common = {name: value for name, value in SMALL.items() if name != "policies"}
        return kvsim.choose(self.model, [self.texts / one for one in names], tokenizer=self.tokenizer,
                            **{**common, "policies": POLICIES, **changes})

    def test_the_least_stream_error_is_chosen_and_nothing_runs_compressed(self):
        with mock.patch("kvsim.studies.run.close_loop", side_effect=AssertionError("a closed loop")):
            found = self.choose("story1.txt")
        self.study(texts=[self.texts / "story1.txt"], policies=POLICIES, keep_traces=True)
        results = kvsim.replay(self.folder / "out" / "traces" / "story1.h5", POLICIES, SMALL["budgets"])
        for b, budget in enumerate(("0.2", "0.5")):
            own = found[found.budget == budget].set_index("policy")
            errors = results.stream_error_rms.values[:, b]
            np.testing.assert_allclose(own.stream_error[list(results.policy.values)], errors, rtol=1e-5)
            best = str(results.policy.values[np.argmin(errors[:3])])   # hindsight is not ranked
            self.assertEqual(own["mark"].to_dict()[best], "best")
            self.assertEqual(own["mark"]["oracle-stream"], "")
            np.testing.assert_allclose(own.ratio, own.stream_error / own.stream_error[best], rtol=1e-4)
            near = own[own["mark"] == "equal"]
            self.assertTrue(((near.low <= 1) & (near.high >= 1)).all())

    def test_of_several_texts_the_geometric_mean_decides(self):
        apart = [self.choose(one).stream_error for one in ("story0.txt", "story1.txt")]
        both = self.choose("story0.txt", "story1.txt")
        np.testing.assert_allclose(both.stream_error, np.sqrt(apart[0] * apart[1]), rtol=1e-6)
        for _, own in both[both.policy != "oracle-stream"].groupby("budget"):
            self.assertEqual(own.loc[own.stream_error.idxmin(), "mark"], "best")

    def test_a_policy_that_the_trace_cannot_serve_is_named(self):
        with mock.patch("sys.stderr", io.StringIO()) as said:
            found = self.choose("story0.txt", policies=["streaming", "laq", "snapkv,window=4"])
        self.assertEqual(set(found.policy), {"streaming", "snapkv,window=4"})
        self.assertRegex(said.getvalue(), "(?m)^kvsim choose: laq left out: .*probe")
        with mock.patch("sys.stderr", io.StringIO()):
            with self.assertRaisesRegex(kvsim.DataError, "story0: no policy is left to choose among"):
                self.choose("story0.txt", policies=["laq"])

    def test_without_policies_it_chooses_among_its_presets(self):
        found = self.choose("story0.txt", policies=None, budgets=[0.5])
        self.assertEqual(list(found.policy), list(choice.PRESETS))

    def test_the_command(self):
        self.save_model()
        (self.folder / "short.txt").write_text("Too short.")
        words = ["choose", "--model", "model", "--prompt-tokens", "96", "--steps", "12",
                 "--policy", "snapkv,window=4", "--policy", "streaming", "--budget", "0.2,0.5", "--threads", "1"]

        def command(*more, code=0):
            out, said = self.command(*words, *more, code=code)
            return said if code else out

        lines = subprocess.run([find_program(), *words, "--text", "stories/story0.txt", "-q"], cwd=self.folder,
                               capture_output=True, text=True, check=True).stdout.splitlines()
        self.assertRegex(lines[2], r"^0\.2 +(snapkv,window=4|streaming) +0\.\d+")
        self.assertRegex(lines[3], r"^0\.5 +(snapkv,window=4|streaming) +0\.\d+")
        self.assertIn("policies of your own", lines[-2])
        self.assertIn("kvsim study --model model --texts stories/story0.txt", lines[-1])
        self.assertIn("2 texts", command("--text", "stories"))
        self.assertIn("\\begin{table", command("--text", "stories", "--table", "tex"))
        for more, code, line in (
                ((), 2, "--text FILE|FOLDER is missing"), (("--text", "gone.txt"), 2, "--text: found gone.txt"),
                (("--text", "short.txt"), 3, "expected at least 76 (a prompt of 64 and --steps)"),
                (("--text", "stories", "--policy", "snapkw"), 2, "did you mean snapkv?"),
                (("--text", "stories", "--budget", "2.5"), 2, "expected a ratio such as 0.5")):
            said = command(*more, "-q", code=code)
            self.assertIn(line, said)
            self.assertEqual(said.count("\n"), 1, said)
        self.assertEqual(list(self.folder.glob("*.nc")), [])


if __name__ == "__main__":
    unittest.main()
