"""Tests of kvsim study --tasks FILE, on a tiny model. Run with the Python of a capture."""

import csv
import json
import math
import re
import sys
import tempfile
import unittest
from pathlib import Path
from unittest import mock

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "python"), str(ROOT / "tests" / "capture")]

import datasets
import kvpress
import numpy as np
import pandas
import tiny_models
import torch
import transformers

import kvsim
from kvsim.errors import Error
from kvsim.kvtrace.prompt import render, tokenize
from kvsim.studies import benchmarks, page, tasks
from kvsim.studies.run import canonical_records
from kvsim.tasks import benchmark
from kvsim.tasks.scorers import SCORERS, load_scorer, scorer_of
from kvsim.units import Lines

TALE = "The keeper carried the oil up the steps and trimmed the wick, and {} boats came home. "
ROWS = [{"context": TALE.format(count), "question": "How many boats?", "answer_prefix": "There were",
         "answer": [str(count)], "task": task, "max_new_tokens": 6}
        for count, task in ((12, "niah_single_1"), (12, "qa_1"), (31, "niah_single_1"), (47, "qa_1"))]


def written(folder: Path) -> dict[str, Path]:
    """Rows in every layout."""
    table = pandas.DataFrame(ROWS)
    paths = {kind: folder / f"rows.{kind}" for kind in ("parquet", "jsonl", "json", "csv")}
    table.to_parquet(paths["parquet"])
    paths["jsonl"].write_text("".join(json.dumps(one) + "\n" for one in ROWS))
    paths["json"].write_text(json.dumps(ROWS))
    with paths["csv"].open("w", newline="", encoding="utf-8-sig") as file:
        sheet = csv.DictWriter(file, list(ROWS[0]))
        sheet.writeheader()
        sheet.writerows(ROWS)
    paths["on disk"] = folder / "saved"
    datasets.disable_progress_bars()
    datasets.Dataset.from_pandas(table).save_to_disk(paths["on disk"])
    paths["folder"] = folder / "parts"
    paths["folder"].mkdir()
    table[:2].to_parquet(paths["folder"] / "a.parquet")
    table[2:].to_parquet(paths["folder"] / "b.parquet")
    return paths


