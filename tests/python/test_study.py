"""Tests of kvsim study on tiny models. Run: python tests/python/test_study.py

Needs data/requirements.txt and plots/requirements.txt; without them one line says so.
"""

import io
import os
import signal
import subprocess
import sys
import tempfile
import time
import unittest
from pathlib import Path
from unittest import mock

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "python"), str(ROOT / "tests" / "capture")]

import numpy as np
import pandas
import tiny_models
import torch
import transformers
from commands_here import run_here

import kvsim
from kvsim.bytes_for_loss import by_policy, least_cost
from kvsim.kvtrace.closed_loop import ClosedLoop
from kvsim.kvtrace.model import LoadedModel
from kvsim.plain import csv_text
from kvsim.program import find_program
from kvsim.studies import api, command, page, plan, run, sources, table
from kvsim.studies.folder import COLUMNS, TABLES, Folder

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

    def save_model(self):
        self.model.save_pretrained(self.folder / "model")
        self.tokenizer.save_pretrained(self.folder / "model")

    def command(self, *words, code=0):
        """What a command prints and says where the texts lie."""
        done = run_here(*words, folder=self.folder)
        self.assertEqual(done.returncode, code, done.stderr)
        return done.stdout, done.stderr

    def study(self, out="out", model=None, texts=None, **changes):
        return api.study(model or self.model, texts or [self.texts], self.folder / out,
                         tokenizer=self.tokenizer, **{**SMALL, **changes})


