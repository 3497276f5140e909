"""A kvpress press that keeps what kvsim kept: any policy of kvsim in kvpress's evaluations.

    press = KeptSetsPress("kept.h5")            # of `kvsim export`; or a folder of such files
    with press(model):
        model(prompt_ids, past_key_values=cache)

A file's sets belong to one prompt. The press compares the prompt's tokens with those of its files
and takes the file that has them, so that a folder serves an evaluation over many contexts.
Dropped entries are masked head by head, as kvpress does for AdaKV: losses are those of the smaller
cache, memory is not. Needs kvpress (tested with 0.5.5), h5py and numpy.
"""

from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import h5py
import numpy as np
import torch
from kvpress import BasePress


@dataclass
class _File:
    """One export: `kept` maps a layer to bool [Hkv, n]; other layers keep everything."""

    path: Path
    prompt_len: int
    tokens: np.ndarray | None
    kept: dict[int, np.ndarray]

    def is_of(self, ids: np.ndarray) -> bool:
        if self.tokens is None:
            return len(ids) == self.prompt_len
        return np.array_equal(self.tokens, ids)


def _read(path: Path) -> _File:
    with h5py.File(path) as f:
        if f.attrs.get("format") != "kvsim-kept" or f.attrs.get("version") != 1:
            raise ValueError(f"{path}: not written by kvsim export")
        if f.attrs["granularity"] != "kv":
            raise ValueError(
                f"{path}: {f.attrs['policy']} keeps other entries in query heads that share a KV "
                "head; kvpress masks whole KV heads"
            )
        kept = {int(layer): group["kept"][:] == 1 for layer, group in f["layers"].items()}
        tokens = f["tokens/id"][:] if "tokens/id" in f else None
        return _File(path, int(f.attrs["prompt_len"]), tokens, kept)


@dataclass
class KeptSetsPress(BasePress):
    """`path`: a file of `kvsim export`, or a folder of them, one per prompt."""

    path: str
    files: list = field(init=False, repr=False)
    chosen: _File | None = field(init=False, default=None, repr=False)

    def __post_init__(self):
        path = Path(self.path)
        self.files = [_read(one) for one in (sorted(path.glob("*.h5")) if path.is_dir() else [path])]
        if not self.files:
            raise ValueError(f"{path}: no .h5 files")
        if len(self.files) > 1 and any(one.tokens is None for one in self.files):
            raise ValueError(f"{path}: several prompts, but not every file holds its tokens")

    @property
    def compression_ratio(self) -> float:
        """Share of entries dropped in the layers of the file in use, as kvpress counts it."""
        one = self.chosen or self.files[0]
        return 1.0 - float(np.mean([mask.mean() for mask in one.kept.values()]))

    @contextmanager
    def __call__(self, model):
        language_model = getattr(model.model, "language_model", model.model)
        hook = language_model.register_forward_pre_hook(self._see_prompt, with_kwargs=True)
        try:
            with super().__call__(model):
                yield
        finally:
            hook.remove()

    def _see_prompt(self, module, args, kwargs) -> None:
        """Finds the sets of the prompt that is about to be run; later tokens are none of it."""
        cache = kwargs.get("past_key_values")
        if cache is not None and cache.get_seq_length() > 0:
            return
        ids = kwargs["input_ids"] if kwargs.get("input_ids") is not None else args[0]
        if ids.shape[0] != 1:
            raise ValueError("KeptSetsPress takes one prompt at a time")
        ids = ids[0].cpu().numpy()
        self.chosen = next((one for one in self.files if one.is_of(ids)), None)
        if self.chosen is None:
            raise ValueError(f"{self.path}: no kept sets for this prompt of {len(ids)} tokens")

    def compress(self, module, hidden_states, keys, values, attentions, kwargs):
        """Marks what the layer drops; kvpress's attention then gives it no weight."""
        kept = self.chosen.kept.get(module.layer_idx)
        if kept is None:
            return keys, values
        if kept.shape != tuple(keys.shape[1:3]):
            raise ValueError(f"{self.chosen.path}: layer {module.layer_idx}: sets of shape "
                             f"{kept.shape}, the cache has {tuple(keys.shape[1:3])}")
        heads, entries = (torch.from_numpy(part) for part in np.nonzero(~kept))
        module.masked_key_indices = (torch.zeros_like(heads), heads, entries)
        return keys, values
