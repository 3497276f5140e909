"""Models with latent attention (MLA): is what their own cache of latents holds counted by hand the same?

Run: KVSIM_BIN=path/to/kvsim python3 tests/capture/test_latent.py
"""

import math
import sys
import tempfile
import unittest
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parents[1] / "python")]

import families
import h5py
import model_matrix
import numpy as np
from kvsim.kvtrace.capture import CaptureOptions, capture_trace
from kvsim.kvtrace.model import LoadedModel
from kvsim.kvtrace.prompt import TokenizedPrompt
from kvsim.program import run

POLICIES = ("streaming", "h2o", "adakv", "d2o", "snapkv,quantize=kivi")
BUDGETS = ("0.5", "0.7")   # more than the windows that are kept in any case
ELEMENT = 2   # bytes, as a replay counts them


class Latent(unittest.TestCase):
    def replayed(self, family: str, folder: Path) -> h5py.File:
        """Results of a tiny model of the family; a file that is open."""
        _, tokenizer = model_matrix.quiet()
        ids, trace = model_matrix.tokens(), folder / f"{family}.h5"
        prompt = TokenizedPrompt(ids, model_matrix.PROMPT, [], model_matrix.PROMPT)
        loaded = LoadedModel(families.build(family), tokenizer, f"tiny {family}", "random")
        capture_trace(loaded, None, CaptureOptions(), trace, tokens=(ids, prompt, 0))
        with h5py.File(trace) as f:
            self.latent_size = f.attrs.get("latent_size")
        words = [word for name, values in (("--policy", POLICIES), ("--budget", BUDGETS))
                 for value in values for word in (name, value)]
        run(["replay", str(trace), "-o", str(folder / "results.nc"), "--overwrite", "--save-keep",
             "--threads", "1", "-q", *words], progress=False)
        return h5py.File(folder / "results.nc")

    def test_a_position_is_held_while_some_head_keeps_it(self):
        for family in ("deepseek_v2", "deepseek_v3"):
            with self.subTest(family), tempfile.TemporaryDirectory() as folder, \
                    self.replayed(family, Path(folder)) as f:
                latent = families.config_of(family)
                size = latent.kv_lora_rank + latent.qk_rope_head_dim
                self.assertEqual(self.latent_size, size)
                kept, found = f["kept_mask"][:] == 1, f["bytes_latent"][:]   # [policy, budget, layer, ...
                layers, n = kept.shape[2], kept.shape[4]
                for policy, name in enumerate(POLICIES):
                    for budget in range(len(BUDGETS)):
                        held = f["compression_latent"][policy, budget]
                        if name in ("d2o", "snapkv,quantize=kivi"):   # entries that no latent unpacks into
                            self.assertTrue(math.isnan(found[policy, budget]), name)
                            self.assertTrue(math.isnan(held), name)
                            continue
                        positions = np.count_nonzero(kept[policy, budget].any(axis=1))
                        counted = positions * size * ELEMENT + 4 * layers
                        self.assertEqual(found[policy, budget], counted, name)
                        self.assertAlmostEqual(held, layers * n * size * ELEMENT / counted)
                        ragged = f["compression"][policy, budget]
                        # Heads that keep the same entries lose nothing; others keep more latents.
                        self.assertEqual(abs(held / ragged - 1) < 0.03, name == "streaming", name)

    def test_a_model_with_keys_and_values_has_no_latents(self):
        with tempfile.TemporaryDirectory() as folder, self.replayed("llama", Path(folder)) as f:
            self.assertIsNone(self.latent_size)
            self.assertNotIn("bytes_latent", f)


if __name__ == "__main__":
    unittest.main()
