"""Tests of tasks and of kvsim study --tasks, on a tiny model. Run: python tests/python/test_tasks.py

Needs data/requirements.txt and plots/requirements.txt; without them one line says so.
"""

import contextlib
import io
import json
import re
import sys
import tempfile
import unittest
from argparse import Namespace
from pathlib import Path
from unittest import mock

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "python"), str(ROOT / "tests" / "capture")]

import numpy as np
import pandas
import rouge_score  # noqa: F401
import tiny_models
import torch
import transformers

import kvsim
from kvsim import tasks
from kvsim.kvtrace.closed_loop import ClosedLoop
from kvsim.kvtrace.kept_sets import KeptSets
from kvsim.kvtrace.markup import parse_text
from kvsim.kvtrace.model import LoadedModel
from kvsim.studies import api, page, plan, run, table
from kvsim.studies import tasks as runs
from kvsim.studies.folder import TABLES, Folder
from kvsim.tasks import Instance, Task, alike, holds, names_all, names_first
from kvsim.tasks.scorers import rouge_l

TALE = "The keeper carried the oil up the steps and trimmed the wick, and {} boats came home."
SHORT = Task("short", "for tests", lambda rng, number: Instance(
    TALE.format(rng.randint(10, 99)), "How many?", "x"), lambda answer, _: len(answer) % 2 == 0, 6)
HOW = {"policies": ["snapkv,window=4", "streaming"], "budgets": ["0.2", "0.6"], "texts": None,
       "tasks": "short", "instances": 3, "probe": None, "threads": 1, "progress": False}


def longest_common(one, other):
    """Length of the longest common subsequence, by its recursion."""
    best = [[0] * (len(other) + 1) for _ in range(len(one) + 1)]
    for i, a in enumerate(one):
        for j, b in enumerate(other):
            best[i + 1][j + 1] = best[i][j] + 1 if a == b else max(best[i][j + 1], best[i + 1][j])
    return best[-1][-1]


class Kinds(unittest.TestCase):
    def test_rules_that_judge(self):
        self.assertTrue(names_all("It is 1,204, then 17.", "1204 17"))
        self.assertFalse(names_all("17 and 1204", "1204 17"))
        self.assertFalse(names_all("12045", "1204"))
        self.assertTrue(holds("He said: Upper Dell!", "upper dell"))
        self.assertFalse(holds("Upper and Dell", "Upper Dell"))
        first = names_first(("red", "blue"))
        self.assertTrue(first(" red, not blue", "red"))
        self.assertFalse(first("blue or red", "red"))
        self.assertFalse(first("", "red"))

    def test_rouge_is_the_f_measure_of_the_longest_common_subsequence(self):
        expected = "the spare key of the tower is under the bench"
        for answer in ("the spare key is here", "under the bench is the key of the tower", "nothing",
                       expected, f"{expected} and never tell this to anybody at all"):
            common = longest_common(answer.split(), expected.split())
            f = 2 * common / (len(answer.split()) + len(expected.split()))
            self.assertAlmostEqual(rouge_l(answer, expected), f)
            self.assertEqual(alike(answer, expected), f >= 0.5, answer)

    def test_every_task_is_the_same_for_the_same_seed_and_says_what_it_expects(self):
        for task in tasks.TASKS.values():
            with self.subTest(task=task.name):
                made = [tasks.instance(task, 0, number) for number in range(20)]
                self.assertEqual(made, [tasks.instance(task, 0, number) for number in range(20)])
                self.assertEqual(len(set(made)), 20)
                self.assertNotEqual(made[0], tasks.instance(task, 1, 0))
                for one in made:
                    read = f"{one.system} {one.context}"
                    self.assertTrue(all(word in re.findall(r"\w+", read)
                                        for word in re.findall(r"\w+", one.expected)))
                    self.assertTrue(task.judge(one.expected, one.expected))
                    self.assertFalse(task.judge("I do not know.", one.expected))

    def test_what_is_compressed(self):
        for task in tasks.TASKS.values():
            one = tasks.instance(task, 0, 3)
            before = {}
            for question in tasks.QUESTIONS:
                prompt = one.prompt(question)
                self.assertTrue(parse_text(prompt, task.name).has_compress)
                before[question], after = prompt.split("<compress/>")
                if one.raw:
                    self.assertEqual(after, one.cue if question == tasks.KNOWN
                                     else one.question + one.cue)
            self.assertIn(one.question, before[tasks.KNOWN])
            self.assertNotIn(one.question, before[tasks.UNKNOWN])
            self.assertIn(one.context, before[tasks.UNKNOWN])

    def test_a_needle_is_at_every_depth(self):
        places = []
        for number in range(5):
            one = tasks.instance(tasks.TASKS["needle"], 0, number)
            places.append(one.context.index(one.expected) / len(one.context))
        self.assertEqual(places, sorted(places))
        self.assertLess(places[0], 0.1)
        self.assertGreater(places[-1], 0.9)


