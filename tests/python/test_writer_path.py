"""Does the writer take what stands between heads and stream? Run: python tests/python/test_writer_path.py"""

import sys
import tempfile
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "python"))

import numpy as np

import kvsim


class WriterPath(unittest.TestCase):
    def setUp(self):
        temporary = tempfile.TemporaryDirectory()
        self.addCleanup(temporary.cleanup)
        self.folder = Path(temporary.name)

    def test_a_trace_without_a_layer_is_no_file(self):
        for describes in (False, True):
            with self.assertRaisesRegex(kvsim.Error, r"no layer was written: call describe"), \
                    kvsim.TraceWriter(self.folder / "empty.h5") as writer:
                if describes:
                    writer.describe(model="mine", num_layers=1, prompt_len=3, query_positions=range(5))
            self.assertEqual(list(self.folder.iterdir()), [])

    def test_the_writer_takes_what_stands_between_heads_and_stream(self):
        generator = np.random.default_rng(1)
        total, heads, dim, hidden = 20, 2, 4, 10
        q, k, v = generator.normal(size=(3, heads, total, dim))
        wo, gate = generator.normal(size=(heads, dim, hidden)), generator.random((heads, total, dim))
        gains = generator.random(heads * dim) + 1, generator.random(hidden) + 1
        logits = np.einsum("hmd,hnd->hmn", q, k) / np.sqrt(dim)
        logits[:, np.triu(np.ones((total, total), bool), 1)] = -np.inf
        weights = np.exp(logits - logits.max(-1, keepdims=True))
        z = weights / weights.sum(-1, keepdims=True) @ v

        def norm(x, gain, eps=0.1):
            root = np.sqrt((x**2).mean(-1) + eps)
            return x / root[:, None] * gain, kvsim.PathNorm(gain, eps, root)

        x, inner = norm((z * gate).transpose(1, 0, 2).reshape(total, -1), gains[0])
        added, outer = norm(x @ wo.reshape(-1, hidden), gains[1])
        path, checks = self.folder / "path.h5", [3, 19]
        with kvsim.TraceWriter(path, "float32") as writer:
            writer.describe(model="mine", num_layers=1, prompt_len=15, query_positions=range(total),
                            check_positions=checks)
            writer.layer(0, queries=q, keys=k, values=v, wo=wo, gate=gate, inner=inner, outer=outer,
                         check_added=added[checks])
        self.assertLess(kvsim.verify(path)["error"].max(), 1e-5)
        kvsim.replay(path, ["h2o"], 0.5)
        for wrong, said in (({"gate": gate[:, :5]}, "gate: found shape"),
                            ({"wo": wo.reshape(-1, hidden)}, "of a torch.nn.Linear give weight.T.reshape"),
                            ({"outer": kvsim.PathNorm(gains[0])}, r"outer.gain: found shape \[8\]"),
                            ({"inner": kvsim.PathNorm(gains[0], 0.1)}, "inner.rms")):
            with self.assertRaisesRegex(kvsim.Error, said), \
                    kvsim.TraceWriter(self.folder / "wrong.h5") as writer:
                writer.describe(model="mine", num_layers=1, prompt_len=15,
                                query_positions=range(total))
                writer.layer(0, **{"queries": q, "keys": k, "values": v, "wo": wo, **wrong})


if __name__ == "__main__":
    unittest.main()
