"""Traces from the tensors that an inference engine wrote (docs/engines.md)."""

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np

from ..errors import DataError, UsageError
from .writer import CHECKS, TraceWriter, spread

NPZ = re.compile(r"layer-(\d+)\.npz")
RAW = re.compile(r"Qcur-(\d+)\.f32")
LMCACHE = ("kv.npy", "query.npy")
ARRAYS = {"q", "k", "v", "wo", "check_position", "check_output"}
SAID = ("scale", "window", "softcap", "sinks")
NO_EXTRAS = dict.fromkeys(SAID[1:])   # said: there is none


def numbered(folder: Path, name: re.Pattern) -> list[int]:
    found = (name.fullmatch(one.name) for one in folder.iterdir())
    return sorted(int(match.group(1)) for match in found if match)


def of_npz(path: Path) -> dict:
    """A layer as data/vllm_hook.py writes it: tokens before heads."""
    with np.load(path, allow_pickle=False) as file:
        layer = dict(file)
    if missing := sorted(ARRAYS - set(layer)):
        raise DataError(f"{path}: no array {missing[0]}; expected " + ", ".join(sorted(ARRAYS)))
    return layer


def of_llama_cpp(folder: Path, index: int, wo: np.ndarray, heads: int, kv_heads: int) -> dict:
    """A layer as the callback for llama.cpp writes it: float32, ne = [d, heads, tokens]."""
    size, odd = divmod(wo.shape[1], heads)
    if odd:
        raise UsageError(f"wo of layer {index}: {wo.shape[1]} columns, expected a multiple of {heads} heads")
    layer = {}
    for name, file, count in (("q", "Qcur", heads), ("k", "Kcur", kv_heads), ("v", "Vcur", kv_heads),
                              ("out", "kqv_out", heads)):
        path = folder / f"{file}-{index}.f32"
        if not path.is_file():
            raise DataError(f"{path}: no such file; the callback writes Qcur, Kcur, Vcur and kqv_out")
        numbers = np.fromfile(path, dtype="<f4")
        if numbers.size % (count * size):
            raise DataError(f"{path}: {numbers.size} numbers, expected a multiple of {count} heads of {size}")
        layer[name] = numbers.reshape(-1, count, size)
    checks = spread(np.arange(len(layer["q"])), CHECKS)
    return layer | {"check_position": checks, "check_output": layer["out"][checks]}


