"""Images and sounds that a model is given beside the tokens of a text, as its processor makes them.

A processor puts tokens into the prompt that stand for the patches of an image or the frames of a
sound, and the model puts vectors in their place. To its decoder they are tokens like others, so
that their keys and values are entries like others. Runs of them become spans."""

import itertools
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from ..errors import UsageError

TOKENS, MASK = "input_ids", "attention_mask"
# Configurations name their tokens so: image_token_id, audio_token_index, ...
KINDS = re.compile(r"(image|video|audio|speech|sound)_token_(id|index)")


@dataclass
class Inputs:
    """A prompt of `ids` [n] with what stands beside it: `tensors` by the names of the model's
    forward, and `spans` (name, begin, end) of the tokens that stand for images and sounds."""

    ids: list[int]
    tensors: dict[str, Any] = field(default_factory=dict)
    spans: list[tuple[str, int, int]] = field(default_factory=list)

    def of(self, count: int) -> dict[str, Any]:
        """The tensors beside the first `count` tokens, those of the prompt and later ones of text.
        A number for each token, such as a kind, is 0 for a later one. The mask says that nothing is
        padded: without one, positions of rows and columns are taken for those of several texts."""
        n = len(self.ids)

        def fitting(values):
            if getattr(values, "ndim", 0) < 2 or values.shape[:2] != (1, n):
                return values
            rest = values.new_zeros((1, max(0, count - n), *values.shape[2:]))
            return torch.cat([values[:, :count], rest], dim=1)

        device = next((one.device for one in self.tensors.values() if hasattr(one, "device")), None)
        return {MASK: torch.ones(1, count, dtype=torch.long, device=device),
                **{name: fitting(values) for name, values in self.tensors.items()}}

    @property
    def places(self) -> list[int]:
        """Positions of tokens that stand for images and sounds."""
        return [at for _, begin, end in self.spans for at in range(begin, end)]

    @property
    def words(self) -> list[int]:
        """Tokens of the text alone."""
        inside = set(self.places)
        return [token for at, token in enumerate(self.ids) if at not in inside]


def beside(inputs: Inputs | None, count: int) -> dict[str, Any]:
    """What stands beside the first `count` tokens; nothing beside a text alone."""
    return inputs.of(count) if inputs else {}


def read_inputs(model, given: Mapping[str, Any]) -> Inputs:
    """Output of a processor for one prompt, checked and brought to the model's device and type."""
    tokens = given.get(TOKENS) if isinstance(given, Mapping) else None
    if not isinstance(tokens, torch.Tensor) or tokens.ndim != 2 or len(tokens) != 1:
        found = f"{TOKENS} of shape {list(tokens.shape)}" if hasattr(tokens, "shape") else f"{given!r:.60}"
        raise UsageError(
            f"inputs: found {found}, expected what the model's processor gives for "
            "one prompt: processor(text=..., images=..., return_tensors=\"pt\")")
    mask = given.get(MASK)
    if mask is not None and not bool(torch.as_tensor(mask).all()):
        raise UsageError("inputs: found zeros in attention_mask, expected a prompt without padding")
    tensors = {}
    for name, values in given.items():
        if name in (TOKENS, MASK) or values is None:
            continue
        if isinstance(values, torch.Tensor):
            values = values.to(model.device, model.dtype if values.is_floating_point() else None)
        tensors[name] = values
    ids = [int(one) for one in tokens[0]]
    return Inputs(ids, tensors, _spans(model.config, ids))


def _spans(config, ids: list[int]) -> list[tuple[str, int, int]]:
    """Runs of a token that stands for a part of an image or sound: `image`, or, of several, `image1`,
    `image2`, ..."""
    kinds = {value: found[1] for name, value in vars(config).items()
             if (found := KINDS.fullmatch(name)) and isinstance(value, int)}
    runs: dict[str, list[tuple[int, int]]] = {}
    for token, run in itertools.groupby(enumerate(ids), lambda one: one[1]):
        if kind := kinds.get(token):
            places = [at for at, _ in run]
            runs.setdefault(kind, []).append((places[0], places[-1] + 1))
    return sorted(((kind if len(found) == 1 else f"{kind}{number}", *run)
                   for kind, found in runs.items() for number, run in enumerate(found, 1)),
                  key=lambda span: span[1])
