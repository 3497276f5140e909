"""A model that runs token by token with a compressed cache of naive_caches.py."""

import numpy as np
import torch
import transformers
from naive_caches import Cache, Layer, Owner
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

NAME = "naive_caches"


class NaiveModel:
    """Runs a model on the prompt, or its first chunk, then on one later token after the other.

    `layers` are compressed, all without the argument, but none with a sliding window.
    """

    def __init__(self, folder, cache: Cache, n: int, layers=None):
        self.net = transformers.AutoModelForCausalLM.from_pretrained(
            folder, dtype=torch.float32, attn_implementation="eager"
        ).eval()
        self.cache, self.n, self.compressed = cache, n, layers
        self.first = min(n, cache.chunk or n)
        cache.ends = {n, *range(self.first, n, self.first)} if cache.chunk else ()
        self.layers: dict[int, Layer] = {}
        self.owners: dict[int, list[Owner]] = {}

    def logits(self, ids) -> torch.Tensor:
        """[T, vocabulary] float64, of the later tokens."""
        ALL_MASK_ATTENTION_FUNCTIONS.register(NAME, ALL_MASK_ATTENTION_FUNCTIONS["eager"])
        ALL_ATTENTION_FUNCTIONS.register(NAME, self._attend)
        self.net.set_attn_implementation(NAME)
        tokens, rows = torch.tensor([list(map(int, ids))]), []
        with torch.inference_mode():
            for begin, end in [(0, self.first), *((t, t + 1) for t in range(self.first, len(ids)))]:
                self.position = begin
                result = self.net(tokens[:, begin:end], use_cache=False,
                                  position_ids=torch.arange(begin, end)[None])
                rows.append(result.logits[0, -1].double())
        return torch.stack(rows[1 + self.n - self.first :])

    def _attend(self, module, query, key, value, attention_mask, **kwargs):
        number, window = module.layer_idx, kwargs.get("sliding_window")
        if self.position == 0:
            layer = self.layers[number] = Layer(module, query, key, value, kwargs)
            begins = [max(0, t + 1 - window) if window else 0 for t in range(self.first)]
            output = [self._plain(layer, t, b) for t, b in enumerate(begins)]
            if not window and (self.compressed is None or number in self.compressed):
                self.owners[number] = self.cache.compress(layer, self.first)
            return torch.tensor(np.array(output)[None], dtype=query.dtype), None
        layer, t = self.layers[number], self.position
        layer.append(query, key, value)
        if number not in self.owners:
            output = self._plain(layer, t, max(0, t + 1 - window) if window else 0)
        else:
            if self.cache.period and t > self.n and (t - self.n) % self.cache.period == 0:
                self.owners[number] = self.cache.compress(layer, t)
            output = self.cache.step(layer, self.owners[number], t)
        return torch.tensor(output[None, None], dtype=query.dtype), None

    def _plain(self, layer: Layer, position: int, begin: int) -> np.ndarray:
        rows = []
        for head in range(layer.heads):
            seen = slice(begin, position + 1)
            kv = head // layer.group
            logits = layer.logits(head, layer.q[head][position], layer.k[kv][seen])
            rows.append(layer.softmax(head, logits) @ layer.v[kv][seen])
        return np.array(rows)
