"""Tests of the gates that `duo` takes, made from a trace. Run: tests/group.sh studies

Needs KVSIM_BIN or build/kvsim and the modules of plots/requirements.txt; without them one line says
so and nothing is tested.
"""

import contextlib
import io
import tempfile
import unittest
from dataclasses import replace
from pathlib import Path

import numpy as np

import head_gates
import kvsim
import kvsim.program

kvsim.program.find_program()

SAMPLE = Path(__file__).resolve().parents[2] / "data" / "sample.h5"
SINKS, RECENT = 4, 300   # of 431 tokens: few queries are left for the plain loops below


def plain(layer, kv_head):
    """Result of `changes` for one KV head, query by query in float64."""
    squares, count = 0.0, 0
    for at, j in enumerate(layer.query_positions):
        if j < SINKS + RECENT or j >= layer.prompt_len:
            continue
        moved = 0
        for head in range(kv_head * layer.group_size, (kv_head + 1) * layer.group_size):
            logits = layer.scale * layer.keys[kv_head, : j + 1].astype(float) @ layer.queries[
                head, at].astype(float)
            weight = np.exp(logits - logits.max())
            values = layer.values[kv_head, : j + 1].astype(float)
            stays = np.arange(j + 1)
            stays = (stays < SINKS) | (stays > j - RECENT)
            full = weight @ values / weight.sum()
            left = weight[stays] @ values[stays] / weight[stays].sum()
            moved = moved + (full - left) @ layer.wo[head].astype(float)
        squares, count = squares + moved @ moved, count + 1
    return (squares / count) ** 0.5


class GatesTest(unittest.TestCase):
    def setUp(self):
        trace = kvsim.Trace(SAMPLE)
        self.addCleanup(trace.close)
        self.layer = trace.layer(5)

    def test_w_o_has_gate_and_norms_at_their_usual_size(self):
        generator = np.random.default_rng(1)
        q, k, v = generator.normal(size=(3, 2, 20, 4))
        wo, gate = generator.normal(size=(2, 4, 10)), generator.random((2, 20, 4))
        inner, outer = (kvsim.PathNorm(generator.random(shape) + 1, 0.1, generator.random(20) + 0.5)
                        for shape in ((2, 4), 10))
        layer = kvsim.Layer(index=0, queries=q, query_positions=np.arange(20), keys=k, values=v, wo=wo, scale=0.5,
                            prompt_len=15, gate=gate, inner=inner, outer=outer)
        size = np.sqrt((gate[:, :15] ** 2).mean(1)) * inner.gain / np.sort(inner.rms[:15])[7]
        np.testing.assert_allclose(head_gates.usual_wo(layer), size[..., None] * wo * outer.gain /
                                   np.sort(outer.rms[:15])[7], rtol=1e-5)

    def test_a_gate_is_what_streaming_changes_in_the_output(self):
        found = head_gates.changes(self.layer, SINKS, RECENT)
        for kv_head, one in enumerate(found):
            self.assertAlmostEqual(one / plain(self.layer, kv_head), 1, places=4)

    def test_heads_that_look_at_the_first_entries_alone_have_no_gate(self):
        keys = np.zeros_like(self.layer.keys)
        keys[:, :SINKS] = 8
        blind = replace(self.layer, keys=keys, queries=np.abs(self.layer.queries) + 1)
        self.assertLess(head_gates.changes(blind, SINKS, RECENT).max(), 1e-6)

    def test_the_largest_gate_is_1_and_a_policy_takes_the_file(self):
        with tempfile.TemporaryDirectory() as folder:
            trace = Path(folder, "all.h5")
            table = Path(folder, "gates.txt")
            kvsim.program.run(["synth", "-o", trace, "--prompt", "64", "--steps", "4", "--num-layers",
                               "2", "--heads", "4", "--kv-heads", "2", "--head-dim", "8", "--hidden",
                               "32"], False)
            with contextlib.redirect_stdout(io.StringIO()):
                self.assertEqual(head_gates.main([str(trace), "--sinks", "2", "--recent", "8", "-o",
                                                  str(table)]), 0)
            lines = table.read_text(encoding="utf-8").splitlines()
            found = np.array([[float(one) for one in line.split()] for line in lines[1:]])
            self.assertEqual(found.shape, (2, 2))
            self.assertEqual(found.max(), 1)
            results = kvsim.replay(trace, [f"duo,sinks=2,recent=8,table={table}"], budgets=[0.6])
            kept = results.kept.values.reshape(2, 2)
            # One head of four keeps the 64 entries, or two: 0.6 of 256 are 153.
            self.assertEqual(sorted(kept.ravel()), [10, 10, 64, 64])
            self.assertEqual(set(zip(*np.nonzero(kept == 64))),
                             set(zip(*np.nonzero(found >= np.sort(found.ravel())[-2]))))

    def test_what_cannot_be_made_is_said_in_one_line(self):
        said = io.StringIO()
        with contextlib.redirect_stderr(said):
            self.assertEqual(head_gates.main([str(SAMPLE), "-o", "/nowhere"]), 3)
        self.assertIn("found 8 layers, expected all 30", said.getvalue())
        with self.assertRaisesRegex(kvsim.DataError, "no stored query behind 4 . 500 entries"):
            head_gates.changes(self.layer, 4, 500)


if __name__ == "__main__":
    unittest.main()