class Files(unittest.TestCase):
    def setUp(self):
        place = tempfile.TemporaryDirectory()
        self.addCleanup(place.cleanup)
        self.folder = Path(place.name)

    def file(self, *rows, name="rows.jsonl") -> Path:
        path = self.folder / name
        path.write_text("".join(json.dumps(one) + "\n" for one in rows))
        return path

    def test_every_layout_gives_the_same_rows(self):
        for kind, path in written(self.folder).items():
            with self.subTest(kind):
                found = benchmark.read_benchmark(path)
                self.assertEqual(
                    [(one.number, one.task, one.context, one.question, one.prefix, one.answers,
                      one.tokens) for one in found.rows],
                    [(i, one["task"], one["context"], one["question"], one["answer_prefix"],
                      tuple(one["answer"]), 6) for i, one in enumerate(ROWS)])
                self.assertEqual(found.left_out, {})

    def test_turns_share_a_context_and_stand_behind_each_other(self):
        path = self.file({"context": "C. ", "multi_turns": [
            {"input": "One?", "answer": "1"}, {"input": "Two?", "answer": ["2", "two"]},
            {"input": "Three?", "answer": 3}]}, name="scbench_kv.jsonl")
        rows = benchmark.read_benchmark(path).rows
        self.assertEqual([one.answers for one in rows], [("1",), ("2", "two"), ("3",)])
        self.assertEqual([one.name for one in rows], ["0", "0.1", "0.2"])
        turns = [(one.role, one.text, one.compress_at) for one in rows[2].conversation("unknown").turns]
        self.assertEqual(turns, [("user", "C. One?", 3), ("assistant", "1", None), ("user", "Two?", None),
                                 ("assistant", "2", None), ("user", "Three?", None)])
        self.assertEqual(rows[2].conversation("known").turns[0].compress_at, 7)

    def test_rows_that_cannot_be_asked_are_counted_and_named(self):
        good = {"context": "c", "question": "q", "answer": "a"}
        found = benchmark.read_benchmark(self.file(
            good, {**good, "answer": []}, {**good, "answer": None}, {**good, "question": 7},
            {**good, "context": None}, {**good, "max_new_tokens": "many"}))
        self.assertEqual([one.number for one in found.rows], [0])
        self.assertEqual(found.left_out, {
            "without an answer": [1, 2], "without a question": [3], "without a context": [4],
            "with max_new_tokens that is no count": [5]})
        self.assertEqual(found.rows[0].tokens, benchmark.DEFAULT_TOKENS)

    def test_bad_files_are_one_line(self):
        for rows, said in (
                ([{"text": "c", "label": 1}], "no column context, question, answer: found text, label"),
                ([], "no rows"), ([{"context": "c", "question": "q", "answer": ""}], "none of 1 row ")):
            with self.subTest(said), self.assertRaisesRegex(Error, said):
                benchmark.read_benchmark(self.file(*rows))
        bad = self.folder / "bad.jsonl"
        bad.write_text('{"context": "c"')
        with self.assertRaisesRegex(Error, "bad.jsonl:1: not JSON"):
            benchmark.read_benchmark(bad)
        for kind in ("parquet", "arrow"):
            other = self.folder / f"bad.{kind}"
            other.write_bytes(b"no table")
            with self.subTest(kind), self.assertRaisesRegex(Error, f"bad.{kind}: cannot be read"):
                benchmark.read_benchmark(other)
        with self.assertRaisesRegex(Error, "no such file or folder"):
            benchmark.read_benchmark(self.folder / "nowhere.parquet")

    def test_a_share_of_the_rows_is_that_of_kvpress(self):
        rows = benchmark.read_benchmark(self.file(*(
            {"context": str(i), "question": "q", "answer": "a"} for i in range(50)))).rows
        chosen = [one.number for one in benchmark.sampled(rows, 0.3, 42)]
        frame = pandas.DataFrame({"row": range(50)}).sample(frac=0.3, random_state=42)
        self.assertEqual(chosen, sorted(frame.row))
        self.assertEqual(benchmark.sampled(rows, 1, 42), rows)


#: Rows with the columns that the sources' own loaders give: kvpress 0.5's evaluation, Xnhyacinth's
#: LongBench, microsoft's SCBench (2024). File's name, row, what becomes of it: task, answers, scorer.
LONGBENCH = {"context": "Passages. ", "question": "Who?", "answer_prefix": "Answer:", "answers": ["A", "B"],
             "all_classes": None, "language": "en", "_id": "x", "length": 5012, "max_new_tokens": 52}
