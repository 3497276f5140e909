"""Tests of kvsim.press and kvsim.CompactCache on a tiny model. Run: python tests/python/test_live_press.py

Needs kvpress, and what tests/python/test_model.py needs; else one line says so.
"""

import gc
import os
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path
from unittest import mock

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "python"), str(ROOT / "tests" / "capture")]

import kvpress  # noqa: F401  (its import patches attention and registers its pipeline)
import numpy as np
import tiny_models
import torch
import transformers
import xarray  # noqa: F401

import kvsim
from kvsim.kvtrace.closed_loop import ClosedLoop
from kvsim.kvtrace.kept_sets import KeptSets

torch.set_num_threads(1)
RATIO, BUDGET = 0.7, 0.3
STEPS = 10
TEXT = "What did the keeper carry up the steps, and who trimmed the wick? " * 4


def by_value(layer):
    """Long values; a function of the prompt as users write them."""
    return np.linalg.norm(layer.values.astype("float32"), axis=2)


# By norm, place, chance; window, whole prompt; heads that compete in a layer and in all; layers of
# their own budgets; chunks; protected entries; the model's rotation; the prompt read again; shapes
# that engines hold.
RECORDS = [
    "random", "streaming", "streaming,rounding=kvpress", "lm-infinite", "knorm", "keydiff", "lagkv", "h2o",
    "tova", "snapkv,window=8", "snapkv,rounding=kvpress,window=8", "pyramidkv,window=8", "adakv,window=8",
    "cake,window=8", "criticalkv,rounding=kvpress,window=8", "vatp", "defensivekv,window=8",
    "layer-defensivekv,window=8", "expected-attention", "expected-attention:joint", "rehearsal",
    "rehearsal:recent", "rehearsal:reread", "kvzip", "kvzip:uniform", "kvzip-plus", "cur,rounding=kvpress",
    "kvcompose", "rehearsal:reread-count", "kvzip:set", "rehearsal:recent-set,block=4",
    by_value, kvsim.Policy(by_value, allocate="joint", sinks=2),
]


# Captures, closed loops and presses of one process, before kvpress is imported and after.
ANY_ORDER = """
import sys
import tiny_models, torch, transformers
import kvsim
tokenizer = tiny_models.make_tokenizer()
model = transformers.LlamaForCausalLM(transformers.LlamaConfig(
    vocab_size=len(tokenizer), intermediate_size=48, num_hidden_layers=4, hidden_size=48,
    num_attention_heads=4, num_key_value_heads=2, head_dim=128, pad_token_id=0, bos_token_id=None,
    eos_token_id=2)).eval()
text = "What did the keeper carry up the steps? " * 6
prompt = tokenizer(text, return_tensors="pt").input_ids
def loss():
    trace = kvsim.capture(model, tokenizer, text, steps=6, ignore_end=True, dtype="float32")
    kept = kvsim.replay(trace, "knorm", 0.4, save_keep=True, threads=1)
    return float(kvsim.closed_loop(model, kept).kl_divergence_mean.values.ravel()[0])
found = [loss()]
assert "kvpress" not in sys.modules
import kvpress
found.append(loss())
for cache in (None, kvsim.CompactCache(model)):
    press = kvsim.press("knorm", 0.6, dtype="float32", threads=1)
    with press(model):
        given = {} if cache is None else kvsim.kvtrace.layers.with_cache(model, cache)
        written = model.generate(prompt, max_new_tokens=6, do_sample=False, **given)
    assert len(press.kept) == 4 and all(one.any() and not one.all() for one in press.kept.values())
    assert written.shape[1] > prompt.shape[1]
    found.append(loss())
assert max(found) - min(found) < 1e-9 and found[0] > 0, found
"""