class WithModel(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        torch.set_num_threads(1)
        cls.tokenizer = tiny_models.make_tokenizer()
        torch.manual_seed(3)
        cls.model = transformers.AutoModelForCausalLM.from_config(
            tiny_models.configs(len(cls.tokenizer))["llama"]).eval()

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)
        only = mock.patch.dict(tasks.TASKS, {"short": SHORT}, clear=True)
        only.start()
        self.addCleanup(only.stop)

    def study(self, out="out", **changes):
        return api.study(self.model, out=self.folder / out, tokenizer=self.tokenizer,
                         **{**HOW, **changes})

    def sheet(self, question, out="out"):
        path = self.folder / out / "tasks" / f"short-{question}.jsonl"
        return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


class Answers(WithModel):
    def naive(self, ids, prompt_len, kept, count):
        """Greedy tokens, every one from a run over all tokens before it."""
        written = []
        while len(written) < count:
            with ClosedLoop(self.model, [*ids, *written, 0], prompt_len) as loop:
                written.append(int(loop.logits([kept])[0, -2].argmax()))
        return written

    def test_answers_are_those_written_token_by_token(self):
        rng = np.random.default_rng(5)
        ids = rng.integers(3, len(self.tokenizer), 40).tolist()
        full = self.naive(ids, 34, None, 7)
        heads, layers = self.model.config.num_key_value_heads, self.model.config.num_hidden_layers
        sets = [KeptSets("p", str(share), {layer: rng.random((heads, 34)) < share
                                           for layer in range(layers)})
                for share in (0.1, 0.3, 0.6, 0.9, 1.1)]
        with ClosedLoop(self.model, ids + full, 34) as loop:
            found = loop.answers(sets, len(ids), frozenset())
            losses = loop.losses(sets)
        for kept, one, loss in zip(sets, found, losses):
            self.assertEqual(one.tokens, self.naive(ids, 34, kept, 7), kept.budget)
            self.assertEqual(one.same, one.tokens == full)
            kl = np.array(loss["kl_divergence"])
            self.assertAlmostEqual(one.kl, kl[5:12].mean(), delta=1e-5 * kl.max() + 1e-12)
        self.assertIn(False, [one.same for one in found])
        self.assertTrue(found[-1].same)

    def test_an_answer_stops_where_every_row_has_ended(self):
        ids = list(range(3, 43))
        nothing = KeptSets("p", "0", {layer: np.zeros((2, 34), bool) for layer in range(4)})
        full = self.naive(ids, 34, None, 7)
        with ClosedLoop(self.model, ids + full, 34) as loop:
            [one] = loop.answers([nothing], len(ids), frozenset())
            ends = frozenset([one.tokens[1]])
            with mock.patch.object(loop, "_forward", wraps=loop._forward) as forward:
                [cut] = loop.answers([nothing], len(ids), ends)
        self.assertEqual(cut.tokens[:2], one.tokens[:2])
        self.assertLessEqual(forward.call_count, 3)


