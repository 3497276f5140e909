"""Caches that hold no more than what was kept, and dropped entries that stay and are masked.

kvpress masks entry e of KV head h where a module's `masked_key_indices` = (batch, h, e) say so.
Its patched attention functions put a key there that no query sees."""

import weakref
from collections.abc import Mapping
from typing import Any

import torch
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer, DynamicSlidingWindowLayer

from .errors import UsageError
from .kvtrace.layers import cache_in, find_attention_layers

Masks = Mapping[int, torch.Tensor]   # layer -> bool [Hkv, n]: kept


class CompactCache(DynamicCache):
    """A cache whose layers may hold different counts of entries; the memory of the rest is free.

    A layer holds what its fullest KV head keeps. Heads that keep fewer are padded with dropped
    entries, which are masked. Like all cut caches of kvpress it counts what it holds: later tokens
    need their `position_ids`, as kvpress's pipeline gives them.

    >>> cache = kvsim.CompactCache(model)
    >>> with kvsim.press("cake", 0.8)(model):
    ...     model(prompt, past_key_values=cache)
    >>> cache.nbytes

    Args:
        model: which will run with it."""

    def __init__(self, model: Any):
        super().__init__(config=model.config)
        self.cut: set[int] = set()
        own = weakref.ref(self)

        def fit(module, args, kwargs):
            """transformers makes one mask [.., queries, entries] for layers of all lengths. All
            prompt entries are visible, so that columns may come and go at its left."""
            cache, mask = own(), kwargs.get("attention_mask")
            if cache is None or cache_in(kwargs) is not cache or mask is None:
                return None
            if module.layer_idx not in cache.cut:
                return None
            held = cache.layers[module.layer_idx].get_seq_length()
            missing = held + mask.shape[-2] - mask.shape[-1]
            if missing > 0:
                mask = torch.cat([mask[..., :1].expand(*mask.shape[:-1], missing), mask], dim=-1)
            elif missing < 0:
                mask = mask[..., -missing:]
            return args, {**kwargs, "attention_mask": mask}

        hooks = [layer.attention.register_forward_pre_hook(fit, with_kwargs=True)
                 for layer in find_attention_layers(model).values()]
        weakref.finalize(self, lambda: [hook.remove() for hook in hooks])

    @property
    def nbytes(self) -> int:
        """Bytes of all keys and values held."""
        return sum(part.numel() * part.element_size() for layer in self.layers
                   if layer.is_initialized for part in (layer.keys, layer.values))


def _cut(layer: DynamicLayer, kept: torch.Tensor, width: int) -> torch.Tensor:
    """Keeps `width` entries per head, kept ones first; returns where padding is, [Hkv, width]."""
    order = torch.argsort((~kept).to(torch.uint8), dim=1, stable=True)[:, :width]
    for name in ("keys", "values"):
        held = getattr(layer, name)
        index = order[None, :, :, None].expand(-1, -1, -1, held.shape[-1])
        setattr(layer, name, held.gather(2, index))
    slots = torch.arange(width, device=kept.device)
    return slots[None] >= kept.sum(dim=1, keepdim=True)


def check_cache(cache: Any) -> None:
    """Refuses, before a prompt runs, a cache whose entries cannot be dropped."""
    if cache is not None and not isinstance(cache, DynamicCache):
        raise UsageError(f"past_key_values: found a {type(cache).__name__}, expected a "
                         "transformers.DynamicCache or a kvsim.CompactCache(model)")


def _check_layer(layer: Any, index: int, n: int) -> None:
    if isinstance(layer, DynamicSlidingWindowLayer):
        raise UsageError(f"layer {index}: its window of {layer.sliding_window} tokens holds the whole "
                         f"prompt of {n}, so that it is compressed, too, which the cache cannot do "
                         f"(found a {type(layer).__name__}): give "
                         "past_key_values=transformers.DynamicCache(), without config")
    if type(layer) is not DynamicLayer or layer.keys.shape[2] != n:
        held = 0 if layer.keys is None else layer.keys.shape[2]
        raise UsageError(f"layer {index}: found a {type(layer).__name__} that holds {held} entries, "
                         "expected a layer of DynamicCache or kvsim.CompactCache that holds "
                         f"{n}")


def compress(cache: Any, masks: Masks, model: Any) -> None:
    """Drops what `masks` do not keep: cut away where the cache can hold that, else masked.

    Args:
        cache: of a prompt of n tokens, just run.
        masks: bool [Hkv, n] on the model's device; other layers keep everything.
        model: whose attention modules get `masked_key_indices`."""
    modules = find_attention_layers(model)
    for one in modules.values():
        one.attention.masked_key_indices = None
    for index, kept in masks.items():
        _check_layer(cache.layers[index], index, kept.shape[1])
    # Entries that each layer holds afterwards. One mask fits all layers of an ordinary cache, so that these are cut
    # where all heads of all layers keep alike, and else hold everything.
    if isinstance(cache, CompactCache):
        widths = {layer: max(1, int(kept.sum(dim=1).max())) for layer, kept in masks.items()}
    else:
        counts = torch.cat([kept.sum(dim=1) for kept in masks.values()])
        alike = len(masks) == len(cache.layers) and bool((counts == counts[0]).all()) and counts[0] > 0
        widths = {layer: int(counts[0]) if alike else kept.shape[1] for layer, kept in masks.items()}
    for index, kept in masks.items():
        layer = cache.layers[index]
        if widths[index] < kept.shape[1]:
            padding = _cut(layer, kept, widths[index])
        else:
            padding = ~kept
        if isinstance(cache, CompactCache):
            cache.cut.add(index)
        if padding.any():
            if model.config.get_text_config()._attn_implementation == "eager":
                raise UsageError(
                    "attention eager: found heads or layers that keep different counts (those with a sliding "
                    "window keep everything), which kvpress masks in registered attention functions alone; give "
                    "past_key_values=kvsim.CompactCache(model) where the heads of a layer keep alike, or "
                    'model.set_attn_implementation("sdpa") where the model knows it')
            heads, slots = padding.nonzero(as_tuple=True)
            modules[index].attention.masked_key_indices = (torch.zeros_like(heads), heads, slots)