class Live(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        torch.manual_seed(0)
        cls.tokenizer = tiny_models.make_tokenizer()
        # kvpress hides dropped entries behind a key that all queries of a head look away from: in
        # 8 dimensions there is none.
        config = transformers.LlamaConfig(
            vocab_size=len(cls.tokenizer), intermediate_size=48, num_hidden_layers=4,
            hidden_size=48, num_attention_heads=4, num_key_value_heads=2, head_dim=128,
            pad_token_id=0, bos_token_id=None, eos_token_id=2)
        cls.model = transformers.LlamaForCausalLM(config).eval()
        cls.trace = kvsim.capture(cls.model, cls.tokenizer, [{"role": "user", "content": TEXT}],
                                  steps=STEPS, ignore_end=True, dtype="float32", probes=["repeat"])
        cls.ids = [int(one) for one in cls.trace.tokens]
        cls.n = cls.trace.prompt_len

    def press(self, policy, **given):
        return kvsim.press(policy, RATIO, **{"tokenizer": self.tokenizer, "dtype": "float32",
                                             "threads": 1, **given})

    def prompt(self):
        return torch.tensor([self.ids[:self.n]])

    def under(self, press, cache):
        with torch.inference_mode(), press(self.model):
            return self.model(self.prompt(), past_key_values=cache, logits_to_keep=1)

    def test_keeps_what_replay_keeps_entry_by_entry(self):
        self.assertGreaterEqual(len(RECORDS), 20)
        results = kvsim.replay(self.trace, RECORDS, BUDGET, save_keep=True, threads=1)
        self.assertEqual(results.sizes["policy"], len(RECORDS))
        for place, record in enumerate(RECORDS):
            press = self.press(record)
            self.under(press, transformers.DynamicCache())
            with self.subTest(press.policy.record):
                self.assertEqual(sorted(press.kept), self.trace.layers)
                found = np.stack([press.kept[layer] for layer in sorted(press.kept)])
                np.testing.assert_array_equal(found, results.kept_mask.values[place, 0] == 1)
                self.assertTrue(0.2 < found.mean() < 0.45, found.mean())

    def test_gives_the_logits_of_the_closed_loop_whatever_holds_the_cache(self):
        later = torch.tensor([self.ids[self.n:]])
        places = torch.arange(self.n, len(self.ids))[None]
        # All heads alike; alike in a layer; ragged in a layer; ragged over all layers.
        for record in ("snapkv,window=8", "pyramidkv,window=8", "adakv,window=8",
                       "rehearsal:recent"):
            for make in (transformers.DynamicCache, lambda: kvsim.CompactCache(self.model)):
                press, cache = self.press(record), make()
                self.under(press, cache)
                with torch.inference_mode():
                    together = self.model(later[:, :4], past_key_values=cache,
                                          position_ids=places[:, :4]).logits[0]
                    one = [self.model(later[:, t:t + 1], past_key_values=cache,
                                      position_ids=places[:, t:t + 1]).logits[0]
                           for t in range(4, STEPS)]
                with ClosedLoop(self.model, self.ids, self.n) as loop:
                    full = loop.logits([None])[0]
                    wanted, = loop.logits([KeptSets(record, "", press.kept)])
                found = torch.cat([together, *one])
                with self.subTest(record, cache=type(cache).__name__):
                    # Float32, sums in another order.
                    self.assertLess(float((found - wanted).abs().max()), 1e-4)
                    self.assertGreater(float((found - full).abs().max()), 1e-3)

    def test_caches_hold_what_is_kept_and_no_more(self):
        entry = 2 * 128 * 4   # key and value of a head, float32
        for record, alike in {"snapkv,window=8": True, "pyramidkv,window=8": False}.items():
            press, plain = self.press(record), transformers.DynamicCache()
            compact = kvsim.CompactCache(self.model)
            self.under(press, plain)
            self.under(press, compact)
            entries = sum(int(kept.sum()) for kept in press.kept.values())
            self.assertEqual(compact.nbytes, entries * entry)
            held = sum(layer.keys.numel() + layer.values.numel() for layer in plain.layers) * 4
            everything = sum(kept.size for kept in press.kept.values()) * entry
            self.assertEqual(held, compact.nbytes if alike else everything)
        hooks = self.model.model.layers[0].self_attn._forward_pre_hooks
        del compact
        gc.collect()
        self.assertFalse(hooks)

    def test_kvpress_pipeline_runs_with_several_contexts_and_questions(self):
        pipe = transformers.pipeline("kv-press-text-generation", model=self.model,
                                     tokenizer=self.tokenizer, device="cpu")
        questions = ["Who trimmed the wick?", "What came home?"]
        kept = []
        for record in ("snapkv,window=8", "rehearsal:recent"):
            press = self.press(record)
            for context in (TEXT, TEXT[::-1]):
                answers = []
                for cache in (None, kvsim.CompactCache(self.model)):
                    answers.append(pipe(context, questions=questions, press=press, cache=cache,
                                        max_new_tokens=6)["answers"])
                self.assertEqual(answers[0], answers[1])
                self.assertEqual(len(answers[0]), 2)
                alone = pipe(context, question=questions[1], press=press, max_new_tokens=6)
                self.assertEqual(alone["answer"], answers[0][1])
                kept.append(press.kept)
        self.assertNotEqual(kept[0][0].shape, kept[1][0].shape)

    def test_decoding_in_the_block_and_the_models_own_ways_stay_as_they_are(self):
        own = self.model.config._attn_implementation
        folder = tempfile.TemporaryDirectory()   # other tests use the system's
        self.addCleanup(folder.cleanup)
        elsewhere = mock.patch.object(tempfile, "tempdir", folder.name)
        elsewhere.start()
        self.addCleanup(elsewhere.stop)
        press = self.press("rehearsal:recent")
        with torch.inference_mode(), press(self.model):
            cache = self.model(self.prompt(), logits_to_keep=1).past_key_values
            kept = press.kept
            self.assertEqual(self.model.config._attn_implementation, own)
            self.model(torch.tensor([self.ids[-1:]]), past_key_values=cache)
            self.assertIs(press.kept, kept)
            press.compression_ratio = 0
            full = self.model(self.prompt()[:, 1:], logits_to_keep=1).past_key_values
        self.assertEqual(full.get_seq_length(), self.n - 1)
        self.assertEqual(press.kept, {})
        press.compression_ratio = RATIO
        with self.assertRaises(RuntimeError), torch.inference_mode(), press(self.model):
            self.model.model.layers[1].mlp.register_forward_pre_hook(_fail)
            self.model(self.prompt())
        self.model.model.layers[1].mlp._forward_pre_hooks.clear()
        self.assertEqual(self.model.config._attn_implementation, own)
        self.assertEqual(os.listdir(folder.name), [])

    def test_kvpress_may_be_imported_at_any_time_and_nothing_warns_of_names(self):
        paths = os.pathsep.join(sys.path[:2])
        done = subprocess.run([sys.executable, "-c", ANY_ORDER], capture_output=True, text=True,
                              env={**os.environ, "PYTHONPATH": paths})
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertNotIn("deprecated", done.stderr)

    def test_other_policies_and_prompts_are_refused_in_one_line(self):
        for record, pattern in {"h2o:official": "schedule=decode", "keepkv": "merge=",
                                "snapkv:official": "granularity=query",
                                "oracle-stream": "positions >= n",
                                "snapkv,quantize=kivi": "quantize=",
                                "snapkvv": "snapkvv"}.items():
            with self.subTest(record), self.assertRaisesRegex(kvsim.UsageError, pattern) as found:
                self.press(record)
            self.assertEqual(len(str(found.exception).splitlines()), 1)
        with self.assertRaisesRegex(kvsim.UsageError, "tokenizer"):
            self.press("kvzip", tokenizer=None)
        with self.assertRaisesRegex(kvsim.UsageError, "compression_ratio"):
            kvsim.press("snapkv", 1.2)
        press = self.press("snapkv,window=8")
        with press(self.model), torch.inference_mode():
            for pattern, given in {
                "batch of 2": {"input_ids": self.prompt().repeat(2, 1)},
                "hidden tokens": {"input_ids": self.prompt(),
                                  "attention_mask": (self.prompt() != self.ids[0]).long()},
                "use_cache": {"input_ids": self.prompt(), "use_cache": False},
            }.items():
                with self.assertRaisesRegex(kvsim.UsageError, pattern):
                    self.model(**given)


    def test_a_prompt_in_chunks_is_refused_and_not_compressed_by_half(self):
        press = self.press("snapkv,window=8")
        ids = self.prompt()
        with self.assertRaisesRegex(kvsim.UsageError, "more tokens in one forward.*prefill_chunk_size"), \
                torch.inference_mode(), press(self.model):
            self.model.generate(ids, prefill_chunk_size=self.n // 2, max_new_tokens=2)
        with torch.inference_mode(), press(self.model):
            found = self.model.generate(ids, max_new_tokens=2, min_new_tokens=2)
        self.assertEqual(found.shape[1], self.n + 2)

    def test_a_ratio_that_leaves_nothing_of_a_short_prompt_is_said(self):
        press = kvsim.press("knorm", 0.9, threads=1)
        with torch.inference_mode(), press(self.model), \
                self.assertWarnsRegex(kvsim.KvsimWarning, "keeps none of the prompt's 9 entries"):
            self.model(self.prompt()[:, :9])
        self.assertFalse(any(kept.any() for kept in press.kept.values()))

    def test_caches_that_cannot_be_cut_say_what_can(self):
        press = self.press("snapkv,window=8")
        static = transformers.StaticCache(config=self.model.config, max_cache_len=2 * self.n)
        with self.assertRaisesRegex(kvsim.UsageError, "found a StaticCache.*expected a .*DynamicCache"):
            self.under(press, static)
        with self.assertRaisesRegex(kvsim.UsageError, "found a StaticCache"), \
                torch.inference_mode(), press(self.model):
            self.model.generate(self.prompt(), max_new_tokens=2, cache_implementation="static")
        config = transformers.GptOssConfig(
            vocab_size=len(self.tokenizer), intermediate_size=48, num_hidden_layers=2,
            hidden_size=48, num_attention_heads=4, num_key_value_heads=2, head_dim=128,
            sliding_window=self.n // 2, num_local_experts=2, num_experts_per_tok=1,
            attn_implementation="eager", pad_token_id=0)
        model = transformers.GptOssForCausalLM(config).eval()
        ways = ((self.n, None, "layers that keep different counts .those with a sliding window.*"
                 "kvsim.CompactCache.model.", lambda: kvsim.CompactCache(model)),
                (self.n // 3, None, f"window of {self.n // 2} tokens holds the whole prompt.*"
                 r"DynamicCache\(\), without config", transformers.DynamicCache))
        for count, cache, line, works in ways:
            with self.assertRaisesRegex(kvsim.UsageError, line), torch.inference_mode(), press(model):
                model(self.prompt()[:, :count], past_key_values=cache)
            with torch.inference_mode(), press(model):
                model(self.prompt()[:, :count], past_key_values=works())
            self.assertTrue(press.kept)


def _fail(*_):
    raise RuntimeError("a module that fails")


if __name__ == "__main__":
    unittest.main()