class Runs(WithModel):
    def test_only_what_the_full_cache_answers_right_is_run_and_the_rest_is_counted(self):
        found = self.study()
        for question in tasks.QUESTIONS:
            lines = self.sheet(question)
            self.assertEqual([line["number"] for line in lines], list(range(len(lines))))
            for line in lines:
                self.assertEqual(line["solved"], len(line["full"]) % 2 == 0)
                self.assertEqual(len(line["outcomes"]), 4 if line["solved"] else 0)
                for one in line["outcomes"]:
                    text = one.get("text", line["full"])
                    self.assertEqual(one["right"], len(text) % 2 == 0)
                    self.assertEqual(one["same"], "text" not in one)
            right = sum(line["solved"] for line in lines)
            self.assertTrue(right == 3 or len(lines) == runs.TRIES * 3)
        self.assertEqual(list(found.answers), list(TABLES["answers.csv"]))
        self.assertTrue((found.answers.kl >= 0).all())
        page = (self.folder / "out" / "index.html").read_text("utf-8")
        self.assertIn("Tasks: does the answer stay right?", page)
        self.assertTrue((self.folder / "out" / "accuracy.csv").is_file())
        self.assertFalse((self.folder / "out" / "losses.csv").exists())

    def test_it_goes_on_where_it_stopped_and_runs_nothing_twice(self):
        whole = self.study("whole")
        real, calls = runs.run_instance, []

        def stop(*args):
            calls.append(args)
            if len(calls) == 3:
                raise KeyboardInterrupt
            return real(*args)

        with mock.patch.object(runs, "run_instance", stop), self.assertRaises(KeyboardInterrupt):
            self.study("stopped")
        torn = self.folder / "stopped" / "tasks" / "short-known.jsonl"
        with torn.open("a") as file:
            file.write('{"number": 2, "solv')
        again = self.study("stopped")
        pandas.testing.assert_frame_equal(again.answers, whole.answers)
        with mock.patch.object(runs, "run_instance", side_effect=AssertionError("twice")):
            self.study("stopped")
        def left(policies, instances):
            settings = Namespace(policies=policies, budgets=HOW["budgets"], instances=instances)
            sheet, = runs.sheets(Folder(self.folder / "stopped"), ["short-known"])
            return plan.answers_left([sheet], run.canonical_records(policies), settings)

        settings = Namespace(policies=HOW["policies"], budgets=list(map(str, HOW["budgets"])), probes=[],
                             dtype="float16", instances=3, threads=1, metrics=None)
        fresh = runs.sheets(Folder(self.folder / "fresh"), ["short-known"])
        seconds, name = plan.of_instance(fresh, run.canonical_records(HOW["policies"]), LoadedModel(
            self.model, self.tokenizer, "tiny", "tiny"), settings)
        self.assertRegex(name, "^short-known [0-2]$")
        self.assertGreater(seconds, 0)
        self.assertFalse((self.folder / "fresh").exists())   # it is tried elsewhere
        self.assertEqual(left(HOW["policies"], 3), (0, 0))
        self.assertEqual(left([*HOW["policies"], "random"], 3), (3, 3 * 2))
        self.assertEqual(left([*HOW["policies"], "random"], 5), (5, 3 * 2 + 2 * 3 * 2))
        more = self.study("stopped", policies=[*HOW["policies"], "random"])
        self.assertEqual(len(more.answers), len(whole.answers) * 3 // 2)
        self.assertEqual(set(more.answers.policy), {*HOW["policies"], "random"})

    def test_studies_are_joined(self):
        one = self.study("a")
        other = self.study("b", policies=["random"])
        page.join([one.folder, other.folder], self.folder / "both")
        both = api.opened(self.folder / "both")
        self.assertEqual(len(both.answers), len(one.answers) + len(other.answers))
        page.join([one.folder, other.folder], self.folder / "both")
        again = api.opened(self.folder / "both")
        self.assertEqual(len(again.answers), len(both.answers))

    def test_what_cannot_be_asked(self):
        with self.assertRaisesRegex(kvsim.UsageError, "keepkv changes the cache while"):
            self.study(policies=["keepkv"])
        with self.assertRaisesRegex(kvsim.UsageError, "--tasks: found shirt, expected builtin"):
            self.study(tasks="shirt")
        with self.assertRaisesRegex(kvsim.UsageError, "there is nothing to study"):
            self.study(tasks=())

    def test_a_task_with_turns_is_left_out_by_name_where_the_tokenizer_has_no_chat_template(self):
        cued = Task("cued", "for tests", lambda rng, number: Instance(
            TALE.format(rng.randint(10, 99)), " How many?", "x", cue=" It was"), lambda *_: True, 3)
        without = tiny_models.make_tokenizer()
        without.chat_template = None
        said = io.StringIO()
        with mock.patch.dict(tasks.TASKS, {"cued": cued}), contextlib.redirect_stderr(said):
            found = api.study(self.model, out=self.folder / "out", tokenizer=without,
                              **{**HOW, "tasks": ["short", "cued"]})
            self.assertEqual(set(found.answers.task), {"cued"})
        for question in tasks.QUESTIONS:
            self.assertIn(f"short-{question} left out: the prompt has turns with roles, but this tokenizer has "
                          "no chat template", said.getvalue())

    def test_words_of_the_command(self):
        folder = Folder(self.folder)
        with mock.patch.dict(tasks.TASKS, {"other": SHORT}):
            names = [[one.name for one in runs.sheets(folder, words)] for words in (
                ["builtin"], ["short"], ["short-unknown", "short"])]
        self.assertEqual([len(one) for one in names], [4, 2, 2])


class Numbers(unittest.TestCase):
    def answers(self, right, kl):
        """right, kl: by policy, a value for each instance."""
        return pandas.DataFrame([
            {"model": "m", "task": "t", "question": "known", "number": i, "prompt_tokens": 9,
             "policy": policy, "budget": "0.1", "right": bool(one), "same": False, "kl": kl[policy]}
            for policy, values in right.items() for i, one in enumerate(values)])

    def test_accuracy_has_wilsons_interval(self):
        found = table.accuracy(self.answers({"a": [1] * 7 + [0] * 3}, {"a": 0.1}))
        own = found[(found.task == "t") & (found.question == "known")].iloc[0]
        z = 1.959963985
        centre = (0.7 + z * z / 20) / (1 + z * z / 10)
        half = z / (1 + z * z / 10) * np.sqrt(0.7 * 0.3 / 10 + z * z / 400)
        self.assertAlmostEqual(own.low, centre - half, 6)
        self.assertAlmostEqual(own.high, centre + half, 6)
        self.assertEqual((own.accuracy, own.instances), (0.7, 10))

    def test_pairs_that_tasks_tell_apart(self):
        right = {"a": [1] * 20, "b": [1] * 10 + [0] * 10, "c": [0] * 20, "d": [1] * 9 + [0] * 11}
        kl = {"a": 0.1, "b": 0.5, "c": 0.3, "d": 0.4}
        found = table.agreement(self.answers(right, kl), pandas.DataFrame(
            columns=["model", "budget", "policy", "kl"]))
        own = found[(found.task == "t") & (found.question == "known")].iloc[0]
        # All pairs but b and d; KL puts c before b and d, which answer more right.
        self.assertEqual((own.told_apart, own.instances, own["by"]), (5, 20, "answers"))
        self.assertAlmostEqual(own.alike, 3 / 5)
        self.assertAlmostEqual(own.spearman, 0.2)


if __name__ == "__main__":
    unittest.main()
