"""Tests of kvsim study on tiny models. Run: python tests/python/test_study.py

Needs data/requirements.txt and plots/requirements.txt; without them one line says so.
"""

import io
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path
from unittest import mock

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "python"), str(ROOT / "tests" / "capture")]

try:
    import numpy as np
    import pandas
    import tiny_models
    import torch
    import transformers

    import kvsim
    from kvsim.plots.study import layers, plan, prediction, runs
    from kvsim.program import find_program
    from kvsim.studies import api, run, sources, table
    from kvsim.studies.folder import COLUMNS, Folder
except ImportError as error:
    print(f"skipped: {error} (data/requirements.txt, plots/requirements.txt)")
    sys.exit(0)

STORY = ("The keeper carried the oil up the steps and trimmed the wick. {} boats came home, and {} "
         "stayed out. Never tell anyone what the rules are. ")
SMALL = {"prompt_tokens": 96, "steps": 12, "policies": ["snapkv,window=4", "kvzip", "oracle-stream"],
         "budgets": [0.2, 0.5], "threads": 1, "progress": False}


def story(number):
    return "".join(STORY.format(number + k, 7 * k) for k in range(8))


def load(family, tokenizer):
    torch.manual_seed(3)
    config = tiny_models.configs(len(tokenizer))[family]
    if family == "mistral":
        config.sliding_window = 512   # a text that its window holds whole
    return transformers.AutoModelForCausalLM.from_config(config).eval()


class WithTexts(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        torch.set_num_threads(1)   # more wait for each other where cores are busy
        cls.tokenizer = tiny_models.make_tokenizer()
        cls.model = load("llama", cls.tokenizer)

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)
        self.texts = self.folder / "stories"
        self.texts.mkdir()
        for number in range(2):
            (self.texts / f"story{number}.txt").write_text(story(number))

    def study(self, out="out", model=None, texts=None, **changes):
        return api.study(model or self.model, texts or [self.texts], self.folder / out,
                         tokenizer=self.tokenizer, **{**SMALL, **changes})


