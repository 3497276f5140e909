"""Tests of traces from engines, on files of their layouts. Run: python tests/python/test_engines.py

Modules with the names and calls of vLLM stand for it.
"""

import sys
import tempfile
import unittest
from pathlib import Path
from types import SimpleNamespace

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "python"), str(ROOT / "data")]

import numpy as np
import torch

import kvsim

THETA, HEADS, KV, SIZE, HIDDEN, N, TOTAL = 10000.0, 4, 2, 8, 24, 40, 52
CHECKS = np.arange(1, 9) * TOTAL // 8 - 1
# Treatments of logits by engines, one by one and all together; 0 and [] are none.
PLAIN = {"scale": SIZE ** -0.5, "window": 0, "softcap": 0.0, "sinks": np.zeros(0)}
OTHERS = {"scale": 0.2, "window": 9, "softcap": 1.5, "sinks": np.linspace(-1, 2, HEADS)}


def rotated(x, neighbours=False):
    """[tokens, heads, SIZE], token t turned to place t."""
    angle = np.arange(len(x))[:, None, None] * THETA ** (-np.arange(0, SIZE, 2) / SIZE)
    first, second = (x[..., ::2], x[..., 1::2]) if neighbours else np.split(x, 2, -1)
    parts = first * np.cos(angle) - second * np.sin(angle), \
        first * np.sin(angle) + second * np.cos(angle)
    return np.stack(parts, -1).reshape(x.shape) if neighbours else np.concatenate(parts, -1)


