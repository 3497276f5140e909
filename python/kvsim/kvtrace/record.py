"""Listens in on a model's attention and hands every wanted layer to a TraceWriter.

transformers lets a model's attention function be replaced by name. The one registered here calls
the model's own function and stores what went in and came out, so the model computes exactly what
it computes without it. One layer's tensors are alive at a time: each is written as it appears."""

import contextlib
import functools
import inspect
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import torch
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from ..errors import Error, line_of
from ..trace import Layer
from .between import between, weight_of
from .layers import few_logits, find_attention_layers, hooked
from .stream import StreamWatch
from .writer import TraceWriter, as_array

REGISTERED_NAME = "kvtrace_recorder"
# Rows of eager attention are computed in blocks whose logits take at most this much memory.
EAGER_BLOCK_BYTES = 256 << 20


class OtherAttention(Error):
    """An attention that a trace cannot describe."""


def tolerance(model, exact: float, low: float) -> float:
    """`low` of a model in 16 bits: its numbers are themselves only that exact."""
    return exact if str(model.dtype) in ("torch.float32", "torch.float64") else low


def off(found, own) -> float:
    """How far logits are from a model's own, of their norm."""
    return float((found.float() - own.float()).norm() / own.float().norm())


def check_rows(call: dict, positions: np.ndarray) -> float:
    """Largest relative error, over heads, of attention recomputed from what is stored of a layer, at its
    check positions. `call`: arguments of TraceWriter.layer, queries those of these positions.

    The formula is the trace format's. A large error means that this model's attention does
    something that the format cannot say, and the capture must not pretend otherwise."""
    said = {name: call[name] for name in ("queries", "keys", "values", "scale", "softcap", "sliding_window", "sink")}
    layer = Layer(index=0, query_positions=positions, wo=None, prompt_len=0, **said)
    truth = call["check_output"]
    error = layer.attention() @ np.repeat(layer.values, layer.group_size, axis=0) - truth
    size, error = (np.linalg.norm(one, axis=(1, 2)) for one in (truth, error))
    return float((error / np.where(size > 0, size, np.inf)).max())


def choose_attention(model) -> str:
    """Sets the model's own attention function and returns its name.

    sdpa knows neither soft caps nor sink logits; models with them need their eager function."""
    config = model.config.get_text_config()
    chosen = getattr(model.config, "_attn_implementation", None)
    has_softcap = getattr(config, "attn_logit_softcapping", None) is not None
    has_sinks = any(hasattr(module, "sinks") for module in model.modules())
    if chosen != "sdpa" or has_softcap or has_sinks:
        chosen = "eager"
    model.set_attn_implementation(chosen)
    return chosen


ATTENTION_NAMES = {"eager", "sdpa", "flash_attention_2", "flex_attention"}


def asks_for_name(model) -> bool:
    """Does the model's code name attention functions, so that it may do something else under another
    name than its own?"""
    def names(code) -> set:
        constants = {one for value in code.co_consts
                     for one in (value if isinstance(value, (tuple, frozenset)) else (value,))
                     if isinstance(one, str)}
        return constants & ATTENTION_NAMES

    functions = {inspect.unwrap(type(module).forward) for module in model.modules()}
    return any(names(one.__code__) for one in functions if hasattr(one, "__code__"))


@contextlib.contextmanager
def running(model):
    """Errors of a model's own code, in one line."""
    try:
        yield
    except (Error, MemoryError):
        raise
    except Exception as error:
        raise Error(f"{type(model).__name__}: its forward ends in {type(error).__name__}: "
                    f"{line_of(error)[:200]}") from None


def last_logits(model, ids, rows: int = 1, **given):
    """Logits [B, rows, vocabulary] of the last of tokens [B, N], nothing cached. `given`: what else the
    model's forward takes."""
    with torch.inference_mode(), running(model):
        tokens = torch.as_tensor(ids, device=model.device)
        return model(input_ids=tokens, use_cache=False, **few_logits(model, rows), **given).logits[:, -rows:]


@contextlib.contextmanager
def listening(model, name: str, attend, own: str | None = None) -> Iterator[str]:
    """While the block lasts, `attend` stands in the place of the model's own attention function, or of
    the one named `own`; it is given that one and what that one would be given.

    Yields the own one's name. What is registered under `name` stays for good, and keeps nothing alive."""
    own = own or choose_attention(model)
    # None for the eager one, which every model file has for itself.
    call = functools.partial(_call, None if own == "eager" else ALL_ATTENTION_FUNCTIONS[own])
    # Without a mask function of the same name the model would be given no mask at all.
    ALL_MASK_ATTENTION_FUNCTIONS.register(name, ALL_MASK_ATTENTION_FUNCTIONS[own])
    # kvpress wraps every function that it finds when it is imported, one of an earlier run among
    # them, and a wrapper would stand before what is registered now.
    with contextlib.suppress(KeyError):
        del ALL_ATTENTION_FUNCTIONS[name]
    heard = [attend]
    ALL_ATTENTION_FUNCTIONS.register(name, lambda *arguments, **options: heard[0](call, *arguments, **options))
    model.set_attn_implementation(name)
    try:
        yield own
    finally:
        model.set_attn_implementation(own)
        heard.clear()