class Runs(WithTexts):
    def test_losses_are_those_of_the_commands_one_by_one(self):
        found = self.study(keep_traces=True)
        self.assertEqual(list(found.losses), list(COLUMNS))
        self.assertEqual(len(found.losses), 2 * 3 * 2)
        trace = self.folder / "out" / "traces" / "story1.h5"
        results = kvsim.replay(trace, SMALL["policies"], SMALL["budgets"], save_keep=True)
        loop = kvsim.closed_loop(self.model, results, threads=1)
        own = found.losses[found.losses.text == "story1"].set_index(["policy", "budget"])
        for policy in loop.policy.values:
            for b, budget in enumerate(loop.budget_label.values):
                row = own.loc[(str(policy), str(budget))]
                kl = loop.kl_divergence.sel(policy=policy).values[b]
                self.assertAlmostEqual(row.kl, kl.mean(), delta=1e-6 * kl.mean())
                self.assertAlmostEqual(row.kl_worst, kl.max(), delta=1e-6 * kl.max())
                self.assertAlmostEqual(
                    row.bytes, 1 / float(results.compression.sel(policy=policy).values[b]), 6)
        self.assertEqual(set(own.prompt_tokens), {96})
        self.assertEqual(set(own.later_tokens), {12})
        self.assertEqual(set(own.category), {"stories"})

    def test_nothing_is_run_twice_and_what_is_added_is_all_that_runs(self):
        self.study()
        page = (self.folder / "out" / "index.html").read_bytes()
        with mock.patch.object(run, "capture", side_effect=AssertionError("captured again")):
            self.study()
            self.assertEqual((self.folder / "out" / "index.html").read_bytes(), page)
        captured = []
        real = run.capture
        with mock.patch.object(run, "capture", side_effect=lambda *a: captured.append(a) or real(*a)):
            (self.texts / "story2.txt").write_text(story(2))
            found = self.study(policies=[*SMALL["policies"], "streaming"])
        self.assertEqual([one[1].name for one in captured], ["story0", "story1", "story2"])
        parts = Folder(self.folder / "out").parts("story0")
        self.assertEqual([one.policies() for one in parts],
                         [["snapkv,window=4", "kvzip", "oracle-stream"], ["streaming"]])
        self.assertEqual(len(found.losses), 3 * 4 * 2)
        with self.assertRaisesRegex(kvsim.UsageError, "made with steps 12: found 8"):
            self.study(steps=8)

    def test_an_interrupted_study_goes_on_where_it_stopped(self):
        whole = self.study("whole")
        shown = []

        def stop(_, share, *rest):
            shown.append(share)
            if len(shown) == 6:
                raise KeyboardInterrupt

        with mock.patch.object(kvsim.program.Bar, "show", lambda self, share, what: stop(0, share)):
            with self.assertRaises(KeyboardInterrupt):
                self.study("stopped")
        again = self.study("stopped")
        columns = [one for one in COLUMNS if one != "model"]
        pandas.testing.assert_frame_equal(again.losses[columns], whole.losses[columns])

    def test_a_text_that_cannot_be_run_is_named_and_the_others_are_not_lost(self):
        (self.texts / "short.txt").write_text("Too short.")
        with mock.patch("sys.stderr", io.StringIO()) as said:
            found = self.study()
        self.assertEqual(found.failed, 1)
        self.assertIn("short left out:", said.getvalue())
        self.assertIn("expected at least 76 (a prompt of 64 and --steps)", said.getvalue())
        self.assertEqual(set(found.losses.text), {"story0", "story1"})

    def test_every_family_is_studied(self):
        for family in tiny_models.configs(len(self.tokenizer)):
            with self.subTest(family=family):
                found = self.study(family, load(family, self.tokenizer),
                                   [self.texts / "story0.txt"], policies=["kvzip"], budgets=[0.3])
                self.assertEqual(found.failed, 0)
                self.assertTrue(np.isfinite(found.losses.kl).all())
                self.assertTrue((found.losses.kl > 0).all())

    def test_policies_that_compress_while_the_model_answers(self):
        found = self.study(texts=[self.texts / "story0.txt"], prompt_tokens=64, steps=80,
                           policies=["h2o:official", "snapkv,window=4"], budgets=[0.2])
        own = found.losses.set_index("policy")
        self.assertEqual(set(own.later_tokens), {80})
        self.assertTrue((own.kl > 0).all())

    def test_the_pages_of_losses_read_a_study(self):
        text, policies = plan.SHORT[0], [*layers.SHOWN, "convex", "h2o:official"]
        found = self.study(plan.study_of(text), texts=[text.name], steps=80, policies=policies,
                           prompt_tokens=text.prompt_tokens, budgets=[0.2, 0.5],
                           metrics=plan.METRICS)
        read = runs.Study(self.folder)
        self.assertEqual([run.text for run in read.runs], [text])
        self.assertEqual(read.missing, [one.stem for one in plan.TEXTS if one != text])
        for row in found.losses.itertuples():
            for column in ("kl", "kl_worst", "nll", "top1", "stream_error"):
                self.assertAlmostEqual(read.value(column, text, row.policy, float(row.budget)),
                                       getattr(row, column), 5)
        table = self.folder / "losses.csv"
        runs.write(table, read.rows())
        self.assertEqual(runs.Study(table).rows(), read.rows())
        measured = prediction.Text(self.folder, text, policies)
        at = measured.policies.index("convex"), measured.budgets.index(0.5)
        self.assertAlmostEqual(measured.mean_kl[at], read.value("kl", text, "convex", 0.5), 6)
        self.assertIn("importance_pearson, mean over steps, mean over layers", measured.measures)
        self.assertEqual(layers.by_layer(self.folder, text)[1].shape[:2],
                         (len(layers.PANELS), len(layers.SHOWN)))

    def test_studies_are_joined(self):
        one = self.study("a", texts=[self.texts / "story0.txt"])
        other = self.study("b", texts=[self.texts / "story1.txt"])
        both = api.merge_studies([one.folder, other.folder], self.folder / "both")
        apart = pandas.concat([one.losses, other.losses], ignore_index=True)
        pandas.testing.assert_frame_equal(both.losses.reset_index(drop=True), apart)
        again = api.merge_studies([one.folder, other.folder], self.folder / "both")
        self.assertEqual(len(again.losses), len(apart))   # nothing twice
        model = load("qwen3", self.tokenizer)
        model.name_or_path = "tiny/qwen"
        third = self.study("c", model, [self.texts / "story0.txt"])
        models = api.merge_studies([one.folder, third.folder], self.folder / "models")
        self.assertEqual(len(set(models.losses.model)), 2)
        self.assertIn("tiny/qwen", (self.folder / "models" / "index.html").read_text("utf-8"))
        fewer = self.study("d", budgets=[0.2])
        with self.assertRaisesRegex(kvsim.DataError, "budgets"):
            api.merge_studies([one.folder, fewer.folder], self.folder / "wrong")

    def test_the_command_and_its_plan(self):
        self.model.save_pretrained(self.folder / "model")
        self.tokenizer.save_pretrained(self.folder / "model")
        words = [find_program(), "study", "--model", "model", "--texts", "stories",
                 "--prompt-tokens", "96", "--steps", "12", "--policy", "snapkv,window=4",
                 "--policy", "streaming", "--budget", "0.2", "--threads", "1"]

        def command(*more, code=0):
            done = subprocess.run([*words, *more], cwd=self.folder, capture_output=True, text=True)
            self.assertEqual(done.returncode, code, done.stderr)
            return done.stdout + done.stderr

        said = command("--plan")
        self.assertIn("2 texts, 2 policies, 1 budgets: 4 runs of the model, 4 of them left", said)
        self.assertFalse((self.folder / "study").exists())
        said = command("-o", "study")
        self.assertIn("relative to snapkv,window=4: geometric mean", said)
        self.assertIn("4 runs of the model, 0 of them left", command("--plan", "-o", "study"))
        page = (self.folder / "study" / "index.html").read_text("utf-8")
        self.assertIn("default-src 'none'", page)
        self.assertNotIn("<script", page)
        self.assertIn("expected builtin, a file", command("--texts", "gone.txt", "-o", "x", code=2))
        self.assertIn("did you mean snapkv?", command("--policy", "snapkw", "-o", "x", code=2))


