"""The press of rehearsal in PyTorch alone against the program. Run: tests/group.sh studies_model"""

import unittest

import kvsim
import numpy as np
import test_live_press
import torch
import transformers
from rehearsal_press import RehearsalPress


class RehearsalPressTest(unittest.TestCase):
    setUpClass = test_live_press.Live.__dict__["setUpClass"]
    under = test_live_press.Live.under
    prompt = test_live_press.Live.prompt

    def test_rehearsal_in_pytorch_alone_keeps_what_the_program_keeps(self):
        pieces = {"spread_queries": 40, "rehearsal_steps": 12}
        cases = [(RehearsalPress(0.5), "rehearsal:recent"),
                 (RehearsalPress(0.9), "rehearsal:recent"),
                 (RehearsalPress(0.7, n_queries=40, piece_size=12),
                  kvsim.Policy("rehearsal:recent", **pieces)),
                 (RehearsalPress(0.8, 64, 7, 0.8, 0.2, 0.5, 0.5),
                  kvsim.Policy("rehearsal:recent", spread_queries=64, rehearsal_steps=7,
                               prior_share=0.8, recent=0.2, first_layer_recent=0.5,
                               joint_depth=0.5))]
        for press, policy in cases:
            program = kvsim.press(policy, press.compression_ratio, dtype="float32", threads=1)
            self.under(program, transformers.DynamicCache())
            self.under(press, transformers.DynamicCache())
            for index, layer in enumerate(self.model.model.layers):
                found = torch.ones(program.kept[index].shape, dtype=torch.bool)
                _, heads, entries = layer.self_attn.masked_key_indices
                found[heads, entries] = False
                with self.subTest(press=press, layer=index):
                    np.testing.assert_array_equal(found.numpy(), program.kept[index])


if __name__ == "__main__":
    unittest.main()
