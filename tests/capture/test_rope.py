"""Is a trace's rotation that of the model?

Keys and queries before their rotation are heard at the model's own projections and norms, rotated
in float64 by what the trace says, and compared with those that the trace stores.
Run: python3 tests/capture/test_rope.py
"""

import sys
import tempfile
import unittest
from pathlib import Path

import h5py
import numpy as np
import torch
import transformers

sys.path.insert(0, str(Path(__file__).resolve().parent))
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "python"))

import families
import tiny_models
from kvsim.kvtrace.capture import CaptureOptions, capture_trace
from kvsim.kvtrace.model import LoadedModel
from kvsim.kvtrace.prompt import TokenizedPrompt
from kvsim.kvtrace.rope import find_rotations
from kvsim.trace import Trace

PROMPT, LATER = 60, 30
IDS = [int(one) for one in np.random.default_rng(5).integers(5, 256, PROMPT + LATER)]
DTYPE = np.float64

torch.set_num_threads(1)
transformers.utils.logging.set_verbosity_error()


def heard_keys(model) -> dict[int, np.ndarray]:
    """[Hkv, N, d] of each layer before the rotation, from k_norm where there is one, else k_proj."""
    heard, hooks = {}, []
    for name, module in model.named_modules():
        parts = name.split(".")
        if parts[-1] in ("k_proj", "k_norm") and parts[-2] == "self_attn":
            def keep(module, args, output, layer=int(parts[-3])):
                heard[layer] = output.detach().double().numpy()
            hooks.append(module.register_forward_hook(keep))
    with torch.inference_mode():
        model(input_ids=torch.tensor([IDS]), use_cache=False)
    for hook in hooks:
        hook.remove()
    return heard


def by_head(keys: np.ndarray, shape: tuple) -> np.ndarray:
    """Heard keys, in whatever order of axes, as [Hkv, N, d]."""
    heads, tokens, size = shape
    if keys.ndim == 4 and keys.shape[1] == heads and keys.shape[2] == tokens:
        return keys[0]
    return keys.reshape(tokens, heads, size).transpose(1, 0, 2)


def turned(keys: np.ndarray, frequencies, layout: str, first: int, factor: float) -> np.ndarray:
    """The format's own definition, a pair at a time; keys [Hkv, N, d] stand at 0, 1, ..."""
    out, count = np.array(keys, DTYPE), len(frequencies)
    positions = np.arange(keys.shape[1])
    for j, frequency in enumerate(frequencies):
        a, b = (first + j, first + j + count) if layout == "half" else \
            (first + 2 * j, first + 2 * j + 1)
        z = (keys[..., a] + 1j * keys[..., b]) * np.exp(1j * positions * frequency) * factor
        out[..., a], out[..., b] = z.real, z.imag
    return out


def with_rope(family: str, **parameters):
    config = families.config_of(family)
    config.rope_parameters = {"rope_theta": 10000.0, **parameters}
    config.max_position_embeddings = 64
    torch.manual_seed(1)
    model = transformers.AutoModelForCausalLM.from_config(config).float().eval()
    families.randomise(model)
    return model