class Runs(WithTexts):
    def joined(self, folders, out):
        page.join(folders, out)
        return api.opened(out)

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

        with mock.patch.object(kvsim.progress.Progress, "show", lambda self, share, *_: stop(0, share)):
            with self.assertRaises(KeyboardInterrupt):
                self.study("stopped")
        again = self.study("stopped")
        columns = [one for one in COLUMNS if one != "model"]
        pandas.testing.assert_frame_equal(again.losses[columns], whole.losses[columns])

    def test_a_study_that_stopped_between_a_trace_and_what_is_known_of_it_goes_on(self):
        whole = self.study("whole")

        def stop(path, _):
            self.assertEqual(path.name, "story0.json")
            raise OSError("no space")

        with mock.patch.object(run, "write_text", stop), self.assertRaises(OSError):
            self.study("stopped")
        self.assertTrue((self.folder / "stopped" / "traces" / "story0.h5").is_file())
        again = self.study("stopped")
        columns = [one for one in COLUMNS if one != "model"]
        pandas.testing.assert_frame_equal(again.losses[columns], whole.losses[columns])

    def test_a_study_that_is_killed_goes_on(self):
        """SIGKILL as soon as the first text is finished."""
        self.save_model()
        words = [find_program(), "study", "--model", "model", "--texts", "stories",
                 "--prompt-tokens", "96", "--steps", "12", "--policy", "snapkv,window=4",
                 "--policy", "streaming", "--budget", "0.2,0.4", "--threads", "1", "-q", "-o"]

        killed = subprocess.Popen([*words, "killed"], cwd=self.folder, start_new_session=True)
        texts = self.folder / "killed" / "texts"
        while not (texts / "story0.1.loop.nc").exists():
            self.assertIsNone(killed.poll())
            time.sleep(0.005)
        os.killpg(killed.pid, signal.SIGKILL)
        killed.wait()
        self.assertFalse((texts / "story1.1.loop.nc").exists())
        before = {path.name: path.stat().st_mtime_ns for path in texts.glob("story0.*")}
        (texts / ".story1.1.nc.1.partial").write_text("half of a file")
        for folder in ("killed", "whole"):
            subprocess.run([*words, folder], cwd=self.folder, check=True)
        self.assertEqual(before, {path.name: path.stat().st_mtime_ns
                                  for path in texts.glob("story0.*")})
        for one in ("losses.csv", "leaderboard.csv", "texts.csv", "leaderboard_bytes.csv"):
            self.assertEqual(*((self.folder / folder / one).read_bytes()
                               for folder in ("killed", "whole")))
        self.assertEqual([one.name for one in texts.glob(".*")], [])
        self.assertFalse((self.folder / "killed" / "traces").exists())

    def test_two_runs_do_not_work_in_one_folder(self):
        with Folder(self.folder / "out").at_work():
            with self.assertRaisesRegex(kvsim.UsageError, "out: another process works here"):
                self.study()

    def test_shards_work_beside_each_other_and_the_whole_alone(self):
        folder = Folder(self.folder / "shared")
        with folder.at_work((1, 2)), folder.at_work((2, 2)):
            for shard in ((2, 2), None):
                with self.assertRaisesRegex(kvsim.UsageError, "shared: another process works here"):
                    with folder.at_work(shard):
                        pass
        with folder.at_work():
            with self.assertRaisesRegex(kvsim.UsageError, "shared: another process works here"):
                with folder.at_work((1, 2)):
                    pass

    def test_a_text_that_cannot_be_run_is_named_and_the_others_are_not_lost(self):
        (self.texts / "short.txt").write_text("Too short.")
        with mock.patch("sys.stderr", io.StringIO()) as said:
            found = self.study()
        self.assertEqual(found.failed, 1)
        self.assertIn("short left out:", said.getvalue())
        self.assertIn("expected at least 76 (a prompt of 64 and --steps)", said.getvalue())
        self.assertEqual(set(found.losses.text), {"story0", "story1"})

    def test_a_policy_that_the_model_cannot_serve_is_named_and_the_texts_run(self):
        with mock.patch("sys.stderr", io.StringIO()) as said:
            found = self.study(policies=["snapkv,window=4", "laq"])
        self.assertEqual(found.failed, 0)
        self.assertRegex(said.getvalue(), "(?m)^kvsim study: laq left out of 2 texts: .*probe")
        self.assertEqual(set(found.losses.policy), {"snapkv,window=4"})
        self.assertEqual(set(found.losses.text), {"story0", "story1"})
        with mock.patch("kvsim.studies.run.capture", side_effect=AssertionError):   # nothing is left
            self.assertEqual(self.study(policies=["snapkv,window=4", "laq"]).failed, 0)

    def test_every_family_is_studied(self):
        for family in tiny_models.configs(len(self.tokenizer)):
            if family == "qwen3_next":   # its cache wants a layer of linear attention
                continue
            with self.subTest(family=family):
                found = self.study(family, load(family, self.tokenizer),
                                   [self.texts / "story0.txt"], budgets=[0.3],
                                   policies=["kvzip", "convex", "h2o:official"])
                self.assertEqual(found.failed, 0)
                self.assertTrue(np.isfinite(found.losses.kl).all())
                self.assertTrue((found.losses.kl > 0).all())

    def test_a_text_longer_than_the_window_of_all_layers_is_named(self):
        model = load("mistral", self.tokenizer)
        model.config.sliding_window = 24
        with mock.patch("sys.stderr", io.StringIO()) as said:
            with self.assertRaisesRegex(kvsim.DataError, "no text and no task could be run"):
                self.study(model=model)
        self.assertIn("found only layers with a sliding window shorter than the trace: 0, 1, 2, 3",
                      said.getvalue())

    def test_policies_that_compress_while_the_model_answers_at_length(self):
        """1100 tokens, and the loss beside the model's own with the mask of sinks and the newest."""
        policy, budget = "streaming,schedule=decode", 100
        (self.folder / "ledger.prompt.txt").write_text(f'<turn role="user">{story(9)}</turn>')
        (self.folder / "ledger.answer.txt").write_text("".join(map(story, range(6))))
        found = self.study(texts=[self.folder / "ledger.prompt.txt"], steps=1100, budgets=[budget],
                           policies=[policy, "r-kv", "snapkv,window=4"], keep_traces=True)
        own = found.losses.set_index("policy")
        self.assertEqual(set(own.later_tokens), {1100})
        with kvsim.Trace(self.folder / "out" / "traces" / "ledger.h5") as trace:
            ids, n = torch.tensor(trace.tokens.astype("int64"))[None], trace.prompt_len
        at = torch.arange(ids.shape[1])
        newest = (at[:, None] < n) | (at[None] < 4) | (at[None] > at[:, None] - budget + 4 - 1)
        seen = (at[None] <= at[:, None]) & newest
        bias = torch.zeros(seen.shape).masked_fill(~seen, torch.finfo(torch.float32).min)
        with torch.inference_mode():
            full, cut = (self.model(ids, **mask).logits[0, n:].double().log_softmax(-1)
                         for mask in ({}, {"attention_mask": bias[None, None]}))
        kl = (full.exp() * (full - cut)).sum(-1).mean().item()
        self.assertAlmostEqual(own.kl[policy], kl, delta=1e-3 * kl)
        total = n + 1100
        self.assertAlmostEqual(own.peak[policy], (budget + 1) / total, delta=0.002)
        self.assertAlmostEqual(own.peak["snapkv,window=4"], (budget + 1100) / total, delta=0.002)
        self.assertEqual(table.held(found.losses), "peak")
        page = found.page.read_text("utf-8")   # at 100 entries snapkv holds the whole answer beside them
        self.assertRegex(page, "loses least with .*streaming,schedule=decode.* of the bytes")

    def test_studies_are_joined(self):
        one = self.study("a", texts=[self.texts / "story0.txt"])
        other = self.study("b", texts=[self.texts / "story1.txt"])
        both = self.joined([one.folder, other.folder], self.folder / "both")
        apart = pandas.concat([one.losses, other.losses], ignore_index=True)
        pandas.testing.assert_frame_equal(both.losses.reset_index(drop=True), apart)
        again = self.joined([one.folder, other.folder], self.folder / "both")
        self.assertEqual(len(again.losses), len(apart))   # nothing twice
        model = load("qwen3", self.tokenizer)
        model.name_or_path = "tiny/qwen"
        third = self.study("c", model, [self.texts / "story0.txt"])
        models = self.joined([one.folder, third.folder], self.folder / "models")
        self.assertEqual(len(set(models.losses.model)), 2)
        self.assertIn("tiny/qwen", (self.folder / "models" / "index.html").read_text("utf-8"))
        fewer = self.study("d", budgets=[0.2])
        with self.assertRaisesRegex(kvsim.DataError, "budgets"):
            self.joined([one.folder, fewer.folder], self.folder / "wrong")

    def test_the_command_and_its_plan(self):
        self.save_model()
        words = ["study", "--model", "model", "--texts", "stories", "--prompt-tokens", "96", "--steps", "12",
                 "--policy", "snapkv,window=4", "--policy", "streaming", "--budget", "0.2", "--threads", "1"]

        def command(*more, code=0):
            return "".join(self.command(*words, *more, code=code))

        said = command("--plan")
        self.assertIn("2 texts, 2 policies, 1 budget: 4 runs of the model, 4 of them left", said)
        self.assertRegex(said, r"about \d+ s on cpu, where others take as long as what was tried now "
                               r"\(story0: capture [\d.]+ s, replay [\d.]+ s, a policy and budget [\d.]+ s\)")
        self.assertFalse((self.folder / "study").exists())
        said = subprocess.run([find_program(), *words, "-o", "study"], cwd=self.folder, capture_output=True, text=True,
                              check=True).stdout
        self.assertIn("relative to snapkv,window=4, geometric mean", said)
        self.assertIn("4 runs of the model, 0 of them left", command("--plan", "-o", "study"))
        page = (self.folder / "study" / "index.html").read_text("utf-8")
        self.assertIn("default-src 'none'", page)
        self.assertIn("The least bytes for a loss of 0.02 nats", page)
        least = pandas.read_csv(self.folder / "study" / "least_bytes.csv")
        self.assertEqual((len(least), set(least.texts)), (2, {2}))
        self.assertNotIn("<script", page)
        self.assertIn("expected builtin, a file", command("--texts", "gone.txt", "-o", "x", code=2))
        self.assertIn("did you mean snapkv?", command("--policy", "snapkw", "-o", "x", code=2))
        self.assertIn("such as snapkv,quantize=per-token", command("--policy", "per-token", "-o", "x", code=2))
        for folder in ("stories/story0.txt", "/proc/none"):
            self.assertIn(f"-o {folder}: no folder that can be written",
                          command("-o", folder, code=2))
        for name in ("tokenizer.json", "tokenizer_config.json"):
            (self.folder / "model" / name).unlink()
        self.assertIn("its tokenizer knows no words", command("-o", "x", code=3))

    def test_a_plan_tries_all_kinds_of_policies_and_names_those_that_cannot_run(self):
        settings = command.settled(command.parser().parse_args([
            "--policy=snapkv,window=4", "--policy=laq", "--policy=keepkv,window=4", "--budget=0.2,0.5",
            "--prompt-tokens=96", "--steps=12", "--threads=1"]))
        one, = sources.sources([self.texts / "story0.txt"])
        with mock.patch.object(plan, "close_loop", side_effect=run.close_loop) as loops, \
                mock.patch.object(ClosedLoop, "losses", autospec=True,
                                  side_effect=ClosedLoop.losses) as losses:
            *seconds, refused = plan.of_text(
                one, LoadedModel(self.model, self.tokenizer, "tiny", "tiny"), settings, settings.policies)
        self.assertEqual(list(refused), ["laq"])
        self.assertGreater(min(seconds), 0)
        self.assertEqual((loops.call_count, losses.call_count), (1, 2))   # keepkv; snapkv and keepkv

    def test_a_full_disk_is_said_and_leaves_nothing(self):
        full = os.statvfs_result((4096, 4096, 10**6, 258, 258, 10, 10, 10, 0, 255))   # 1.1 MB
        with mock.patch("sys.stderr", io.StringIO()) as said, \
                mock.patch("os.statvfs", return_value=full):
            with self.assertRaisesRegex(kvsim.DataError, "no text"):
                self.study(model=load("qwen3", self.tokenizer), prompt_tokens=400, steps=100)
        self.assertRegex(said.getvalue(), r"story1.h5: the disk is full: found 1\.06 MB free, expected")
        self.assertEqual(list((self.folder / "out").rglob("*.h5*")), [])


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

    def test_nobody_who_holds_more_is_recommended(self):
        rows = [{"model": "m", "text": f"t{k}", "category": "c", "prompt_tokens": 64, "later_tokens": 9,
                 "policy": policy, "budget": "0.1", "bytes": held, "peak": (64 * held + 9) / 73, "kl": loss,
                 "top1": 1.0}
                for k in range(4) for policy, held, loss in (
                    ("snapkv", 6 / 64, 0.2), ("h2o", 6 / 64, 0.1), ("duo", 0.8, 0.01))]
        losses = pandas.DataFrame(rows)
        board = table.leaderboard(losses, "snapkv")
        self.assertEqual(set(table.competing(board).policy), {"snapkv", "h2o"})
        self.assertEqual(table.least_first(board), ["h2o", "snapkv", "duo"])
        listed = pandas.DataFrame(columns=list(TABLES["texts.csv"]))
        with tempfile.TemporaryDirectory() as place, mock.patch.multiple(
                Folder, losses=lambda _: losses, listed=lambda _: listed, worst_steps=lambda *_: iter(())):
            text = page.write(Folder(place))["index.html"].read_text("utf-8")
        text = text[: text.index("<svg")]
        self.assertTrue(text.startswith("<!doctype html>"))
        self.assertIn("m loses least with <b><code>h2o</code></b> at 0.1 (0.50).", text)
        self.assertRegex(text, 'class="best" title="[^"]*">0.50')
        self.assertIn("0.05&gt;", text)
        self.assertIn("<p>4 texts; loss is the KL divergence", text)

    def test_the_least_bytes_are_on_lines_in_logarithms_and_their_median_counts(self):
        # Loss falls from 1 to 0.01 where bytes rise from 0.1 to 0.4: 0.1 lies halfway.
        self.assertAlmostEqual(least_cost([0.4, 0.1], [0.01, 1.0], 0.1), 0.2)
        self.assertEqual(least_cost([0.1, 0.2, 0.3], [0.5, 0.7, 0.5], 0.5), 0.1)
        self.assertEqual(least_cost([0.1, 0.2], [0.5, 0.0], 0.1), 0.2)
        self.assertTrue(np.isnan(least_cost([0.1, 0.2], [0.5, np.nan], 0.1)))
        rows = [{"model": "m", "text": f"t{t}", "policy": "own", "budget": budget, "kl": kl,
                 "bytes": held} for t, losses in enumerate(([1, 0.01], [0.05, 0.01], [1, 0.5]))
                for budget, kl, held in zip(("0.1", "0.4"), losses, (0.1, 0.4))]
        found = by_policy(pandas.DataFrame(rows), 0.1).iloc[0]
        self.assertAlmostEqual(found.bytes, 0.2)   # of 0.2, 0.1 and never
        self.assertEqual((found.reached, found.texts), (2, 3))
        self.assertTrue(np.isnan(by_policy(pandas.DataFrame(rows), 0.005).bytes[0]))

    def test_a_table_holds_no_formulas(self):
        text = csv_text(pandas.DataFrame({"text": ["=1+1", "plain"], "kl": [0.5, -0.5]}))
        self.assertEqual(text, "text,kl\n'=1+1,0.5\nplain,-0.5\n")

    def test_budgets_are_in_the_order_of_their_size(self):
        self.assertEqual(sorted(["0.5", "10%", "0.2"], key=table.budget_key), ["10%", "0.2", "0.5"])


    def test_at_equal_bytes_a_loss_is_interpolated_between_a_policys_own_points(self):
        bytes_of = {"kvzip": {"0.1": 0.1, "0.4": 0.4}, "wide": {"0.1": 0.2, "0.4": 0.8}}
        rows = [{"model": "m", "text": f"t{t}", "category": "a", "policy": policy, "budget": budget,
                 "bytes": share, "peak": (share * 90 + 10) / 100, "prompt_tokens": 90,
                 "later_tokens": 10, "kl": 0.01 * (1 + t) / share**2, "top1": 1 - share}
                for policy, of in bytes_of.items() for budget, share in of.items() for t in range(2)]
        losses = pandas.DataFrame(rows)
        self.assertEqual(table.held(losses), "bytes")
        found = table.at_bytes(losses, "kvzip").set_index(["policy", "budget", "text"])
        self.assertEqual(set(found.index.get_level_values("budget")), {"0.1", "0.4"})
        self.assertNotIn(("wide", "0.1"), found.index.droplevel("text"))   # it never held so few
        self.assertAlmostEqual(found.kl["wide", "0.4", "t1"], 0.02 / 0.4**2)   # a power law is a line
        self.assertAlmostEqual(found.top1["wide", "0.4", "t0"], 0.5)   # halfway in logarithms
        board = table.leaderboard(found.reset_index(), "kvzip").set_index(["policy", "budget"])
        self.assertAlmostEqual(board.relative["wide", "0.4"], 1)
        losses.loc[losses.text == "t1", "bytes"] *= 1.5   # each text at its own shares
        losses["peak"] = (losses.bytes * 90 + 10) / 100
        found = table.at_bytes(losses, "kvzip").set_index(["policy", "budget", "text"])
        self.assertAlmostEqual(found.kl["wide", "0.5", "t1"], 0.02 / 0.4**2)
        self.assertAlmostEqual(found.bytes["wide", "0.5", "t1"], 0.6)
        losses.loc[0, "peak"] = 0.1
        self.assertEqual(table.held(losses), "peak")