LAYOUTS = [
    ("4096", {"context": "c ", "question": "q", "answer_prefix": "The", "answer": ["7", "8"],
              "task": "niah_multikey_1", "max_new_tokens": 128}, "niah_multikey_1", ["7", "8"], "string-all"),
    ("hotpotqa", {**LONGBENCH, "task": "hotpotqa"}, "hotpotqa", ["A", "B"], "f1"),
    ("trec", {**LONGBENCH, "task": "trec", "all_classes": ["A", "B"]}, "trec", ["A", "B"],
     "classification"),
    ("samsum", {**LONGBENCH, "task": "samsum"}, "samsum", ["A", "B"], "rouge-l-line"),
    ("hotpotqa_e", {**LONGBENCH, "task": "hotpotqa-e"}, "hotpotqa-e 4-8k", ["A", "B"], "f1"),
    ("longbench-v2", {"context": "c ", "question": "q (A) x (B) y", "answer": "B", "answer_prefix": "",
                      "difficulty": "easy", "length": "short", "max_new_tokens": 16},
     "longbench-v2", ["B"], "choice"),
    ("longdep_qa", {"context": "c ", "question": "q", "answer_prefix": "Answer: ", "answer": "By sea.",
                    "task": "longdep_qa", "max_new_tokens": 500}, "longdep_qa", ["By sea."], "rouge-l"),
    ("passkey", {"context": "c ", "question": "q", "answer_prefix": "The pass key is:", "answer": ["71432"],
                 "task": "passkey", "max_new_tokens": 20}, "passkey", ["71432"], "first-number"),
    ("dialogue", {"context": "c ", "question": "q", "answer_prefix": "likely", "answer": ["ACE", "SAM"],
                  "task": "longdialogue_qa_eng", "max_new_tokens": 20}, "longdialogue_qa_eng",
     ["ACE", "SAM"], "string-any"),
    ("scbench_kv", {"id": 1, "context": "{...}", "multi_turns": [{"input": "Key?", "answer": "v-1"}]},
     "scbench_kv", ["v-1"], "string-all"),
    ("scbench_choice_eng", {"id": 1, "context": "Book.", "multi_turns": [
        {"input": "Which?", "answer": "milk", "options": ["tea", "milk"]}]},
     "scbench_choice_eng", ["milk", "B"], "letter"),
    ("scbench_repoqa_and_kv", {"id": 1, "input": "Code.", "multi_turns": [
        {"input": "Key?", "answer": "v-1", "task": "scbench_kv"}]}, "scbench_kv", ["v-1"], "string-all"),
    ("essays", {"context": "c <book>", "needle": "The best thing is a park.", "needle_depth": 50,
                "question": "What?", "answer_prefix": "It is", "max_new_tokens": 50},
     "needle_in_haystack", ["The best thing is a park."], "rouge-l"),
    ("aime25", {"context": "Find x. ", "question": "", "answer_prefix": "", "answer": 70,
                "max_new_tokens": 32000}, "aime25", ["70"], "boxed"),
    ("math500", {"context": "", "question": "Find x.", "answer_prefix": "", "answer": "\\frac{1}{2}",
                 "max_new_tokens": 4000}, "math500", ["\\frac{1}{2}"], "boxed"),
]


class Layouts(unittest.TestCase):
    def test_files_of_every_known_benchmark(self):
        with tempfile.TemporaryDirectory() as place:
            for name, row, task, answers, scorer in LAYOUTS:
                path = Path(place) / f"{name}.parquet"
                pandas.DataFrame([row]).to_parquet(path)
                with self.subTest(name):
                    own, = benchmark.read_benchmark(path).rows
                    self.assertEqual((own.task, list(own.answers)), (task, answers))
                    self.assertEqual(scorer_of(own.task), scorer)
                    self.assertEqual(own.tokens, row.get("max_new_tokens", benchmark.DEFAULT_TOKENS))

    def test_turns_look_as_in_the_templates_of_their_source(self):
        with tempfile.TemporaryDirectory() as place:
            path = Path(place) / "scbench_choice_eng.jsonl"
            path.write_text(json.dumps({"context": "Book.", "multi_turns": [
                {"input": "Which?", "answer": "B", "options": ["tea", "milk"]}]}))
            own, = benchmark.read_benchmark(path).rows
        turn, = own.conversation("unknown").turns
        self.assertEqual((turn.text, turn.compress_at), ("Book.\n\nWhich?\nA. tea\nB. milk", 5))


