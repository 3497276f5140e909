"""Models that see or hear: are images and sounds entries like others, and is what a trace says of them
what the model itself does with them?

The judge is the model with its own eager attention, masked by the kept sets, as in model_check.
Run: KVSIM_BIN=path/to/kvsim python3 tests/capture/test_inputs.py
"""

import sys
import tempfile
import unittest
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parents[1] / "python")]

import kvsim
import model_matrix
import numpy as np
import tiny_inputs
import torch
from kvsim.kvtrace.inputs import read_inputs
from kvsim.kvtrace.kept_sets import ResultsFile
from kvsim.kvtrace.model_check import Judge
from kvsim.kvtrace.stream import relative

# Spans, layers that are left out, whether image tokens store queries, and whether positions are known.
FAMILIES = {
    "llava": ([("image1", 9, 25), ("image2", 32, 48)], [], True, True),
    "gemma3": ([("image", 10, 14)], [], False, True),
    "qwen2_5_vl": ([("image", 10, 16)], [], True, False),
    "voxtral": ([("audio", 9, 17)], [], True, True),
    "mllama": ([("image", 9, 10)], [1], True, True),
}
STEPS, POLICY, BUDGET, TOLERANCE = 10, "snapkv,window=16", "0.4", 2e-3


class Inputs(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        _, cls.tokenizer = model_matrix.quiet()

    def setUp(self):
        temporary = tempfile.TemporaryDirectory()
        self.addCleanup(temporary.cleanup)
        self.folder = Path(temporary.name)

    def capture(self, model, inputs, **options):
        return kvsim.capture(model, self.tokenizer, inputs=inputs, out=self.folder / "trace.h5",
                             dtype="float32", overwrite=True, progress=False,
                             **{"steps": STEPS, "ignore_end": True, **options})

    def test_every_kind_is_what_the_model_does(self):
        for family, (spans, left_out, inside, turned) in FAMILIES.items():
            with self.subTest(family):
                model, inputs = tiny_inputs.build(family)
                trace = self.capture(model, inputs)
                n = inputs["input_ids"].shape[1]
                self.assertEqual((trace.prompt_len, trace.total_len), (n, n + STEPS))
                self.assertEqual([tuple(one) for one in trace.spans], spans)
                self.assertEqual(trace.layers, [layer for layer in range(model.config.get_text_config()
                                                .num_hidden_layers) if layer not in left_out])
                of_images = [at for _, begin, end in spans for at in range(begin, end)]
                self.assertEqual(bool(np.isin(of_images, trace.query_positions).all()), inside)
                if not inside:
                    with self.assertRaisesRegex(kvsim.Error, "tokens that see one another"):
                        kvsim.replay(trace, ["h2o"], [BUDGET], progress=False)
                self.judge(model, inputs, trace, turned)

    def judge(self, model, inputs, trace, turned: bool) -> None:
        """Kept sets, residual errors and losses against the model's own run."""
        kvsim.verify(trace)
        results = kvsim.replay(trace, [POLICY], [BUDGET], save_keep=True,
                               out=self.folder / "results.nc", overwrite=True, progress=False)
        beside = read_inputs(model, inputs).of(trace.total_len)
        ids, n = [int(one) for one in trace.tokens], trace.prompt_len
        with ResultsFile(self.folder / "results.nc") as file:
            sets = file.sets(0, 0)
        with Judge(model, ids, n, beside) as judge:
            self.assertEqual(torch.from_numpy(judge.logits({})).argmax(-1)[:-1].tolist(), ids[n + 1:])
            for layer, mask in sets.masks.items():
                self.assertFalse(mask.all())
                found = results["residual_error"].sel(layer=layer).values.reshape(-1)
                self.assertLess(relative(found, judge.block_change(layer, mask)), TOLERANCE)
            full, kept = (torch.from_numpy(judge.logits(masks)).log_softmax(-1)
                          for masks in ({}, sets.masks))
        loop = kvsim.closed_loop(model, results, trace, inputs=inputs, progress=False)
        expected = (full.exp() * (full - kept)).sum(-1).numpy()
        self.assertLess(relative(loop["kl_divergence"].values.reshape(-1), expected), 1e-2)
        self.assertGreater(expected.mean(), 1e-4)
        moves = "streaming,positions=cache"
        if turned:
            kvsim.replay(trace, [moves], [BUDGET], progress=False)
        else:
            with self.assertRaisesRegex(kvsim.Error, "gives tokens of images and sounds positions"):
                kvsim.replay(trace, [moves], [BUDGET], progress=False)

    def test_a_written_answer_goes_on_behind_the_image(self):
        model, inputs = tiny_inputs.build("llava")
        answer = "The keeper carried the oil up the steps."
        trace = self.capture(model, inputs, answer=answer, steps=None)
        later = self.tokenizer.encode(answer, add_special_tokens=False)
        self.assertEqual([int(one) for one in trace.tokens[trace.prompt_len:]], later)
        short = self.capture(model, inputs, answer=answer, steps=3)
        self.assertEqual(short.total_len - short.prompt_len, 3)

    def test_what_is_seen_counts(self):
        model, inputs = tiny_inputs.build("llava")
        one = self.capture(model, inputs, steps=2).layer(1).keys
        other = dict(inputs, pixel_values=inputs["pixel_values"].flip(0))
        self.assertGreater(relative(self.capture(model, other, steps=2).layer(1).keys, one), 0.05)
        results = kvsim.replay(self.folder / "trace.h5", [POLICY], [BUDGET], save_keep=True,
                               progress=False)
        for given, said in ((None, "captured with attention_mask, pixel_values beside its tokens"),
                            (inputs, "captured from other weights or inputs"),
                            ({"input_ids": inputs["input_ids"][:, 1:]}, "other tokens than")):
            with self.assertRaisesRegex(kvsim.Error, said):
                kvsim.closed_loop(model, results, self.folder / "trace.h5", inputs=given,
                                  progress=False)

    def test_bad_inputs_are_one_line_and_no_file(self):
        model, inputs = tiny_inputs.build("llava")
        ids = inputs["input_ids"]
        for given, options, said in (
            ({}, {}, r"inputs: found \{\}, expected what the model's processor gives"),
            ("a text", {}, "inputs: found 'a text'"),
            ({"input_ids": ids[0]}, {}, r"input_ids of shape \[60\]"),
            (dict(inputs, attention_mask=torch.zeros_like(ids)), {}, "without padding"),
            (dict(inputs, pixel_values=inputs["pixel_values"][:1]), {}, "its forward ends in"),
            (inputs, {"probes": ["repeat"]}, "give inputs or probes"),
            (inputs, {"messages": "a text"}, "give them without messages"),
        ):
            with self.subTest(said), self.assertRaisesRegex(kvsim.Error, said) as raised:
                self.capture(model, given, **options)
            self.assertNotIn("\n", str(raised.exception))
            self.assertFalse((self.folder / "trace.h5").exists())


if __name__ == "__main__":
    unittest.main()
