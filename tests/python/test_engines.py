"""Tests of traces from engines, on files of their layouts. Run: python tests/python/test_engines.py

Modules with the names and calls of vLLM stand for it; without PyTorch these tests are left out.
"""

import sys
import tempfile
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "python"), str(ROOT / "data")]

import numpy as np

import kvsim

try:
    import torch
except ModuleNotFoundError:
    torch = None
THETA, HEADS, KV, SIZE, HIDDEN, N, TOTAL = 10000.0, 4, 2, 8, 24, 40, 52


def rotated(x, neighbours=False):
    """[tokens, heads, SIZE], token t turned to place t."""
    angle = np.arange(len(x))[:, None, None] * THETA ** (-np.arange(0, SIZE, 2) / SIZE)
    first, second = (x[..., ::2], x[..., 1::2]) if neighbours else np.split(x, 2, -1)
    parts = first * np.cos(angle) - second * np.sin(angle), \
        first * np.sin(angle) + second * np.cos(angle)
    return np.stack(parts, -1).reshape(x.shape) if neighbours else np.concatenate(parts, -1)


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

    def whole(self, **changes):
        """What a hook writes of the layer whose pairs of dimensions are halves."""
        return {"q": rotated(self.plain["q"]), "k": rotated(self.plain["k"]),
                "v": self.plain["v"], "wo": self.wo, "scale": SIZE ** -0.5, "norm": self.norm,
                **changes}

    def trace(self, folder, **given):
        return kvsim.Trace(kvsim.from_engine(
            self.folder / folder, self.folder / f"{folder}.h5", model="mine", prompt_len=N,
            rope_theta=THETA, stored_type="float32", **given))

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
        for name in "qkv":
            tensor = self.plain[name] if name == "v" else \
                rotated(self.plain[name][..., order], neighbours=True)
            for index in range(2):   # ne = [d, heads, tokens]: tokens are outermost
                tensor.astype("<f4").tofile(folder / f"{name.upper()}cur-{index}.f32")
        trace = self.trace("llama", rope_pairs="neighbours", heads=HEADS, kv_heads=KV,
                           wo={index: self.wo for index in range(2)})
        np.testing.assert_allclose(trace[1].keys, self.vllm()[1].keys, atol=1e-6)
        np.testing.assert_array_equal(self.kept(trace), self.kept(self.vllm_trace()))

    def vllm_trace(self):
        return kvsim.Trace(self.folder / "vllm.h5")

    def test_what_is_wrong_is_one_line(self):
        for name, files, said in (
                ("none", [], "neither layer-0.npz nor Qcur-0.f32"),
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
        with self.assertRaisesRegex(kvsim.Error, "no array k"):
            self.trace("few")

    @unittest.skipIf(torch is None, "no PyTorch")
    def test_the_hook_records_prefill_in_chunks_and_decoding(self):
        import vllm_hook

        model = engine(self)
        vllm_hook.record(model)
        for begin, end in ((0, 30), (30, N), *((t, t + 1) for t in range(N, TOTAL))):
            model(begin, end)
        vllm_hook.write(model, self.folder / "hooked")
        model(0, 1)   # nothing listens any more
        found, expected = self.trace("hooked"), self.vllm()
        for index in range(2):
            for name in ("queries", "keys", "values", "wo"):
                np.testing.assert_allclose(getattr(found[index], name),
                                           getattr(expected[index], name), atol=1e-6)
        errors = [kvsim.replay(one.path, "h2o", 0.5, threads=1).stream_error_rms.values
                  for one in (found, expected)]
        np.testing.assert_allclose(*errors, rtol=1e-4)


def engine(test):
    """Two layers with vLLM's names: what they are called with is what the test made up."""
    nn = torch.nn
    whole = {name: torch.tensor(value.reshape(TOTAL, -1)) for name, value in test.whole().items()
             if name in "qkv"}
    length = torch.tensor(test.norm)

    class Attention(nn.Module):
        def __init__(self):
            super().__init__()
            self.num_heads, self.num_kv_heads, self.head_size = HEADS, KV, SIZE
            self.impl = type("Impl", (), {"scale": SIZE ** -0.5})()

        def forward(self, query, key, value):
            return query

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