class Scorers(unittest.TestCase):
    def score(self, name, answer, *answers, **more):
        return load_scorer(name)(answer, {"answers": list(answers), **more})

    def test_rules_by_hand(self):
        for name, answer, answers, expected in (
                ("exact", "The Tower.", ["tower"], 1), ("exact", "a tower here", ["tower"], 0),
                ("f1", "the old tower stands", ["tower stands tall"], 2 * 2 / (3 + 3)),
                ("f1", "nothing", ["x", "nothing"], 1),
                ("rouge-l", "the key is here", ["the spare key"], 2 * 2 / (4 + 3)),
                ("string-all", "\x07It is 17 and 4.", ["17", "23"], 0.5),
                ("string-any", "IT IS Paris", ["paris", "x"], 1), ("string-any", "Rome", ["paris"], 0),
                ("choice", "The correct answer is (C).", ["C"], 1),
                ("choice", "**B** because A", ["B"], 0), ("choice", "The answer is Apple", ["A"], 0),
                ("letter", "B or rather C\nD", ["C"], 1), ("letter", "A man", ["A"], 1),
                ("letter", "Coal", ["C"], 1), ("letter", "none", ["A"], 0),
                ("first-number", "It is 17, not 23", ["17"], 1), ("first-number", "It is 171", ["17"], 0),
                ("first-number", "3.50", ["3.5"], 1), ("first-number", "none", ["3"], 0),
                ("f1-line", "\nthe tower\nstands", ["tower"], 1), ("rouge-l-line", "", ["tower"], 0),
                ("number", "Paragraph 3, not 4", ["Paragraph 3"], 0.5), ("number", "none", ["3"], 0),
                ("boxed", r"so \boxed{3}, no \boxed{ 42 }", ["42"], 1), ("boxed", "42", ["42"], 0),
                ("boxed", r"\boxed{\frac{1}{2}}.", [r"\frac{1}{2}"], 1), ("boxed", r"\boxed{4", ["4"], 0),
                ("code", "# a comment\nx = 1\ny = 2", ["x = 1"], 1)):
            with self.subTest(name, answer=answer):
                self.assertAlmostEqual(self.score(name, answer, *answers), expected)
        classes = ["weather", "weather report", "sport"]
        self.assertEqual(self.score("classification", "weather report\nsport", "weather report",
                                    all_classes=classes), 1)
        self.assertEqual(self.score("classification", "sport, weather", "sport", all_classes=classes), 0.5)
        self.assertEqual(self.score("classification", "weather", "sport", all_classes=classes), 0)

    def test_known_benchmarks(self):
        for task, scorer in (("niah_multikey_2", "string-all"), ("qa_2", "string-any"),
                             ("hotpotqa_e", "f1"), ("lcc_e 0-4k", "code"), ("triviaqa", "f1-line"),
                             ("AIME25", "boxed"), ("scbench_kv", "string-all"), ("mine", None)):
            self.assertEqual(scorer_of(task), scorer, task)

    def test_a_function_of_the_user(self):
        with tempfile.TemporaryDirectory() as folder:
            own = Path(folder) / "own.py"
            own.write_text("def half(answer, row):\n    return 0.5 * (row['answers'] == ['a'])\n"
                           "def wrong(answer, row):\n    return 7\n"
                           "def fails(answer, row):\n    return row['nothing']\n")
            self.assertEqual(self.score(f"{own}:half", "x", "a"), 0.5)
            with self.assertRaisesRegex(Error, "found 7, expected a score from 0 to 1"):
                self.score(f"{own}:wrong", "x", "a")
            with self.assertRaisesRegex(Error, "own.py:6: .*fails: KeyError"):
                self.score(f"{own}:fails", "x", "a")
        with self.assertRaisesRegex(Error, "expected one of exact, f1"):
            load_scorer("accuracy")