class Texts(WithTexts):
    def test_where_texts_come_from_is_said(self):
        found = self.study(texts=[self.texts / "story0.txt", self.texts / "story1.txt"], policies=["streaming"])
        self.assertEqual(found.failed, 0)
        listed = pandas.read_csv(found.folder / "texts.csv").set_index("text")
        self.assertEqual(listed.origin["story0"], str(self.texts / "story0.txt"))
        page = found.page.read_text("utf-8")
        for row in listed.itertuples():
            self.assertIn(f'<td class="text">{row.origin}</td><td><code>{row.sha256[:12]}</code></td>',
                          page)
        boards = pandas.read_csv(found.folder / "categories.csv")
        self.assertEqual(set(boards.category), {"stories"})

    def test_what_words_name(self):
        skipped = []
        (self.texts / "picture.png").write_bytes(b"\x89PNG\xff\xfe\xfa")
        (self.texts / "zeros").write_bytes(bytes(64))
        (self.texts / "chat.prompt.txt").write_text('<turn role="user">Which harbour?</turn>')
        (self.texts / "chat.answer.txt").write_text("The one of the keeper.")
        (self.texts / "story1.answer.txt").write_text("\nThe end.")
        found = sources.sources([self.texts, "builtin", self.texts / "story0.txt"], skipped.append)
        self.assertEqual([one.name for one in skipped], ["picture.png", "zeros"])
        self.assertEqual([one.name for one in found], ["chat", "story0", "story1", *sources.BUILTIN])
        self.assertEqual([one.category for one in found[2:4]], ["stories", sources.LIBRARY])
        chat = sources.passage(found[0].path, self.tokenizer, 96, 12)
        self.assertEqual((chat.answer, chat.raw), ("The one of the keeper.", False))
        told = sources.passage(found[2].path, self.tokenizer, 96, 12)
        self.assertEqual((told.conversation.turns[0].text, told.answer, told.raw), (story(1).strip(), "\nThe end.", True))
        library = sources.passage(found[-1].path, self.tokenizer, 96, 12)
        self.assertTrue(found[-1].path.read_text().startswith(library.conversation.turns[0].text))
        for word in ("gone", "gone-3"):
            with self.assertRaisesRegex(kvsim.Error, f"found {word}"):
                sources.sources([word])

    def test_a_file_is_cut_where_its_tokens_say(self):
        source, = sources.sources([self.texts / "story0.txt"])
        cut = sources.passage(source.path, self.tokenizer, 96, 12)
        prompt = cut.conversation.turns[0].text
        self.assertTrue(story(0).strip().startswith(prompt + cut.answer[:20]))
        self.assertEqual(len(self.tokenizer(prompt)["input_ids"]), 96)

    def test_names_cannot_leave_the_folder(self):
        (self.texts / "..; rm -rf.txt").write_text(story(3))
        for one in sources.sources([self.texts]):
            self.assertRegex(one.name, r"^[\w.-]+$")
            self.assertNotIn("/", one.name)


if __name__ == "__main__":
    unittest.main()