def of_lmcache(folder: Path, heads: int, kv_heads: int) -> list[dict]:
    """Layers as `retrieve` of LMCache's SDK hands them over, [2, layers, tokens, KV heads * head size] and
    [1, layers, tokens, heads * head size]; the model's outputs are not among them."""
    try:
        kv, query = (np.load(folder / name, mmap_mode="r", allow_pickle=False) for name in LMCACHE)
    except ValueError as error:
        raise DataError(f"{folder}: {' and '.join(LMCACHE)} cannot be read: {error}") from None
    if kv.ndim != 4 or kv.shape[0] != 2 or not kv.size or kv.shape[3] % kv_heads or \
            query.shape != (1, *kv.shape[1:3], kv.shape[3] // kv_heads * heads):
        raise DataError(f"{folder}: found kv.npy {list(kv.shape)} and query.npy {list(query.shape)}, "
                        f"expected [2, layers, tokens, {kv_heads} * head size] and "
                        f"[1, layers, tokens, {heads} * head size]")
    return [{name: one.reshape(len(one), count, -1) for name, one, count in (
        ("q", q, heads), ("k", k, kv_heads), ("v", v, kv_heads))} for q, k, v in zip(query[0], *kv)]


def said_of(index: int, layer: dict, attention: Mapping | None) -> dict[str, Any]:
    """Treatment of the logits by a layer's attention, from the file or from who calls; none of it is
    guessed. 0, None and an empty array say that there is none."""
    given = dict(attention or {})
    if given and not set(given) <= set(SAID):   # by layer
        given = dict(given.get(index, {}))
    found = {name: layer[name] for name in SAID if name in layer} | given
    if unsaid := [name for name in SAID if name not in found]:
        raise UsageError(
            f"layer {index}: {', '.join(unsaid)} not said: give attention={{\"scale\": ..., "
            '"window": ..., "softcap": ..., "sinks": ...}, None where there is none, or by layer '
            "{0: {...}, ...}")
    scale = found["scale"]
    if scale is None or not np.isfinite(scale) or scale <= 0:
        raise UsageError(f"layer {index}: scale: found {scale!r:.40}, expected a number above 0")
    window, softcap = (0 if found[name] is None else found[name] for name in ("window", "softcap"))
    sinks = np.asarray([] if found["sinks"] is None else found["sinks"], dtype=np.float32)
    return {"scale": float(scale), "sliding_window": int(window) if window > 0 else None,
            "softcap": float(softcap) if softcap > 0 else None, "sink": sinks if sinks.size else None}


def from_engine(folder: str | os.PathLike, path: str | os.PathLike, *, model: str, prompt_len: int,
                tokens: Sequence[int] | None = None, num_layers: int | None = None,
                attention: Mapping | None = None, rope_theta: float | None = None,
                rope_pairs: Literal["halves", "neighbours"] = "halves", heads: int | None = None,
                kv_heads: int | None = None, wo: Mapping[int, Any] | None = None,
                stored_type: str = "float16", overwrite: bool = False) -> Path:
    """Makes a trace of what a hook in vLLM, a callback of llama.cpp, or LMCache's SDK handed over.

    Args:
        folder: with ``layer-0.npz``, ... (``data/vllm_hook.py``), ``Qcur-0.f32``, ... (llama.cpp), or
            ``kv.npy`` and ``query.npy`` (LMCache).
        path: of the trace.
        model: its name.
        prompt_len: n, tokens in the cache when it is compressed.
        tokens: ids of all positions.
        num_layers: of the model; without it as many as there are files.
        attention: of files of llama.cpp and LMCache, which do not say it: ``scale`` of q . k,
            ``window`` (entries that a position sees, itself among them), ``softcap`` c of
            c tanh(logit / c), ``sinks`` [Hq], logits without a value; None where there is none.
            One for all layers, or by layer. The hook for vLLM writes them.
        rope_theta: base of the rotation, where it is the plain one: policies that move queries
            need it.
        rope_pairs: which dimensions rotate together: i and i + d/2, or 2i and 2i + 1 as llama.cpp
            has them for Llama and Mistral; the latter are brought into the former order.
        heads, kv_heads, wo: of files of llama.cpp and LMCache alone: query heads, KV heads, and by layer
            the output projection [D, Hq * d] (``blk.N.attn_output.weight``, ``o_proj.weight``).
        stored_type: as :class:`TraceWriter` takes it.

    Returns:
        The path of the trace. It holds the engine's own outputs at eight positions, for
        :func:`kvsim.verify`; not of LMCache, whose cache has none."""
    folder = Path(folder)
    if not folder.is_dir():
        raise UsageError(f"{folder}: no such folder")
    if indices := numbered(folder, NPZ):
        def read(index: int) -> dict:
            return of_npz(folder / f"layer-{index}.npz")
    elif not (indices := numbered(folder, RAW)) and not (folder / LMCACHE[0]).is_file():
        raise DataError(f"{folder}: neither layer-0.npz, nor Qcur-0.f32 or the like, nor {LMCACHE[0]}")
    elif heads is None or kv_heads is None or wo is None:
        raise UsageError(f"files of {'llama.cpp' if indices else 'LMCache'} do not say how many heads "
                         "there are: give heads, kv_heads and wo")
    else:
        layers = None if indices else of_lmcache(folder, heads, kv_heads)
        indices = indices or range(len(layers))

        def read(index: int) -> dict:
            own = np.asarray(wo[index], dtype=np.float32)
            return {"wo": own, **(layers[index] if layers else of_llama_cpp(folder, index, own, heads, kv_heads))}
    checks = None
    with TraceWriter(path, stored_type, overwrite=overwrite) as writer:
        for index in indices:
            layer = read(index)
            said = said_of(index, layer, attention)
            q, k, v, out = (None if name not in layer else np.swapaxes(layer[name], 0, 1)
                            for name in ("q", "k", "v", "check_output"))
            total, size = q.shape[1:]
            if rope_pairs == "neighbours":
                order = [*range(0, size, 2), *range(1, size, 2)]
                q, k = q[..., order], k[..., order]
            if writer.positions is None:
                checks = layer.get("check_position")
                inv_freq = None if rope_theta is None else rope_theta ** (-np.arange(0, size, 2) / size)
                writer.describe(model=model, num_layers=num_layers or indices[-1] + 1,
                                prompt_len=prompt_len, query_positions=range(total),
                                tokens=tokens, inv_freq=inv_freq, check_positions=checks,
                                source={"engine": str(folder.name)})
            if out is not None and (not np.array_equal(checks, layer["check_position"]) or
                                    out.shape != (len(q), len(checks), v.shape[2])):
                raise DataError(f"layer {index}: outputs {list(out.shape)} at "
                                f"{list(layer['check_position'])}, expected "
                                f"{[len(q), len(checks), v.shape[2]]} at {list(checks)}")
            writer.layer(index, queries=q, keys=k, values=v,
                         wo=layer["wo"].T.reshape(len(q), v.shape[2], -1),
                         residual_norm=layer.get("norm"), check_output=out, **said)
    return Path(path)