class Intervals(unittest.TestCase):
    def test_without_clusters_it_is_wilsons(self):
        from scipy import stats

        score = np.array([1.0] * 14 + [0.0] * 6)
        low, high = benchmarks.wilson(score, np.arange(20))
        expected = stats.binomtest(14, 20).proportion_ci(0.95, "wilson")
        # The variance between 20 clusters of one has the factor 20/19.
        self.assertAlmostEqual(low, expected.low, delta=0.01)
        self.assertAlmostEqual(high, expected.high, delta=0.01)

    def test_questions_of_one_prompt_count_once(self):
        once = np.array([1.0, 0, 1, 1, 0, 1, 1, 1])
        low, high = benchmarks.wilson(np.repeat(once, 5), np.repeat(np.arange(8), 5))
        self.assertTrue(np.allclose((low, high), benchmarks.wilson(once, np.arange(8))))
        self.assertEqual(benchmarks.wilson(np.ones(4), np.arange(4))[1], 1)

    def test_it_covers(self):
        rng, inside, tries = np.random.default_rng(1), 0, 400
        for _ in range(tries):
            chance = rng.beta(6, 3, 40)
            prompt = np.repeat(np.arange(40), 4)
            low, high = benchmarks.wilson((rng.random(160) < chance[prompt]).astype(float), prompt)
            inside += low <= 6 / 9 <= high
        self.assertGreater(inside / tries, 0.92)


