"""Finds how each layer of a model rotates its keys and queries, and proves it by the model.

A few tokens run twice, the second time at positions that are `shift` further on. A layer whose
second keys and queries are its first ones rotated by `shift` is described by that rotation; one
for which no frequencies of the model's rotary modules give that is not."""

import inspect

import numpy as np
import torch

from .layers import find_attention_layers
from .record import last_logits, listening, off, tolerance
from .writer import Rotation, Rotations

REGISTERED_NAME = "kvtrace_rotations"
TOKENS = 24         # that run twice
LARGEST_SHIFT = 1024   # float32 angles of larger ones are too coarse to compare
TOLERANCE, LOW_PRECISION = 1e-3, 5e-2
SAME_POSITIONS, SAME_POSITIONS_LOW_PRECISION = 1e-5, 5e-4   # of logits, where only rounding differs


def _asked(model) -> list[Rotation]:
    """Rotations that the model's rotary modules hold now."""
    found = []
    for module in model.modules():
        for name, values in {**vars(module), **module._buffers}.items():
            if (one := _of_table(values)) is not None and one not in found:
                found.append(one)
            if not name.endswith("inv_freq") or "original" in name or getattr(values, "ndim", 0) != 1:
                continue
            kind = name.removesuffix("inv_freq").removesuffix("_")
            factor = getattr(module, f"{kind}_attention_scaling", getattr(module, "attention_scaling", 1))
            scaling = getattr(module, "rope_type", "default")
            if isinstance(scaling, dict):
                scaling = scaling.get(kind, "default")
            frequencies = tuple(values.detach().double().cpu().tolist())
            one = Rotation(frequencies, attention_factor=float(factor or 1), scaling=str(scaling))
            if one not in found:
                found.append(one)
    return found


def _of_table(values) -> Rotation | None:
    """The frequencies of a table of sines, then cosines, by position, as CodeGen and GPT-J have it."""
    if getattr(values, "ndim", 0) != 2 or not getattr(values, "is_floating_point", bool)() or \
            len(values) < 2 or values.shape[1] % 2:
        return None
    first, second = values[:2].detach().double().cpu().numpy()
    half = len(first) // 2
    if first[:half].any() or (first[half:] != 1).any():
        return None
    return Rotation(tuple(np.arctan2(second[:half], second[half:]).tolist()), scaling="table")


def _candidates(asked: list[Rotation], size: int) -> list[Rotation]:
    """Every layout and place that a head of `size` dimensions has for these frequencies."""
    found = [Rotation((0.0,) * (size // 2))]
    for one in asked:
        rotated = 2 * len(one.inv_freq)
        if rotated <= size:
            other_way = tuple(-frequency for frequency in one.inv_freq)
            found += [Rotation(frequencies, layout, first, one.attention_factor, one.scaling)
                      for frequencies in (one.inv_freq, other_way)
                      for first in dict.fromkeys((0, size - rotated))
                      for layout in ("half", "interleaved")]
    return found


def _heard(model, ids: list[int], positions: list[int], own_name: str | None) -> dict[int, tuple]:
    """Queries and keys of all layers, as they enter the softmax, of tokens at chosen positions."""
    modules = {layer.attention: index for index, layer in find_attention_layers(model).items()}
    seen: dict[int, tuple] = {}

    def attend(own, module, query, key, value, attention_mask, **kwargs):
        layer = modules.get(module)
        if layer is not None and layer not in seen:
            seen[layer] = tuple(one[0].detach().double().cpu().numpy() for one in (query, key))
        return own(module, query, key, value, attention_mask, **kwargs)

    with listening(model, REGISTERED_NAME, attend, own_name):
        last_logits(model, [ids], position_ids=torch.tensor([positions], device=model.device))
    return seen


def own_positions(model, ids: list[int], beside: dict) -> str:
    """Why the positions of a text with images or sounds beside it are not 0, 1, ...: as Qwen's models
    give rows and columns of an image. Empty where they are."""
    if not takes_positions(model):
        return ""
    positions = torch.arange(len(ids), device=model.device)[None]
    own, counted = (last_logits(model, [ids], **beside, **given)[0] for given in ({}, {"position_ids": positions}))
    error = off(counted, own)
    return "" if error < tolerance(model, SAME_POSITIONS, SAME_POSITIONS_LOW_PRECISION) else (
        f"{type(model).__name__} gives tokens of images and sounds positions of their own: with 0, 1, "
        f"... its logits differ by {error:.2g}")


def takes_positions(model) -> bool:
    return "position_ids" in inspect.signature(model.forward).parameters


def find_rotations(model, ids: list[int], layers, own_name: str | None = None) -> Rotations:
    """The rotations with which the model runs a text of tokens `ids` [N].

    Scalings that depend on the length (dynamic, longrope) are those of N tokens: the last token
    of the runs stands at N - 1, where it changes nothing of those before it."""
    name = type(model).__name__
    if not takes_positions(model):
        return Rotations({}, f"{name}: its forward takes no position_ids, so that its rotation cannot be told"
                         if _asked(model) else
                         f"{name} rotates no keys: it has no rotary module, and its forward takes no "
                         "position_ids")
    count = max(1, min(TOKENS, (len(ids) - 1) // 2))
    shift = max(1, min(LARGEST_SHIFT, len(ids) - 1 - count))
    tokens = [*ids[:count], ids[-1]]
    last = max(len(ids) - 1, count + shift)
    runs = [_heard(model, tokens, [*range(begin, begin + count), last], own_name) for begin in (0, shift)]
    most = tolerance(model, TOLERANCE, LOW_PRECISION)
    asked = _asked(model)   # dynamic scalings have changed them
    found, missing = {}, ""
    for layer in layers:
        if layer not in runs[0]:
            missing = missing or f"layer {layer} of {name} did not run"
            continue
        before, after = ([one[:, :count] for one in run[layer]] for run in runs)

        def error(rotation, before=before, after=after):
            return max(float(np.linalg.norm(rotation.turn(one, shift) - moved)
                             / max(np.linalg.norm(moved), 1e-30))
                       for one, moved in zip(before, after))

        # Most layers turn as the one before them.
        candidates = _candidates(asked, before[1].shape[-1])
        best = next(reversed(found.values()), None)
        if best not in candidates or not error(best) < most:
            best = min(candidates, key=error)
        if error(best) < most:
            found[layer] = best
        elif not missing:
            tried = "rotated" if asked else "though it has no rotary module (learned positions?)"
            missing = (f"layer {layer} of {name}: its keys at positions moved by {shift} are not "
                       f"those before, {tried}: they differ by {error(best):.2g}")
    return Rotations(found, missing)
