"""Finds what stands between a layer's heads and the residual stream (trace-format.md 8): a gate, a norm
before or behind the output projection, a multiplier.

No list of families says so. The modules that the layer's vectors went through are asked what they
make of a vector of ones, and whatever is found must give the model's own numbers."""

import functools
import operator

import numpy as np
import torch

from ..errors import Error
from .stream import Contribution, relative
from .writer import PathNorm, as_array

SMALL = 2.0 ** -10   # a second size of vectors that modules are asked with: its square is near an eps


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


def norm_of(modules: list, before: np.ndarray, after: np.ndarray, like, tolerance: float) -> PathNorm | None:
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


def between(real: Contribution, projection, names: tuple[str, str], positions, checks, tolerance: float) -> dict:
    """Finds what stands between in one layer, as arguments of TraceWriter.layer, or says what is unknown
    there.

    Args:
        real: what the model added.
        projection: the module of W_O.
        names: of the block and of the projection.
        positions, checks: [M], [R] positions of stored queries and of the rows of `real`.
        tolerance: relative; above it two vectors are not the same."""
    block, name = names
    bias = getattr(projection, "bias", None)
    bias = None if bias is None else as_array(bias)

    def refuse(what: str, error: float) -> None:
        raise Error(f"{what} differs by {error:.2g} (tolerance {tolerance:.0e})")

    def norm(modules: list, before, after, what: str, compared) -> PathNorm | None:
        if relative(after, before) < tolerance:
            return None
        found = norm_of(modules, before, after, projection.weight, tolerance)
        return found or refuse(what, relative(after, compared))

    outputs, rows, gate = real.head_outputs[positions].float(), real.heads, None
    if real.gates and not relative(real.given, rows) < tolerance:
        product = functools.reduce(operator.mul, real.gates)
        factors = as_array(product[checks])
        rows = (rows.reshape(len(rows), factors.shape[1], -1) * factors).reshape(rows.shape)
        gate = product[positions].float()
        outputs = outputs * gate
    inner = norm(real.inner, rows, real.given,
                 f"{name} is given something else than what the heads put out", real.heads)
    product = real.given @ as_array(weight_of(projection)).T + (0 if bias is None else bias)
    if not (error := relative(product, real.projected)) < tolerance:
        refuse(f"{name}: the product with its weight", error)
    outer = norm(real.outer, real.projected, real.added, f"what {block} adds to the residual stream is "
                 f"not the output of {name}; it", real.projected)
    # Roots of the norms at the stored queries, as the model has them.
    if inner is not None and inner.eps is not None:
        inner.rms = as_array((outputs.square().mean((1, 2)) + inner.eps).sqrt())
    added = real.added
    if outer is not None and outer.eps is not None:
        if bias is not None and bias.any():
            raise Error(f"{name} has a bias, and a norm behind it")
        outer.rms = as_array((real.mean_squares[positions] + outer.eps).sqrt())
    elif bias is not None:
        added = added - bias * (1.0 if outer is None else outer.gain)
    return {"gate": None if gate is None else as_array(gate.transpose(0, 1)), "inner": inner,
            "outer": outer, "check_added": added}