class Rotations(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        temporary = tempfile.TemporaryDirectory()
        cls.addClassCleanup(temporary.cleanup)
        cls.folder = Path(temporary.name)

    def capture(self, model) -> Path:
        target = self.folder / "trace.h5"
        loaded = LoadedModel(model, tiny_models.make_tokenizer(), "tiny", "random")
        capture_trace(loaded, None, CaptureOptions(dtype="float32"), target,
                      tokens=(IDS, TokenizedPrompt(IDS, PROMPT, [], PROMPT), 0))
        return target

    def judge(self, model, kinds: int = 1) -> dict[int, dict]:
        """The attributes of each layer's rotation, which must be the model's."""
        heard, found = heard_keys(model), {}
        with h5py.File(self.capture(model)) as f:
            self.assertNotIn("rope_missing", f.attrs)
            for name, layer in f["layers"].items():
                if "rope_inv_freq" in layer:
                    frequencies = layer["rope_inv_freq"]
                    about = {**frequencies.attrs}
                else:
                    frequencies = f["rope/inv_freq"]
                    about = {"layout": f.attrs["rope_layout"], "first": 0, "attention_factor": 1.0,
                             "scaling": f.attrs["rope_scaling"]}
                keys = layer["k"][:].astype(DTYPE)
                own = by_head(heard[int(name)], keys.shape)
                expected = turned(own, frequencies[:], about["layout"], about["first"],
                                  about["attention_factor"])
                # float32 angles of positions below 90 and products of 16 numbers.
                error = np.linalg.norm(keys - expected) / np.linalg.norm(expected)
                self.assertLess(error, 2e-5, name)
                found[int(name)] = about | {"frequencies": tuple(frequencies[:])}
        self.assertEqual(len({one["frequencies"] for one in found.values()}), kinds)
        return found

    def test_plain_rotation_stays_a_dataset_of_the_whole_file(self):
        self.judge(families.build("llama"))
        with h5py.File(self.folder / "trace.h5") as f:
            self.assertEqual(f["rope/inv_freq"].shape, (8,))
            self.assertNotIn("rope_inv_freq", f["layers/0"])

    def test_interleaved_pairs_in_half_of_a_head(self):
        found = self.judge(families.build("glm"))
        self.assertEqual({(one["layout"], len(one["frequencies"])) for one in found.values()},
                         {("interleaved", 4)})

    def test_layers_without_positions_among_others(self):
        found = self.judge(families.build("smollm3"), kinds=2)
        self.assertEqual([any(found[layer]["frequencies"]) for layer in range(4)],
                         [True, True, True, False])

    def test_yarn_with_its_factor(self):
        found = self.judge(with_rope("llama", rope_type="yarn", factor=4.0,
                                     original_max_position_embeddings=16))
        self.assertGreater(found[0]["attention_factor"], 1.1)
        self.assertEqual(found[0]["scaling"], "yarn")
        with Trace(self.folder / "trace.h5") as trace:
            self.assertEqual(trace.layer(0).attention_factor, found[0]["attention_factor"])
            np.testing.assert_array_equal(trace.layer(0).inv_freq, found[0]["frequencies"])

    def test_llama3_scaling(self):
        self.judge(with_rope("llama", rope_type="llama3", factor=8.0, low_freq_factor=1.0,
                             high_freq_factor=4.0, original_max_position_embeddings=16))

    def test_dynamic_scaling_of_a_text_longer_than_the_model_was_made_for(self):
        found = self.judge(with_rope("llama", rope_type="dynamic", factor=2.0))
        plain = tuple(10000.0 ** (-np.arange(8) / 8))
        self.assertGreater(np.abs(np.subtract(found[0]["frequencies"], plain)).max(), 1e-3)

    def test_longrope_on_both_sides_of_its_length(self):
        for original, factor in ((32, "long"), (4096, "short")):
            model = with_rope("llama", rope_type="longrope", factor=4.0,
                              original_max_position_embeddings=original,
                              short_factor=[1.0] * 8, long_factor=[1.0 + j for j in range(8)])
            found = self.judge(model)
            slowed = 10000.0 ** (-7 / 8) / found[0]["frequencies"][7]
            self.assertAlmostEqual(slowed, 8.0 if factor == "long" else 1.0, places=4)

    def test_learned_positions_say_why_nothing_can_be_moved(self):
        found = find_rotations(families.build("opt"), IDS, [0, 1])
        self.assertEqual(found.layers, {})
        self.assertRegex(found.missing, r"layer 0 of OPTForCausalLM: its keys at positions moved by "
                                        r"\d+ are not those before, though it has no rotary module")

    def test_biases_by_distance_say_why_nothing_can_be_moved(self):
        found = find_rotations(families.build("bloom"), IDS, [0, 1])
        self.assertIn("BloomForCausalLM rotates no keys: it has no rotary module", found.missing)

    def test_a_norm_behind_the_rotation_is_not_taken_for_one(self):
        found = find_rotations(families.build("hunyuan_v1_dense"), IDS, [0])
        self.assertEqual(found.layers, {})
        self.assertIn("are not those before, rotated: they differ by", found.missing)


if __name__ == "__main__":
    unittest.main()
