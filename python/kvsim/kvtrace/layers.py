"""Finds a model's attention layers by what its modules do, not by a list of families."""

import contextlib
import dis
import functools
import inspect
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from ..errors import Error

REGISTRY = "ALL_ATTENTION_FUNCTIONS"   # of transformers; what calls it can be listened to
# Names of a forward's argument for the cache: from 5.24 on the older one warns and will end.
NEW, OLD = "cache", "past_key_values"


@dataclass
class AttentionLayer:
    """One layer of the model: its attention, output projection and the block around both."""

    attention: object
    projection: object
    block: object


@contextlib.contextmanager
def hooked(hooks: list) -> Iterator[None]:
    """The hooks are there as long as the block."""
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def layer_modules(model) -> dict[int, list[str]]:
    """Names of the decoder's modules that say which layer they are of, in the model's order."""
    decoder = model.get_decoder() if hasattr(model, "get_decoder") else None
    own = set((decoder if hasattr(decoder, "modules") else model).modules())
    found: dict[int, list[str]] = {}
    for name, module in model.named_modules():
        index = getattr(module, "layer_idx", None)
        if module in own and isinstance(index, int) and index >= 0:
            found.setdefault(index, []).append(name)
    return found


def is_listened_to(module) -> bool:
    """Does it call what transformers' ALL_ATTENTION_FUNCTIONS names?"""
    code = getattr(inspect.unwrap(type(module).forward), "__code__", None)
    return code is not None and REGISTRY in code.co_names


@functools.lru_cache(maxsize=64)
def names_behind_attention(forward) -> tuple[str, ...]:
    """Names that a forward uses behind its attention function, in that order."""
    names = [one.argval for one in dis.get_instructions(forward) if isinstance(one.argval, str)]
    return tuple(names[names.index(REGISTRY) :]) if REGISTRY in names else ()


def output_projection(attention):
    """The last module with a matrix that the forward names behind its attention function, or None."""
    found = None
    for name in names_behind_attention(inspect.unwrap(type(attention).forward)):
        child = attention._modules.get(name)
        if getattr(getattr(child, "weight", None), "ndim", 0) == 2:
            found = child
    return found


def find_attention_layers(model) -> dict[int, AttentionLayer]:
    """The model's self-attention modules by layer index: those that can be listened to.

    Of two modules of one layer the causal one is meant: the other attends to an encoder."""
    modules, name = dict(model.named_modules()), type(model).__name__
    if getattr(model.config, "is_encoder_decoder", False):
        raise Error(f"{name}: is an encoder and a decoder; expected a model whose tokens all "
                    "go through one causal decoder")
    config = model.config.get_text_config()
    if shared := getattr(config, "num_kv_shared_layers", 0):
        raise Error(f"{name}: its last {shared} layers read the cache of others; a trace holds "
                    "keys and values of each layer")
    count = getattr(config, "num_hidden_layers", None)
    layers, unlike = {}, {}
    for index, names in layer_modules(model).items():
        heard = [one for one in names if is_listened_to(modules[one])]
        if heard and isinstance(count, int) and index >= count:
            raise Error(f"{name}: {heard[0]} says that it is of layer {index}, but the model "
                        f"has {count} layers: there are several attentions in one, and a "
                        "trace holds one a layer")
        if len(heard) > 1:
            heard = [one for one in heard if getattr(modules[one], "is_causal", True)]
        if len(heard) > 1:
            raise Error(f"layer {index} of {name}: has {len(heard)} attentions, "
                        f"{' and '.join(heard)}; a trace holds one a layer")
        if not heard:
            unlike[index] = modules[names[-1]]
            continue
        attention = modules[heard[0]]
        projection = output_projection(attention)
        if projection is None:
            raise Error(
                f"layer {index} of {name}: {heard[0]} ({type(attention).__name__}) has no output "
                "projection: its forward names no module with a matrix behind its attention "
                "function")
        block = modules[heard[0].rpartition(".")[0]]
        if type(block).__name__ == "ModuleList":
            raise Error(f"layer {index} of {name}: {heard[0]} is one of several attentions in a "
                        "layer, and a trace holds one a layer")
        layers[index] = AttentionLayer(attention, projection, block)
    if not layers:
        kinds = sorted({type(one).__name__ for one in unlike.values()})
        raise Error(
            f"{name}: no attention that can be listened to: "
            + (f"{', '.join(kinds)} {'goes' if len(kinds) == 1 else 'go'} past transformers' "
               "ALL_ATTENTION_FUNCTIONS" if kinds else "no module of it says which layer it is of"))
    return layers


def other_layers(model) -> dict[int, str]:
    """Of layers without attention that can be listened to: the class that stands there instead."""
    modules, known = dict(model.named_modules()), find_attention_layers(model)
    return {index: type(modules[names[-1]]).__name__
            for index, names in layer_modules(model).items() if index not in known}


def with_cache(model: Any, cache: Any) -> dict[str, Any]:
    """The keyword argument that gives a model a cache to go on with."""
    name = NEW if NEW in inspect.signature(model.forward).parameters else OLD
    return {name: cache}


def few_logits(model: Any, rows: int) -> dict[str, Any]:
    """The keyword argument by which a model computes only its last logits, where it knows one."""
    known = inspect.signature(model.forward).parameters
    return {"logits_to_keep": rows} if "logits_to_keep" in known else {}


def cache_in(found: Any) -> Any:
    """The cache among a module's keyword arguments, or in a model's output; None without one."""
    if not isinstance(found, Mapping):   # outputs are, too
        return None
    return found[NEW] if NEW in found else found.get(OLD)
