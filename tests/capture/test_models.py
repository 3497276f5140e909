"""Do families of models end as the page of models says?

One family of each kind of fault, of those in docs/models.md; tests/capture/model_matrix.py runs all.
Run: python3 tests/capture/test_models.py
"""

import contextlib
import io
import sys
import tempfile
import unittest
from pathlib import Path

import h5py
import numpy as np
import torch
import transformers

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parents[1] / "python")]

import families
import model_matrix
import tiny_models
from kvsim.kvtrace import capture_command, layers, record
from kvsim.kvtrace.capture import CaptureOptions, capture_trace
from kvsim.kvtrace.closed_loop import ClosedLoop
from kvsim.errors import Error
from kvsim.kvtrace.kept_sets import ResultsFile
from kvsim.kvtrace.model import load_model
from kvsim.kvtrace.model_check import check_model, check_tokens
from kvsim.kvtrace.prompt import TokenizedPrompt
from kvsim.program import run

PAGE = HERE.parents[1] / "docs" / "models.md"
# What each stands for.
SAMPLE = {
    "llama": "plain", "glm": "a part of a head turns, neighbours in pairs",
    "smollm3": "layers without positions", "deepseek_v3": "keys of a latent cache",
    "opt": "learned positions", "whisper": "no position_ids, two attentions with one layer_idx",
    "jamba": "recurrent layers", "lfm2_moe": "convolutions",
    "mllama": "cross attention that does not run", "gemma3_text": "two kinds of rotation, norms",
    "qwen3_next": "a gate", "granite": "multipliers", "minimax": "a normed stream",
    "mamba": "no attention", "bloom": "attention of its own",
    "gemma3n_text": "caches of other layers", "longcat_flash": "two attentions in a layer",
    "glm_moe_dsa": "sparse attention", "gpt2": "a projection that is transposed",
}  # fmt: skip


class EveryKind(unittest.TestCase):
    def test_families_end_as_the_page_says(self):
        version, tokenizer = model_matrix.quiet()
        said = model_matrix.read_page(PAGE).get(version, {})
        for family, kind in SAMPLE.items():
            with self.subTest(family=family, kind=kind):
                word, why = model_matrix.judge(family, tokenizer)
                self.assertIn(word, ("right", "in part", "refused"), why)
                self.assertNotIn("\n", why)
                if said:
                    self.assertEqual(word, said[family], why)

    def test_page_has_every_family_of_its_versions_and_none_is_wrong(self):
        page = model_matrix.read_page(PAGE)
        self.assertGreaterEqual(len(page), 2)
        for version, words in page.items():
            self.assertGreater(len(words), 100, version)
            self.assertLessEqual(set(words.values()), set(model_matrix.WORDS))
            self.assertFalse({"wrong", "traceback"} & set(words.values()), version)
        if (installed := page.get(transformers.__version__)) is not None:
            self.assertEqual(sorted(installed), families.families())


class Refusals(unittest.TestCase):
    def refused(self, model) -> str:
        with self.assertRaises(Error) as raised:
            layers.find_attention_layers(model)
        return str(raised.exception)

    def test_an_encoder_with_a_decoder_is_refused(self):
        config = transformers.T5Config(vocab_size=340, d_model=32, d_kv=8, d_ff=48, num_layers=2,
                                       num_heads=4)
        said = self.refused(transformers.T5ForConditionalGeneration(config))
        self.assertIn("T5ForConditionalGeneration: is an encoder and a decoder", said)

    def test_a_model_that_asks_for_the_name_of_its_attention_must_do_the_same_under_any(self):
        import types

        model = families.build("llama")
        self.assertFalse(record.asks_for_name(model))
        inner = type(model).forward

        class Asking(type(model)):
            """Attends to other tokens where its attention is named as it was made."""

            def forward(self, input_ids=None, **kwargs):
                if self.config._attn_implementation in ("eager", "sdpa"):
                    input_ids = input_ids.flip(1)
                return inner(self, input_ids=input_ids, **kwargs)

        model.__class__ = Asking
        self.assertTrue(record.asks_for_name(model))
        recorder = types.SimpleNamespace(model=model, tolerance=1e-3)
        recorder.last_logits = inner(
            model, input_ids=torch.tensor([[5, 6, 7, 8]]), logits_to_keep=1).logits[0, -1]
        with self.assertRaisesRegex(Error, "Asking: asks for the name of its attention"):
            record.Recorder.refuse_other_model(recorder, [5, 6, 7, 8])

    def test_what_a_forward_raises_is_one_line(self):
        model = families.build("llama")
        with self.assertRaises(Error) as raised, record.running(model):
            raise AttributeError("'Model' object has no attribute 'rotary_emb'\nmore")
        self.assertEqual(str(raised.exception), "LlamaForCausalLM: its forward ends in "
                         "AttributeError: 'Model' object has no attribute 'rotary_emb'")


