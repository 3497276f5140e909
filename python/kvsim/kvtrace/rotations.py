"""Rotation of keys and queries by position, as a trace states it."""

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Rotation:
    """Pairs of dimensions turn by position * inv_freq [r], r <= d/2. A pair is (first + j,
    first + j + r), layout half, or (first + 2j, first + 2j + 1), interleaved; the other dimensions
    stay. Zeros are layers without positions, negative numbers turn the other way. The model
    multiplies what it rotates by `attention_factor`; `scaling` is its name for how it comes to
    these frequencies.
    """

    inv_freq: tuple[float, ...]
    layout: str = "half"
    first: int = 0
    attention_factor: float = 1.0
    scaling: str = "default"

    def turn(self, rows: np.ndarray, by: float) -> np.ndarray:
        """Rows [..., d] by a number of positions, in float64."""
        turned = np.array(rows, dtype=np.float64)
        count = len(self.inv_freq)
        if self.layout == "half":
            pairs = np.arange(count) + self.first, np.arange(count) + self.first + count
        else:
            pairs = self.first + 2 * np.arange(count), self.first + 2 * np.arange(count) + 1
        cosine, sine = (f(by * np.array(self.inv_freq)) for f in (np.cos, np.sin))
        a, b = turned[..., pairs[0]], turned[..., pairs[1]]
        turned[..., pairs[0]], turned[..., pairs[1]] = a * cosine - b * sine, b * cosine + a * sine
        return turned


@dataclass
class Rotations:
    """By layer, of those that are proved; `missing`: why the others are not, in one line."""

    layers: dict[int, Rotation]
    missing: str = ""
