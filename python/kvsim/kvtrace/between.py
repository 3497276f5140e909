"""Finds what stands between a layer's heads and the residual stream (trace-format.md 8): a gate, a norm
before or behind the output projection, a multiplier.

No list of families says so. The modules that the layer's vectors went through are asked what they
make of a vector of ones, and whatever is found must give the model's own numbers.
"""

from dataclasses import dataclass

import numpy as np
import torch

from .errors import EXIT_FAILURE, CaptureError
from .stream import Contribution, relative
from .writer import PathNorm

SMALL = 2.0 ** -10   # a second size of vectors that modules are asked with: its square is near an eps


@dataclass
class Between:
    """gate [Hq, M, dv or 1] at the stored queries and the two norms, None where there is none;
    added [R, D]: what came to the stream at the check positions, without the projection's bias."""

    gate: np.ndarray | None
    inner: PathNorm | None
    outer: PathNorm | None
    added: np.ndarray


def weight_of(projection):
    """The projection's matrix as a linear layer has it, [D, Hq * dv]; GPT-2's is transposed."""
    from transformers.pytorch_utils import Conv1D

    weight = projection.weight.detach()
    return weight.T if isinstance(projection, Conv1D) else weight


def asked(module, width: int, like) -> tuple[np.ndarray, float | None] | None:
    """The gain [width] and the eps with which a module answers as a root-mean-square norm does;
    no eps: as a gain alone. None where it cannot be asked."""
    try:
        with torch.no_grad():
            whole, part = (
                module(torch.full((1, 1, width), size, dtype=like.dtype, device=like.device))
                .double().cpu().numpy().reshape(-1) for size in (1.0, SMALL))
    except Exception:   # of a module that takes something else, of any kind
        return None
    if whole.shape != (width,) or part.shape != (width,) or not np.abs(whole).max() > 0:
        return None
    at = int(np.abs(whole).argmax())
    share = (part[at] / whole[at]) ** 2 / SMALL**2   # 1 of a gain; 1 / SMALL^2 of a norm without eps
    if abs(share - 1) < 1e-2:
        return whole, None
    eps = max(0.0, (1 - share * SMALL**2) / (share - 1))
    for name in ("eps", "variance_epsilon", "epsilon"):
        own = getattr(module, name, None)
        if isinstance(own, float) and abs(own - eps) <= 0.05 * own + 1e-9:
            eps = own
    gain = whole * np.sqrt(1 + eps)
    weight = getattr(module, "weight", None)
    if weight is not None and tuple(weight.shape) == (width,):
        exact = weight.detach().double().cpu().numpy()   # Gemma's norms multiply with 1 + w
        nearest = min((exact, 1 + exact), key=lambda one: relative(one, gain))
        gain = nearest if relative(nearest, gain) < 1e-2 else gain
    return gain, eps


def norm_of(modules: list, before: np.ndarray, after: np.ndarray, like,
            tolerance: float) -> PathNorm | None:
    """Finds what makes `after` [R, width] of `before`: a norm among the modules, a multiplier, or both.
    None where nothing does that is known. Its roots are not set."""
    width, wide = before.shape[1], before.astype(np.float64)
    answers = [answer for module in modules if (answer := asked(module, width, like))]
    for gain, eps in [*answers, (np.ones(width), None)]:
        root = 1.0 if eps is None else np.sqrt(np.square(wide).mean(-1, keepdims=True) + eps)
        made = wide / root * gain
        size = float(np.vdot(made, made))
        factor = float(np.vdot(made, after)) / size if size > 0 else 1.0
        if abs(factor - 1) < tolerance / 10:
            factor = 1.0
        if relative(factor * made, after) < tolerance:
            return PathNorm(factor * gain, eps)
    return None


class Finder:
    """Finds what stands between in one layer, or says what is unknown there.

    Args:
        real: what the model added.
        projection: the module of W_O.
        names: of the block and of the projection.
        positions, checks: [M], [R] positions of stored queries and of the rows of `real`.
        tolerance: relative; above it two vectors are not the same.
    """

    def __init__(self, real: Contribution, projection, names: tuple[str, str], positions, checks,
                 tolerance: float):
        self.real, self.projection, self.tolerance = real, projection, tolerance
        self.block, self.name = names
        self.positions = torch.as_tensor(np.asarray(positions, dtype=np.int64))
        self.checks = torch.as_tensor(np.asarray(checks, dtype=np.int64))
        bias = getattr(projection, "bias", None)
        self.bias = None if bias is None else bias.detach().float().cpu().numpy()

    def find(self) -> Between:
        real = self.real
        product, gated = self.gate()
        inner = None
        if relative(real.given, gated) >= self.tolerance:
            inner = norm_of(real.inner, gated, real.given, self.projection.weight, self.tolerance)
            if inner is None:
                self.refuse(f"{self.name} is given something else than what the heads put out",
                            relative(real.given, real.heads))
        self.check_projection()
        outer = None
        if relative(real.added, real.projected) >= self.tolerance:
            outer = norm_of(real.outer, real.projected, real.added, self.projection.weight,
                            self.tolerance)
            if outer is None:
                self.refuse(f"what {self.block} adds to the residual stream is not the output of "
                            f"{self.name}; it", relative(real.added, real.projected))
            if outer.eps is not None and self.bias is not None and self.bias.any():
                raise CaptureError(f"{self.name} has a bias, and a norm behind it", EXIT_FAILURE)
        self.set_roots(product, inner, outer)
        at = self.positions.to(real.head_outputs.device)
        gate = None if product is None else product[at].transpose(0, 1).float().cpu().numpy()
        added = real.added
        if self.bias is not None and (outer is None or outer.eps is None):
            added = added - self.bias * (1.0 if outer is None else outer.gain)
        return Between(gate, inner, outer, added)

    def gate(self):
        """The factors together [N, Hq, dv or 1], or None; and the rows [R, Hq * dv] behind them."""
        heads = self.real.heads
        if not self.real.gates or relative(self.real.given, heads) < self.tolerance:
            return None, heads
        product = self.real.gates[0]
        for other in self.real.gates[1:]:
            product = product * other
        rows = product[self.checks.to(product.device)].float().cpu().numpy()
        return product, (heads.reshape(len(heads), rows.shape[1], -1) * rows).reshape(heads.shape)

    def check_projection(self) -> None:
        """The weight, and the bias, give what the projection gave."""
        weight = weight_of(self.projection).float().cpu().numpy()
        found = self.real.given @ weight.T
        if self.bias is not None:
            found = found + self.bias
        error = relative(found, self.real.projected)
        if not error < self.tolerance:
            self.refuse(f"{self.name}: the product with its weight", error)

    def set_roots(self, product, inner: PathNorm | None, outer: PathNorm | None) -> None:
        """Roots of the norms at the stored queries, as the model has them."""
        real = self.real
        at = self.positions.to(real.head_outputs.device)
        if inner is not None and inner.eps is not None:
            outputs = real.head_outputs[at].float()
            if product is not None:
                outputs = outputs * product[at].float()
            inner.rms = (outputs.square().mean((1, 2)) + inner.eps).sqrt().cpu().numpy()
        if outer is not None and outer.eps is not None:
            outer.rms = (real.mean_squares[at] + outer.eps).sqrt().cpu().numpy()

    def refuse(self, what: str, error: float) -> None:
        raise CaptureError(f"{what} differs by {error:.2g} (tolerance {self.tolerance:.0e})",
                           EXIT_FAILURE)