class CheckOption(unittest.TestCase):
    def check(self, family: str) -> tuple[int, str]:
        tokenizer = tiny_models.make_tokenizer()
        model = families.build(family)
        out, err = io.StringIO(), io.StringIO()
        with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(out), \
                contextlib.redirect_stderr(err):
            model.save_pretrained(folder)
            tokenizer.save_pretrained(folder)
            before = sorted(Path(folder).iterdir())
            code = capture_command.main(["--check", folder])
            self.assertEqual(sorted(Path(folder).iterdir()), before)
        return code, out.getvalue() + err.getvalue()

    def test_right_one(self):
        code, said = self.check("llama")
        self.assertEqual(code, 0, said)
        self.assertRegex(said, r"residual error: differs from the model's own by \d")
        self.assertRegex(said, r"closed loop: differs from the model's own by \d")
        self.assertRegex(said.splitlines()[-1], r": right$")

    def test_refused_one_says_why(self):
        code, said = self.check("mamba")
        self.assertEqual(code, 1, said)
        self.assertIn(": refused: MambaForCausalLM: no attention that can be listened to: MambaMixer "
                      "goes past transformers' ALL_ATTENTION_FUNCTIONS", said)


class RealGemma(unittest.TestCase):
    """Gemma 3 270M: norms behind W_O, two kinds of rotation and windows, with weights that were
    trained."""

    POLICIES = ("random", "streaming", "knorm", "tova", "snapkv", "h2o", "rehearsal:recent")

    def test_it_is_right_and_stream_error_orders_policies_as_the_loss_does(self):
        loaded = load_model("gemma3-270m", None, "float32", "cpu", 1)
        ids, n = check_tokens(loaded.tokenizer)
        verdict = check_model(loaded, ids, n)
        self.assertEqual(verdict.word, "right", verdict.why())
        self.assertLess(verdict.parts["residual error"], 1e-3)
        with tempfile.TemporaryDirectory() as folder:
            trace, results = Path(folder) / "trace.h5", Path(folder) / "results.nc"
            capture_trace(loaded, None, CaptureOptions(dtype="float32"), trace,
                          tokens=(ids, TokenizedPrompt(ids, n, [], n), 0))
            run(["replay", str(trace), "-o", str(results), "--budget", "0.3", "--save-keep", "-q",
                 *(word for one in self.POLICIES for word in ("--policy", one))], progress=False)
            with ResultsFile(results) as file, ClosedLoop(loaded.model, ids, n) as loop:
                caches = [file.sets(policy, 0) for policy in range(len(self.POLICIES))]
                losses = [np.mean(one["kl_divergence"]) for one in loop.losses(caches)]
            with h5py.File(results) as file:
                errors = file["stream_error_rms"][:, 0]
        place = [np.argsort(np.argsort(one)) for one in (errors, losses)]
        self.assertGreater(np.corrcoef(*place)[0, 1], 0.75, (errors, losses))


if __name__ == "__main__":
    unittest.main()