def outputs(q, k, v, said):
    """[tokens, heads, SIZE] before W_O, of q, k and v [tokens, heads, SIZE], as an engine has them."""
    found = np.zeros_like(q)
    at = np.arange(len(q))
    for head in range(HEADS):
        logits = said["scale"] * q[:, head] @ k[:, head * KV // HEADS].T
        if said["softcap"]:
            logits = said["softcap"] * np.tanh(logits / said["softcap"])
        hidden = at[None] > at[:, None]
        if said["window"]:
            hidden |= at[None] <= at[:, None] - said["window"]
        weights = np.where(hidden, 0, np.exp(logits))
        total = weights.sum(1) + (np.exp(said["sinks"][head]) if len(said["sinks"]) else 0)
        found[:, head] = weights / total[:, None] @ v[:, head * KV // HEADS]
    return found


class EngineTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)
        generator = np.random.default_rng(0)
        self.plain = {name: generator.normal(size=(TOTAL, heads, SIZE))
                      for name, heads in (("q", HEADS), ("k", KV), ("v", KV))}
        self.wo = generator.normal(size=(HIDDEN, HEADS * SIZE))
        self.norm = generator.uniform(1, 2, size=TOTAL)

    def whole(self, **said):
        """Arrays that a hook writes of the layer whose pairs of dimensions are halves."""
        said = PLAIN | said
        q, k, v = rotated(self.plain["q"]), rotated(self.plain["k"]), self.plain["v"]
        return {"q": q, "k": k, "v": v, "wo": self.wo, "norm": self.norm, "check_position": CHECKS,
                "check_output": outputs(q, k, v, said)[CHECKS], **said}

    def trace(self, folder, **given):
        return kvsim.Trace(kvsim.from_engine(
            self.folder / folder, self.folder / f"{folder}.h5", model="mine", prompt_len=N,
            rope_theta=THETA, stored_type="float32", overwrite=True, **given))

    def kept(self, trace):
        return kvsim.replay(trace.path, "rehearsal:recent-uniform", 0.5,
                            save_keep=True, threads=1).kept_mask.values

    def vllm(self):
        (self.folder / "vllm").mkdir()
        for index in range(2):
            np.savez(self.folder / "vllm" / f"layer-{index}.npz", **self.whole())
        return self.trace("vllm", tokens=range(TOTAL))

    def test_files_of_the_hook_become_a_trace(self):
        trace = self.vllm()
        self.assertEqual((trace.layers, trace.prompt_len, trace.total_len), ([0, 1], N, TOTAL))
        layer = trace[1]
        np.testing.assert_allclose(layer.queries, np.swapaxes(rotated(self.plain["q"]), 0, 1),
                                   rtol=1e-6)
        np.testing.assert_allclose(layer.values, np.swapaxes(self.plain["v"], 0, 1), rtol=1e-6)
        z = np.random.default_rng(1).normal(size=(HEADS, SIZE))   # what W_O makes of an output
        np.testing.assert_allclose(np.einsum("hd,hdo->o", z, layer.wo), self.wo @ z.reshape(-1),
                                   rtol=1e-4)
        results = kvsim.replay(trace.path, ["h2o", "rehearsal:recent"], 0.5, threads=1)
        self.assertTrue(np.isfinite(results.stream_error_rms.values).all())

    def test_files_of_llama_cpp_become_the_same_trace(self):
        halves = [*range(0, SIZE, 2), *range(1, SIZE, 2)]
        order = np.argsort(halves)   # where each dimension of the other layout stands in llama.cpp
        folder = self.folder / "llama"
        folder.mkdir()
        tensors = {f"{name.upper()}cur": rotated(self.plain[name][..., order], neighbours=True)
                   for name in "qk"} | {"Vcur": self.plain["v"]}
        said = PLAIN | {"window": 9}
        tensors["kqv_out"] = outputs(*tensors.values(), said)
        for index in range(2):   # ne = [d, heads, tokens]: tokens are outermost
            for name, tensor in tensors.items():
                tensor.astype("<f4").tofile(folder / f"{name}-{index}.f32")
        given = {"rope_pairs": "neighbours", "heads": HEADS, "kv_heads": KV,
                 "wo": {index: self.wo for index in range(2)}}
        with self.assertRaisesRegex(kvsim.Error, "layer 0: softcap, sinks not said: give"):
            self.trace("llama", **given, attention={"scale": 1.0, "window": None})
        self.assertLess(kvsim.verify(self.trace("llama", **given, attention={
            0: said, 1: said | {"sinks": None}}).path)["error"].max(), 1e-5)
        plain = outputs(*list(tensors.values())[:3], PLAIN)
        for index in range(2):
            plain.astype("<f4").tofile(folder / f"kqv_out-{index}.f32")
        trace = self.trace("llama", **given, attention=PLAIN)
        np.testing.assert_allclose(trace[1].keys, self.vllm()[1].keys, atol=1e-6)
        np.testing.assert_array_equal(self.kept(trace), self.kept(self.vllm_trace()))

    def test_tensors_of_lmcache_become_the_same_trace(self):
        folder = self.folder / "lmcache"
        folder.mkdir()
        q, k, v = (np.stack([self.whole()[name].reshape(TOTAL, -1)] * 2) for name in "qkv")
        np.save(folder / "kv.npy", np.stack([k, v]))
        np.save(folder / "query.npy", q[None])
        given = {"heads": HEADS, "kv_heads": KV, "wo": {index: self.wo for index in range(2)}}
        with self.assertRaisesRegex(kvsim.Error, "files of LMCache do not say how many heads"):
            self.trace("lmcache", attention=PLAIN)
        with self.assertRaisesRegex(kvsim.Error, "layer 0: scale, window, softcap, sinks not said"):
            self.trace("lmcache", **given)
        trace, expected = self.trace("lmcache", **given, attention=PLAIN), self.vllm()
        self.assertEqual((trace.layers, trace.num_layers, trace.total_len), ([0, 1], 2, TOTAL))
        for index in range(2):
            for name in ("queries", "keys", "values", "wo"):
                np.testing.assert_array_equal(getattr(trace[index], name), getattr(expected[index], name))
        np.testing.assert_array_equal(self.kept(trace), self.kept(expected))
        np.save(folder / "query.npy", q[None, :, :-1])
        with self.assertRaisesRegex(kvsim.Error, r"query.npy \[1, 2, 51, 32\], expected"):
            self.trace("lmcache", **given, attention=PLAIN)
        (folder / "query.npy").write_bytes(b"no array")
        with self.assertRaisesRegex(kvsim.Error, "kv.npy and query.npy cannot be read"):
            self.trace("lmcache", **given, attention=PLAIN)

    def test_what_attention_does_with_logits_is_judged_by_verify(self):
        for name in ("scale", "window", "softcap", "sinks", "all"):
            changed = OTHERS if name == "all" else {name: OTHERS[name]}
            for told, said in (("right", PLAIN | changed), ("wrong", PLAIN)):
                folder = self.folder / f"{name}-{told}"
                folder.mkdir()
                np.savez(folder / "layer-0.npz", **(self.whole(**changed) | said))
                trace = self.trace(folder.name)
                if told == "right":
                    self.assertLess(kvsim.verify(trace.path)["error"].max(), 1e-5)
                else:
                    with self.assertRaises(kvsim.VerificationError):
                        kvsim.verify(trace.path)

    def vllm_trace(self):
        return kvsim.Trace(self.folder / "vllm.h5")

    def test_what_is_wrong_is_one_line(self):
        for name, files, said in (
                ("none", [], "neither layer-0.npz, nor Qcur-0.f32 or the like, nor kv.npy"),
                ("raw", ["Qcur-0.f32"], "give heads, kv_heads and wo")):
            (self.folder / name).mkdir()
            for file in files:
                np.zeros(8, "<f4").tofile(self.folder / name / file)
            with self.assertRaisesRegex(kvsim.Error, said):
                self.trace(name)
        with self.assertRaisesRegex(kvsim.Error, "8 numbers, expected a multiple of 4 heads of 8"):
            self.trace("raw", heads=HEADS, kv_heads=KV, wo={0: self.wo})
        (self.folder / "few").mkdir()
        np.savez(self.folder / "few" / "layer-0.npz", q=self.plain["q"])
        with self.assertRaisesRegex(kvsim.Error, "no array check_output"):
            self.trace("few")
        (self.folder / "unsaid").mkdir()
        for name in ("scale", "window", "softcap", "sinks"):
            whole = self.whole()
            del whole[name]
            np.savez(self.folder / "unsaid" / "layer-0.npz", **whole)
            with self.assertRaisesRegex(kvsim.Error, f"layer 0: {name} not said"):
                self.trace("unsaid")
        np.savez(self.folder / "unsaid" / "layer-0.npz", **self.whole(scale=np.nan))
        with self.assertRaisesRegex(kvsim.Error, "scale: found .*above 0"):
            self.trace("unsaid")

    def test_the_hook_records_prefill_in_chunks_and_decoding(self):
        import vllm_hook

        for number, (said, impl) in enumerate((
                (PLAIN, {"sliding_window": (-1, -1), "logits_soft_cap": 0, "sinks": None}),
                (PLAIN, {"sliding_window": None, "logits_soft_cap": None}),
                (OTHERS, {"sliding_window": (8, 0), "logits_soft_cap": 1.5,
                          "sinks": torch.tensor(OTHERS["sinks"])}))):
            model = engine(self, said, {"scale": said["scale"], **impl})
            vllm_hook.record(model)
            for begin, end in ((0, 30), (30, N), *((t, t + 1) for t in range(N, TOTAL))):
                model(begin, end)
            vllm_hook.write(model, self.folder / f"hooked{number}")
            model(0, 1)   # nothing listens any more
            found = self.trace(f"hooked{number}")
            self.assertLess(kvsim.verify(found.path)["error"].max(), 1e-5)
            (self.folder / f"expected{number}").mkdir()
            for index in range(2):
                np.savez(self.folder / f"expected{number}" / f"layer-{index}.npz",
                         **self.whole(**said))
            expected = self.trace(f"expected{number}")
            for index in range(2):
                for name in ("queries", "keys", "values", "wo"):
                    np.testing.assert_allclose(getattr(found[index], name),
                                               getattr(expected[index], name), atol=1e-6)
            errors = [kvsim.replay(one.path, "h2o", 0.5, threads=1).stream_error_rms.values
                      for one in (found, expected)] if not number else [0, 0]
            np.testing.assert_allclose(*errors, rtol=1e-4)

    def test_the_hook_refuses_what_does_not_say_how_it_attends(self):
        import vllm_hook

        known = {"scale": 1.0, "sliding_window": None, "logits_soft_cap": None}
        for name in known:
            impl = SimpleNamespace(**{key: value for key, value in known.items() if key != name})
            with self.assertRaisesRegex(TypeError, f"has no {name}"):
                vllm_hook.said(SimpleNamespace(impl=impl))
        with self.assertRaisesRegex(TypeError, "ALiBi"):
            vllm_hook.said(SimpleNamespace(impl=SimpleNamespace(**known, alibi_slopes=[1.0])))


def engine(test, said, impl):
    """Two layers with vLLM's names: what they are called with is what the test made up."""
    nn = torch.nn
    whole = {name: torch.tensor(test.whole()[name].reshape(TOTAL, -1)) for name in "qkv"}
    out = torch.tensor(outputs(*(test.whole()[name] for name in "qkv"), said).reshape(TOTAL, -1))
    length = torch.tensor(test.norm)

    class Attention(nn.Module):
        def __init__(self):
            super().__init__()
            self.num_heads, self.num_kv_heads, self.head_size = HEADS, KV, SIZE
            self.impl, self.done = SimpleNamespace(**impl), 0

        def forward(self, query, key, value):
            self.done += len(query)
            return out[self.done - len(query) : self.done]

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.attn, self.o_proj = Attention(), nn.Linear(HEADS * SIZE, HIDDEN, bias=False)
            self.o_proj.weight.data = torch.tensor(test.wo)

    class DecoderLayer(nn.Module):
        def __init__(self):
            super().__init__()
            self.self_attn = Block()

        def forward(self, positions, hidden_states, residual):
            begin, end = int(positions[0]), int(positions[-1]) + 1
            self.self_attn.attn(*(whole[name][begin:end] for name in "qkv"))
            return hidden_states / 2, hidden_states / 2   # they add up to the stream

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = nn.ModuleList([DecoderLayer(), DecoderLayer()])

        def forward(self, begin, end):
            stream = torch.zeros(end - begin, HIDDEN, dtype=torch.float64)
            stream[:, 0] = length[begin:end]
            hidden, residual = stream, None
            for layer in self.layers:
                hidden, residual = layer(torch.arange(begin, end), hidden, residual)
                hidden, residual = stream / 4, stream * 3 / 4

    return Model()


if __name__ == "__main__":
    unittest.main()