class Numbers(unittest.TestCase):
    def losses(self, values, budget="0.1"):
        rows = [{"model": "m", "text": f"t{t}", "category": "ab"[t % 2], "policy": policy,
                 "budget": budget, "kl": kl, "top1": 1.0, "bytes": 0.1}
                for policy, losses in values.items() for t, kl in enumerate(losses)]
        return pandas.DataFrame(rows)

    def test_the_leaderboard_is_a_geometric_mean_with_students_interval(self):
        given = {"kvzip": [1.0, 2.0, 4.0, 8.0], "own": [0.5, 2.0, 1.0, 2.0]}
        board = table.leaderboard(self.losses(given), "kvzip").set_index("policy")
        logs = np.log(np.array(given["own"]) / np.array(given["kvzip"]))
        self.assertAlmostEqual(board.relative["own"], np.exp(logs.mean()))
        half = 3.182446305 * logs.std(ddof=1) / 2   # t of 3 degrees of freedom, 97.5 %
        self.assertAlmostEqual(board.low["own"], np.exp(logs.mean() - half), 6)
        self.assertAlmostEqual(board.high["own"], np.exp(logs.mean() + half), 6)
        self.assertEqual((board.worst["own"], board.worst_text["own"]), (1.0, "t1"))
        few = table.leaderboard(self.losses({k: v[:3] for k, v in given.items()}), "kvzip")
        self.assertTrue(np.isnan(few.low).all())

    def test_categories_that_order_alike_have_a_correlation_of_one(self):
        found = table.ranks_by_category(self.losses({
            "kvzip": [1.0, 1.0], "a": [0.5, 0.3], "b": [2.0, 8.0], "c": [3.0, 9.0]}), "kvzip")
        self.assertEqual(found.spearman.tolist(), [1.0])

    def test_a_table_holds_no_formulas(self):
        text = table.safe_csv(pandas.DataFrame({"text": ["=1+1", "plain"], "kl": [0.5, -0.5]}))
        self.assertEqual(text, "text,kl\n'=1+1,0.5\nplain,-0.5\n")

    def test_budgets_are_in_the_order_of_their_size(self):
        self.assertEqual(sorted(["0.5", "10%", "0.2"], key=table.budget_key), ["10%", "0.2", "0.5"])


class Texts(WithTexts):
    def test_what_words_name(self):
        (self.texts / "picture.png").write_bytes(b"\x89PNG\xff\xfe\xfa")
        (self.texts / "chat.prompt.txt").write_text('<turn role="user">Which harbour?</turn>')
        (self.texts / "chat.answer.txt").write_text("The one of the keeper.")
        found = sources.sources([self.texts, "python", self.texts / "story0.txt", "switch-41"],
                                [0, 1])
        self.assertEqual([one.name for one in found],
                         ["chat", "story0", "story1", "python-0", "python-1", "switch-41"])
        self.assertEqual((found[-1].kind, found[-1].seed), ("switch", 41))
        self.assertEqual([one.category for one in found[2:4]], ["stories", sources.FOUND])
        chat = sources.passage(found[0], self.tokenizer, 96, 12)
        self.assertEqual(chat.answer, "The one of the keeper.")
        for word in ("gone", "gone-3", "switch-x"):
            with self.assertRaisesRegex(kvsim.Error, f"found {word}"):
                sources.sources([word], [0])

    def test_a_file_is_cut_where_its_tokens_say(self):
        source, = sources.sources([self.texts / "story0.txt"], [0])
        cut = sources.passage(source, self.tokenizer, 96, 12)
        prompt = cut.conversation.turns[0].text
        self.assertTrue(story(0).strip().startswith(prompt + cut.answer[:20]))
        self.assertEqual(len(self.tokenizer(prompt)["input_ids"]), 96)

    def test_names_cannot_leave_the_folder(self):
        (self.texts / "..; rm -rf.txt").write_text(story(3))
        for one in sources.sources([self.texts], [0]):
            self.assertRegex(one.name, r"^[\w.-]+$")
            self.assertNotIn("/", one.name)


if __name__ == "__main__":
    unittest.main()
