"""Follows what a layer's attention puts out, operation by operation, into the residual stream.

A trace's errors are those of the residual stream. So a capture must know what the model really
adds to it, which no configuration says: there may be a norm, a gate or a multiplier on the way.
Every operation of a block passes a StreamWatch. It knows the tensors that stem from the heads'
outputs and those that are the stream itself, and compares numbers where the two meet. What stands
between is found by asking the modules on the way (trace-format.md 8), and proved by those numbers."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from ..errors import Error
from .layers import AttentionLayer

MULTIPLICATIONS = (torch.ops.aten.mul.Tensor, torch.ops.aten.mul_.Tensor)
SAME = 1e-4   # relative; the residual stream in numbers, put together from others by rounding
ADDITIONS = (torch.ops.aten.add.Tensor, torch.ops.aten.add_.Tensor)


def relative(found: np.ndarray, expected: np.ndarray) -> float:
    """|found - expected| / |expected|; 0 of nothing."""
    size = float(np.linalg.norm(expected))
    off = float(np.linalg.norm(np.asarray(found, np.float64) - expected))
    return off / size if size > 0 else off


@dataclass
class Contribution:
    """Share of one layer in the stream; rows [R] are those of the check positions.

    heads [R, Hq * dv] is what the heads put out, given what the output projection was given,
    projected [R, D] what it made of it (with its bias), added [R, D] what came to the stream.
    gates: factors [N, Hq, dv or 1] on the way. inner, outer: modules on the way before and behind
    the projection. head_outputs [N, Hq, dv]; mean_squares [N] of `projected`."""

    heads: np.ndarray
    given: np.ndarray
    projected: np.ndarray
    added: np.ndarray
    gates: list
    inner: list
    outer: list
    head_outputs: torch.Tensor
    mean_squares: torch.Tensor


class Trail:
    """The tensors of one layer that are followed, by id; kept, so that no id is used twice."""

    def __init__(self, entering):
        self.entering = entering        # what enters the block, [1, N, D]
        self.ours = {}                  # what stems from the heads
        self.stream = {id(entering): entering}   # the stream, before and after
        self.found = {}                 # parts of the Contribution, as they appear
        self.elsewhere = None           # how far from the stream what it is added to is
        self.share = None               # the tensor that is added
        self.added = False


class StreamWatch(TorchDispatchMode):
    """Follows one block at a time. `positions` [R] are the rows that are compared."""

    def __init__(self, positions):
        super().__init__()
        self.positions = [int(p) for p in positions]
        self.trail: Trail | None = None

    def hooks(self, parts: AttentionLayer, done: Callable) -> list:
        """Hooks that follow one layer, operation by operation, while its block runs: when that ends, well
        or not, `done(trail, output)` is called. Where nobody tells what the heads put out, it is what the
        projection is given."""
        def enter(module, args, kwargs):
            self.trail = Trail(args[0] if args else kwargs["hidden_states"])
            self.modules = torch.nn.modules.module.register_module_forward_pre_hook(passed)
            self.__enter__()

        def passed(module, args):   # a module is called; is it given what we follow?
            trail = self.trail
            if trail and not trail.added and args and id(args[0]) in trail.ours:
                trail.found["outer" if "projected" in trail.found else "inner"].append(module)

        def projected(module, args, output):
            if not self.trail:
                return
            if "heads" not in self.trail.found and args[0].dim() == 3:
                self.heads(args[0][:, :, None])
            self.trail.ours = {id(output): output}
            flat = output.detach().reshape(-1, output.shape[-1])
            self.trail.found |= {"given": self.rows_of(args[0]), "projected": self.rows_of(output),
                                 "mean_squares": flat.float().square().mean(-1)}

        def leave(module, args, output):
            trail, self.trail = self.trail, None
            if trail is not None:
                self.__exit__(None, None, None)
                self.modules.remove()
                done(trail, output)

        return [parts.block.register_forward_pre_hook(enter, with_kwargs=True),
                parts.projection.register_forward_hook(projected),
                parts.block.register_forward_hook(leave, always_call=True)]

    def heads(self, output) -> None:
        """Takes what the heads put out, [1, N, Hq, dv]."""
        if self.trail:
            self.trail.ours = {id(output): output}
            self.trail.found = {"heads": self.rows_of(output), "head_outputs": output.detach()[0],
                                "gates": [], "inner": [], "outer": []}

    def contribution(self, trail: Trail, output) -> Contribution:
        """Says what the layer added, as its block gives `output`."""
        output = output[0] if isinstance(output, tuple) else output
        if "projected" not in trail.found:
            raise Error("what its heads put out does not reach the output projection")
        if not trail.added:
            raise Error(
                "what the output projection gives is "
                + ("not added to the residual stream" if trail.elsewhere is None else
                   "added to a mixture of several streams" if trail.elsewhere < SAME else
                   "added to a vector that differs from the residual stream by "
                   f"{trail.elsewhere:.2g}"))
        if id(output) not in trail.stream:
            last = self.rows_of(next(reversed(trail.stream.values())))
            raise Error(
                "what leaves it differs from the residual stream and all that was added to it by "
                f"{relative(self.rows_of(output), last):.2g}")
        return Contribution(**trail.found)

    def rows_of(self, tensor) -> np.ndarray:
        """[R, width] of a tensor [1, N, ...] or [N, width], as float32."""
        whole = tensor.detach() if tensor.dim() == 2 else tensor.detach()[0]
        return whole[self.positions].reshape(len(self.positions), -1).float().cpu().numpy()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        trail = self.trail
        given = [one for one in tree_leaves((args, kwargs)) if isinstance(one, torch.Tensor)]
        ours = [one for one in given if id(one) in trail.ours]
        stream = [one for one in given if id(one) in trail.stream]
        if not ours and not stream:
            return func(*args, **kwargs)
        if func in MULTIPLICATIONS and ours and "projected" not in trail.found:
            self.multiply(given, ours)
        if func in ADDITIONS and len(given) == 2 and given[0].numel() == given[1].numel():
            return self.add(func, args, kwargs, ours, stream)
        result = func(*args, **kwargs)
        for made in tree_leaves(result):
            if not isinstance(made, torch.Tensor):
                continue
            if ours and not trail.added:
                trail.ours[id(made)] = made
            if id(made) in trail.stream:
                if func._schema.is_mutable:
                    del trail.stream[id(made)]   # other numbers in the same place
            elif stream and len(given) == 1 and self.same(made, stream[0]):
                trail.stream[id(made)] = made
        return result

    def same(self, made, before) -> bool:
        """Is it the same numbers in another shape or type?"""
        return made.numel() == before.numel() and made.is_floating_point() and bool(
            (made.reshape(before.shape) == before).all())

    def multiply(self, given: list, ours: list) -> None:
        """Keeps a factor that is another one for every token, as [N, Hq, dv or 1]."""
        tokens, heads, width = self.trail.found["head_outputs"].shape
        other = next((one for one in given if id(one) not in self.trail.ours), None)
        if len(ours) != 1 or other is None or other.dim() < 2 or other.shape[1] != tokens:
            return
        if other.numel() == tokens * heads * width:
            self.trail.found["gates"].append(other.detach().reshape(tokens, heads, width))
        elif ours[0].dim() == 4 and other.numel() in (tokens * heads, tokens):
            whole = other.detach().reshape(tokens, -1, 1)
            self.trail.found["gates"].append(whole.expand(tokens, heads, 1))

    def add(self, func, args, kwargs, ours: list, stream: list):
        """Two tensors of one size are added, one of them at least known."""
        trail = self.trail
        shared = len(ours) == 1 and "projected" in trail.found and not trail.added
        if shared:
            factor = kwargs.get("alpha", 1) if args[1] is ours[0] else 1
            trail.share = ours[0] if trail.share is None else trail.share
            trail.found.setdefault("added", self.rows_of(ours[0]) * factor)
            if not stream:
                other = args[0] if args[1] is ours[0] else args[1]
                trail.elsewhere = relative(self.rows_of(other), self.rows_of(trail.entering))
        result = func(*args, **kwargs)
        if stream:
            trail.stream[id(result)] = result
            trail.added = trail.added or shared
        elif shared:
            trail.ours[id(result)] = result
        return result