class WithModel(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        torch.set_num_threads(1)
        cls.tokenizer = tiny_models.make_tokenizer()
        torch.manual_seed(3)
        cls.model = transformers.AutoModelForCausalLM.from_config(
            tiny_models.configs(len(cls.tokenizer))["llama"]).eval()
        cls.place = tempfile.TemporaryDirectory()
        cls.addClassCleanup(cls.place.cleanup)
        cls.folder = Path(cls.place.name)
        cls.path = written(cls.folder)["parquet"]

    def study(self, name, **more):
        how = {"policies": ["snapkv,window=4", "streaming"], "budgets": ["0.2", "1.0"], "texts": None,
               "tasks": str(self.path), "probe": None, "threads": 1, "progress": False}
        return kvsim.study(self.model, out=self.folder / name, tokenizer=self.tokenizer, **how | more)

    def naive_answer(self, row):
        """Greedy answer of the model itself, without kvsim."""
        prompt = tokenize(self.tokenizer, render(self.tokenizer, row.conversation("unknown"),
                                                 self.tokenizer.chat_template is None))
        ids = prompt.ids
        for _ in range(row.tokens):
            with torch.inference_mode():
                ids = [*ids, int(self.model(torch.tensor([ids])).logits[0, -1].argmax())]
            if ids[-1] == self.tokenizer.eos_token_id:
                break
        return ids[len(prompt.ids):], prompt.prompt_len

    def test_answers_and_scores(self):
        found = self.study("all")
        table = benchmarks.outcomes(benchmarks.Folder(found.folder))
        self.assertEqual(len(table), len(ROWS) * 2 * 2)
        whole = table[table.budget == "1.0"]
        self.assertTrue(whole.same.all())
        self.assertTrue((whole.score == whole.full).all())
        lines = Lines(found.folder / "benchmarks" / "rows-unknown.jsonl").read()
        for line, row in zip(lines[1:], benchmark.read_benchmark(self.path).rows):
            tokens, prompt_len = self.naive_answer(row)
            tokens = [one for one in tokens if one != self.tokenizer.eos_token_id]
            self.assertEqual(line["full"], self.tokenizer.decode(tokens))
            self.assertEqual(line["prompt_tokens"], prompt_len)
            judge = SCORERS[scorer_of(row.task)]
            self.assertEqual(line["score"], judge(line["full"], row.asked()))
            for one in line["outcomes"]:
                self.assertEqual(one["score"], judge(one.get("text", line["full"]), row.asked()))
        scores = pandas.read_csv(found.folder / "scores.csv")
        every = scores[(scores.task == "all") & (scores.policy.str.startswith("streaming"))]
        self.assertEqual(list(every.questions), [4, 4])
        self.assertEqual(list(every.prompts), [3, 3])
        self.assertAlmostEqual(every[every.budget == 0.2].score.item(),
                               table[(table.budget == "0.2") & (
                                   table.policy.str.startswith("streaming"))].score.mean())
        tests = pandas.read_csv(found.folder / "score_tests.csv")
        self.assertEqual(len(tests), 2)
        self.assertIn("Benchmarks", found.page.read_text())

    def test_what_is_asked_is_not_asked_again_and_another_file_is_refused(self):
        found = self.study("twice", fraction=0.5)
        path = found.folder / "benchmarks" / "rows-unknown.jsonl"
        before = path.read_text()
        self.study("twice", fraction=0.5)
        self.assertEqual(path.read_text(), before)
        with self.assertRaisesRegex(kvsim.Error, r"made with fraction [\d.]+: found [\d.]+; expected the same"):
            self.study("twice")
        page.join([found.folder, found.folder], self.folder / "joined")
        self.assertEqual((self.folder / "joined" / "benchmarks" / "rows-unknown.jsonl").read_text(), before)

    def test_questions_about_one_prompt_share_what_was_captured(self):
        path = self.folder / "turns.jsonl"
        path.write_text("".join(json.dumps(one) + "\n" for one in (
            {"context": TALE.format(7), "max_new_tokens": 5, "multi_turns": [
                {"input": "How many boats?", "answer": "7"}, {"input": "And who came?", "answer": "boats"},
                {"input": "What was trimmed?", "answer": "the wick"}]},
            {"context": TALE.format(8), "max_new_tokens": 5, "multi_turns": [
                {"input": "How many?", "answer": "8"}]})))
        found = {}
        for way in ("shared", "alone"):
            with mock.patch.object(tasks, "captured", wraps=tasks.captured) as captured:
                def asked(*given, own=benchmarks.ask, way=way):
                    return own(*given[:-1], given[-1] if way == "shared" else [])

                with mock.patch.object(benchmarks, "ask", asked):
                    study = self.study(way, tasks=str(path), scorer="string-any")
            self.assertEqual(captured.call_count, {"shared": 2, "alone": 4}[way])
            found[way] = Lines(study.folder / "benchmarks" / "turns-unknown.jsonl").read()
        self.assertEqual(len(found["shared"]), 1 + 4)
        for one, other in zip(found["shared"], found["alone"]):
            for a, b in zip(one.get("outcomes", ()), other.get("outcomes", ())):
                self.assertAlmostEqual(a.pop("kl"), b.pop("kl"), places=5)
            self.assertEqual(one, other)

    def test_too_long_contexts_are_counted_and_the_others_asked(self):
        longest = self.model.config.max_position_embeddings
        self.model.config.max_position_embeddings = 200
        self.addCleanup(setattr, self.model.config, "max_position_embeddings", longest)
        path = self.folder / "long.jsonl"
        path.write_text("".join(json.dumps({**one, "context": one["context"] * times}) + "\n"
                                for one, times in zip(ROWS, (1, 9, 1, 9))))
        found = self.study("long", tasks=str(path), policies=["streaming"], budgets=["0.5"])
        self.assertEqual(len(Lines(found.folder / "benchmarks" / "long-unknown.jsonl").read()),
                         1 + 2)

    def test_unknown_tasks_need_a_scorer(self):
        path = self.folder / "mine.jsonl"
        path.write_text(json.dumps({"context": "c", "question": "q", "answer": "a"}) + "\n")
        with self.assertRaisesRegex(kvsim.UsageError, "no scorer is known for mine: name one by --scorer"):
            self.study("mine", tasks=str(path))
        for scorer, said in (("nonsense", "found nonsense, expected one of"),
                             (["other=f1", "exact"], "--scorer other=f1: no such task: found mine"),
                             (["mine=f1", "exact"], "--scorer exact: no task needs it")):
            with self.subTest(scorer), self.assertRaisesRegex(kvsim.UsageError, said):
                self.study("mine", tasks=str(path), scorer=scorer)
        found = self.study("mine", tasks=str(path), scorer="exact", question=["known", "unknown"],
                           policies=["streaming"], budgets=["1.0"])
        self.assertEqual(sorted(one.name for one in (found.folder / "benchmarks").iterdir()),
                         ["mine-known.jsonl", "mine-unknown.jsonl"])
        self.assertFalse(math.isnan(pandas.read_csv(found.folder / "scores.csv").score[0]))


class BesidePresses(unittest.TestCase):
    """Accuracy of `--tasks FILE` computed once more: kvpress's pipeline answers every question with its own
    presses, a prefill for each, and plain loops count."""

    PRESSES = {
        "knorm": kvpress.KnormPress, "keydiff": kvpress.KeyDiffPress, "cur": kvpress.CURPress,
        "tova": kvpress.TOVAPress, "streaming": kvpress.StreamingLLMPress,
        "expected-attention": kvpress.ExpectedAttentionPress,
        "snapkv,window=8": lambda compression_ratio: kvpress.SnapKVPress(compression_ratio, 8),
        "snapkv,window=16,kernel=3": lambda compression_ratio: kvpress.SnapKVPress(
            compression_ratio, 16, 3),
    }
    BUDGETS = ("0.25", "0.5", "0.75")
    LONGEST = 8

    def test_eight_presses_have_the_same_answers_and_accuracy(self):
        torch.set_num_threads(1)
        tokenizer = tiny_models.make_tokenizer()
        torch.manual_seed(11)
        model = transformers.AutoModelForCausalLM.from_config(
            tiny_models.configs(len(tokenizer))["llama"]).eval()
        pipeline = kvpress.KVPressTextGenerationPipeline(model=model, tokenizer=tokenizer)

        def asked(row, press=None):
            return pipeline(row["context"], question=row["question"], answer_prefix=row["answer_prefix"],
                            press=press, max_new_tokens=self.LONGEST)["answer"]

        rows = [{"context": TALE.format(count) * 3, "question": question, "answer_prefix": "There were",
                 "task": "niah_single_1", "max_new_tokens": self.LONGEST}
                for count in (12, 31, 47, 64) for question in ("How many boats?", "Who carried the oil?")]
        for row in rows:   # what the full cache writes is right, piece by piece: scores from 0 to 1
            row["answer"] = re.findall("[A-Za-z0-9]+", asked(row)) or ["nothing"]
        with tempfile.TemporaryDirectory() as place:
            path = Path(place) / "rows.jsonl"
            path.write_text("".join(json.dumps(one) + "\n" for one in rows))
            found = kvsim.study(
                model, texts=None, out=Path(place) / "study", tokenizer=tokenizer, tasks=str(path),
                policies=[f"{one},rounding=kvpress" for one in self.PRESSES], budgets=self.BUDGETS,
                probe=None, dtype="float32", threads=1, progress=False)
            scores = found.scores()
            lines = Lines(found.folder / "benchmarks" / "rows-unknown.jsonl").read()[1:]
        told = {(line["row"], one["policy"], one["budget"]): one.get("text", line["full"])
                for line in lines for one in line["outcomes"]}
        names = dict(zip(self.PRESSES, canonical_records(
            [f"{one},rounding=kvpress" for one in self.PRESSES])))
        seen = set()
        for name, press in self.PRESSES.items():
            for budget in self.BUDGETS:
                total = 0.0
                for number, row in enumerate(rows):
                    answer = asked(row, press(compression_ratio=1 - float(budget)))
                    self.assertEqual(told[str(number), names[name], budget].split(), answer.split(),
                                     (name, budget, number))
                    right = 0
                    for one in row["answer"]:
                        if one.lower() in answer.lower():
                            right += 1
                    total += right / len(row["answer"])
                ours = scores[(scores.policy == names[name]) & (scores.budget == budget)
                              & (scores.task == "all")].score.item()
                self.assertAlmostEqual(ours, total / len(rows), places=12, msg=(name, budget))
                seen.add(round(ours, 3))
        self.assertGreater(len(seen), 4)   # presses and budgets differ


if __name__ == "__main__":
    unittest.main()