def _call(function, module, query, key, value, mask, **kwargs):
    """The model's own function; eager ones row block by row block, to bound their memory."""
    if function is not None:
        return function(module, query, key, value, mask, **kwargs)
    eager = sys.modules[type(module).__module__].eager_attention_forward
    rows = max(1, EAGER_BLOCK_BYTES // (4 * query.shape[0] * query.shape[1] * key.shape[2]))
    parts = []
    for begin in range(0, query.shape[2], rows):
        part = slice(begin, begin + rows)
        part_mask = None if mask is None else mask[:, :, part]
        parts.append(eager(module, query[:, :, part], key, value, part_mask, **kwargs)[0])
    return torch.cat(parts, dim=1), None


@dataclass
class FirstPass:
    """Leavings of a pass over all tokens for runs with a compressed cache: `prompt`, the prompt's keys
    and values by layer, [1, Hkv, n, d]; `heads`, query heads by layer; `logits` [T + 1, vocabulary],
    from the prompt's last token on, None behind a prompt that a pass over other later tokens left."""

    ids: list[int]
    prompt_len: int
    prompt: dict[int, tuple] = field(default_factory=dict)
    heads: dict[int, int] = field(default_factory=dict)
    logits: object = None

    def see(self, layer: int, query, key, value) -> None:
        self.prompt[layer] = tuple(t[:, :, : self.prompt_len].clone() for t in (key, value))
        self.heads[layer] = query.shape[1]


class Recorder:
    """Runs the model once over all tokens and writes the chosen layers.

    `positions` [M] are the stored queries, `checks` [R] a subset of them. `first_pass` keeps what a closed
    loop begins with, when somebody wants it."""

    first_pass: FirstPass | None = None

    def __init__(self, model, layers: list[int], positions, checks, writer: TraceWriter, progress):
        self.model = model
        self.writer = writer
        self.positions = positions
        self.checks = checks
        self.progress = progress
        self.modules = find_attention_layers(model)
        self.wanted = set(layers)
        self.residual_norms: dict[int, np.ndarray] = {}
        self.calls: dict[int, dict] = {}   # of the layer whose block is at work, for TraceWriter.layer
        self.done: list[int] = []
        self.other: dict[int, str] = {}   # layers that attend to something else than the tokens
        self.tolerance = tolerance(model, 1e-3, 5e-2)
        # One product, whose result is rounded once.
        self.stream_tolerance = tolerance(model, 1e-3, 1e-2)

    def run(self, ids: list[int], leave_out: bool = False, beside: dict | None = None) -> dict[int, str]:
        """One teacher-forced pass over `ids`, and what is given beside them. Leaves the model as it
        was. Layers that do not run are refused, or, with `leave_out`, returned with what they are."""
        # All logits would take N x vocabulary floats.
        rows = 1 if self.first_pass is None else len(ids) - self.first_pass.prompt_len + 1
        with listening(self.model, REGISTERED_NAME, self._attend) as self.own_name, hooked(self.hooks()):
            logits = last_logits(self.model, [ids], rows, **(beside or {}))[0]
        self.last_logits = logits[-1]
        if self.first_pass is not None:
            self.first_pass.logits = logits
        if 0 < len(self.done) < len(self.wanted) and leave_out:
            return {layer: f"{type(self.modules[layer].attention).__name__}, which "
                           + self.other.get(layer, "does not run on text alone")
                    for layer in sorted(self.wanted - set(self.done))}
        self.check_complete()
        return {}

    def refuse_other_model(self, ids: list[int], beside: dict | None = None) -> None:
        """Where the model asks for the name of its attention: without the recorder it must give the
        same logits."""
        if not asks_for_name(self.model):
            return
        own = last_logits(self.model, [ids], **(beside or {}))[0, -1]
        error = off(self.last_logits, own)
        if not error < 2 * self.tolerance:
            raise Error(
                f"{type(self.model).__name__}: asks for the name of its attention function and does "
                f"something else under that of a recorder: logits differ by {error:.2g}, as where "
                "attention is sparse")

    def check_complete(self) -> None:
        """Refuses a model that went past the recorder in a wanted layer."""
        if len(self.done) != len(self.wanted):
            lost = sorted(self.wanted - set(self.done))
            if lost[0] in self.other:
                raise Error(f"layer {lost[0]}: {type(self.modules[lost[0]].attention).__name__} {self.other[lost[0]]}")
            raise Error(
                f"layer {lost[0]}: {type(self.model).__name__} does not go through "
                "transformers' ALL_ATTENTION_FUNCTIONS; this model cannot be captured")

    def hooks(self) -> list:
        """What listens in beside the attention itself."""
        # A part of a probe may have no check position; its last token then stands for them.
        checks = self.checks if len(self.checks) else self.positions[-1:]
        self.watch = StreamWatch(checks)
        return [hook for layer in sorted(self.wanted) for hook in (
            self.norm_hook(self.modules[layer].block, layer, self.residual_norms),
            *self.watch.hooks(self.modules[layer], functools.partial(self._leave, layer)))]

    def _leave(self, layer: int, trail, output) -> None:
        call = self.calls.pop(layer, None)
        if call is not None and output is not None:
            self._write(layer, call | self.between(layer, trail, output))
            self.done.append(layer)
            self.progress(len(self.done), len(self.wanted))

    def norm_hook(self, module, layer: int, norms: dict[int, np.ndarray]):
        """Keeps the norm of what enters a module, at the stored positions."""
        def hook(module, args, kwargs):
            hidden = args[0] if args else kwargs["hidden_states"]
            norms[layer] = as_array(hidden[0, self.positions].float().norm(dim=-1))

        return module.register_forward_pre_hook(hook, with_kwargs=True)

    def _attend(self, own, module, query, key, value, attention_mask, **kwargs):
        """Called by the model: query [1, Hq, N, d], key [1, Hkv, N, d]; returns [1, N, Hq, dv]."""
        output, weights = own(module, query, key, value, attention_mask, **kwargs)
        layer = getattr(module, "layer_idx", None)
        if layer in self.wanted and layer not in self.done and \
                module is self.modules[layer].attention:   # not that of an image's encoder
            if key.shape[2] != query.shape[2]:
                self.other[layer] = (f"attends to {key.shape[2]} entries that are none of the {query.shape[2]} tokens")
                return output, weights
            if self.first_pass is not None:
                self.first_pass.see(layer, query, key, value)
            self.watch.heads(output)
            self.calls[layer] = self._describe(query, key, value, output, **kwargs)
        return output, weights

    def _describe(self, query, key, value, output, scaling=None, softcap=None, sliding_window=None,
                  s_aux=None, **_) -> dict:
        return {"queries": as_array(query[0][:, self.positions]), "keys": as_array(key[0]),
                "values": as_array(value[0]),
                "check_output": as_array(output[0][self.checks].transpose(0, 1)),
                "scale": float(query.shape[-1] ** -0.5 if scaling is None else scaling),
                "softcap": float(softcap) if softcap else None,
                "sliding_window": int(sliding_window) if sliding_window else None,
                "sink": None if s_aux is None else as_array(s_aux).reshape(query.shape[1])}

    def refuse_other_attention(self, layer: int, call: dict) -> None:
        rows = np.searchsorted(self.positions, self.checks)
        error = check_rows(call | {"queries": call["queries"][:, rows]}, self.checks)
        if not error < self.tolerance:
            raise OtherAttention(
                f"layer {layer}: attention recomputed from q, k, v differs from the model's by "
                f"{error:.2g} (tolerance {self.tolerance:.0e}): this attention is not softmax "
                "over a causal or sliding window, which is all that a trace can describe")

    def between(self, layer: int, trail, output) -> dict:
        """Finds what stands between heads and stream, and refuses what a trace cannot describe: all that
        it would say the layer adds must be what is added."""
        parts = self.modules[layer]
        names = {id(module): name for name, module in self.model.named_modules()}
        block, projection = names[id(parts.block)], names[id(parts.projection)]
        try:
            real = self.watch.contribution(trail, output)
            weight = weight_of(parts.projection)
            if weight.ndim != 2 or weight.shape[1] != real.heads.shape[1]:
                raise Error(
                    f"{projection}: found a weight of shape {list(weight.shape)}, expected "
                    f"[D, {real.heads.shape[1]}]; quantised weights must be loaded unquantised")
            return between(real, parts.projection, (block, projection), self.positions,
                           self.watch.positions, self.stream_tolerance)
        except Error as error:
            raise Error(f"layer {layer}: {block} ({type(parts.block).__name__}): {error}, "
                        "which a trace cannot describe") from None

    def _write(self, layer: int, call: dict) -> None:
        self.refuse_other_attention(layer, call)
        weight = as_array(weight_of(self.modules[layer].projection))
        heads, width = len(call["queries"]), call["values"].shape[2]
        # [D, Hq * dv] -> [Hq, dv, D]; a bias of the projection is the same for every kept set and no part
        # of any head's share, so it is not stored.
        self.writer.layer(layer, wo=weight.T.reshape(heads, width, -1),
                          residual_norm=self.residual_norms.pop(layer), **call)
