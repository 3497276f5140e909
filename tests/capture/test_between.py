"""Is what stands between heads and stream what the model puts there? Run: python3 tests/capture/test_between.py"""

import sys
import unittest
import unittest.mock
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
from test_capture import (
    WithFolder, h5py, np, relative_error, softmax_attention, tiny_models, torch, transformers,
)  # fmt: skip


def added_to_stream(layer, outputs):
    """The format's own definition in float64: what heads' outputs [Hq, M, dv] add, [M, D]."""
    def norm(name, x):
        if f"{name}_eps" in layer.attrs:
            root = np.sqrt((x**2).mean(-1, keepdims=True) + layer.attrs[f"{name}_eps"])
            assert relative_error(layer[f"{name}_rms"][:], root[:, 0]) < 2e-5
            x = x / root
        return x * layer[f"{name}_gain"][:].reshape(-1) if f"{name}_gain" in layer else x

    if "gate" in layer:
        outputs = outputs * layer["gate"][:]
    heads, wo = outputs.shape[0], np.asarray(layer["wo"], np.float64)
    inner = norm("inner", outputs.transpose(1, 0, 2).reshape(outputs.shape[1], -1))
    return norm("outer", np.einsum("mhv,hvd->md", inner.reshape(len(inner), heads, -1), wo))


class Between(WithFolder):
    def test_what_stands_between_heads_and_stream_is_what_the_model_adds(self):
        for family, (parts, after) in tiny_models.BETWEEN.items():
            with self.subTest(family):
                trace = self.run_capture(family, "--answer", self.answer, "--dtype", "float32",
                                         name=f"{family}.h5")
                with h5py.File(trace) as f:
                    ids, positions = f["tokens/id"][:], f["query_position"][:]
                    real = self.added_by_model(family, ids, after)
                    rows = np.searchsorted(positions, f["check/query_position"][:])
                    for index in range(4):
                        layer = f[f"layers/{index}"]
                        found = added_to_stream(layer, softmax_attention(layer, f, positions))
                        self.assertLess(relative_error(found, real[index]), 5e-5)
                        self.assertLess(relative_error(layer["check_added"][:], real[index][rows]),
                                        5e-5)
                        self.assertEqual({name for name in ("gate", "inner_gain", "outer_gain")
                                          if name in layer} |
                                         set(layer.attrs) & {"inner_eps", "outer_eps"}, parts)
                self.verify(trace)

    def added_by_model(self, family, ids, after: str) -> dict[int, np.ndarray]:
        """What comes to the stream: what module `after` of a block is given, less what the block
        is given."""
        net = transformers.AutoModelForCausalLM.from_pretrained(
            self.model_folder(family), dtype=torch.float32, attn_implementation="eager").eval()
        before, added = {}, {}
        for index, block in enumerate(net.model.layers):
            block.register_forward_pre_hook(lambda module, args, index=index:
                                            before.update({index: args[0][0].double().numpy()}))
            getattr(block, after).register_forward_pre_hook(
                lambda module, args, index=index:
                added.update({index: args[0][0].double().numpy() - before[index]}))
        with torch.inference_mode():
            net(torch.tensor([ids.tolist()]), use_cache=False)
        return added

    def test_a_model_that_changes_what_it_adds_or_its_stream_exits_1(self):
        def forward(block, hidden_states, **kwargs):
            attended, _ = block.self_attn(hidden_states=block.input_layernorm(hidden_states), **kwargs)
            return changed(block, hidden_states, attended)

        def own(block, hidden):
            return hidden + block.mlp(block.post_attention_layernorm(hidden))

        cases = {
            "is not the output of model.layers.0.self_attn.o_proj; it differs by ":
                lambda b, x, y: own(b, x + torch.tanh(y)),
            "what model.layers.0 adds .* differs by": lambda b, x, y: own(b, x + y * x.sigmoid()),
            "added to a vector that differs from the residual stream by 0.2":
                lambda b, x, y: own(b, 1.2 * x + y),
            "what leaves it differs from .* by 0.3": lambda b, x, y: 1.3 * own(b, x + y),
            "is not added to the residual stream": lambda b, x, y: own(b, x * torch.sigmoid(y)),
        }
        block = transformers.models.llama.modeling_llama.LlamaDecoderLayer
        for said, changed in cases.items():
            with self.subTest(said), unittest.mock.patch.object(block, "forward", forward):
                target = self.run_capture("llama", "--steps", 2, name="odd.h5", code=1)
                self.assertFalse(target.exists())
                self.assertRegex(self.message, "layer 0: .*model.layers.0.*" + said)

    def test_orders_in_which_a_model_adds_are_no_reason_to_refuse(self):
        def forward(block, hidden_states, **kwargs):
            normed = block.input_layernorm(hidden_states)
            attended, _ = block.self_attn(hidden_states=normed, **kwargs)
            return order(hidden_states, attended, block.mlp(normed))

        block = transformers.models.llama.modeling_llama.LlamaDecoderLayer
        for order in (lambda x, a, m: x + a + m, lambda x, a, m: (a + m) + x,
                      lambda x, a, m: (m + x.double().float()) + a,
                      lambda x, a, m: x + (m + torch.nn.functional.dropout(a, 0.1, False))):
            with unittest.mock.patch.object(block, "forward", forward):
                self.run_capture("llama", "--steps", 2, name="parallel.h5")


if __name__ == "__main__":
    unittest.main()
