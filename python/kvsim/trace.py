"""Reads traces (kvtrace v1, docs/trace-format.md) as NumPy arrays that stay in the file."""

import functools
import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from os import PathLike
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from .errors import DataError
from .hdf5_file import open_hdf5, reads_file, refuse_links, scalar
from .kvtrace.writer import PathNorm

SIZES = ("prompt_len", "total_len", "num_layers", "num_query_heads", "num_kv_heads", "head_dim", "hidden_size")


class Span(NamedTuple):
    """Prompt tokens begin..end-1 under a name."""

    name: str
    begin: int
    end: int


@dataclass(frozen=True, repr=False)
class Layer:
    """Inputs of one attention layer. Arrays are views of the file, in the type it stores.

    Hq query heads read Hkv KV heads (query head h reads h // group_size); of N positions M have
    their query stored. bfloat16, which NumPy does not know, becomes float32."""

    index: int
    queries: np.ndarray  #: [Hq, M, d], rotated, as they enter the softmax
    query_positions: np.ndarray  #: [M], ascending
    keys: np.ndarray  #: [Hkv, N, d], rotated
    values: np.ndarray  #: [Hkv, N, dv]
    wo: np.ndarray  #: [Hq, dv, D], a head's slice of the output projection W_O
    scale: float  #: logits are scale * q . k
    prompt_len: int  #: n
    spans: tuple[Span, ...] = ()
    softcap: float | None = None  #: logits x become c * tanh(x / c)
    sliding_window: int | None = None  #: W: position p sees p-W+1..p
    sink: np.ndarray | None = None  #: [Hq], logit of a column without a value
    residual_norm: np.ndarray | None = None  #: [M], norm of the residual stream entering the layer
    tokens: np.ndarray | None = None  #: [N], ids
    text: tuple[str, ...] | None = None  #: [N]
    num_layers: int = 0  #: of the model
    inv_freq: np.ndarray | None = None  #: [d/2] of the rotation, where halves of a head are paired
    gate: np.ndarray | None = None  #: [Hq, M, dv or 1], factors of the heads' outputs before W_O
    inner: PathNorm | None = None  #: norm before W_O
    outer: PathNorm | None = None  #: norm behind W_O, or a multiplier
    attention_factor: float = 1.0       #: of the rotation: the model multiplies what it rotates by it

    def __repr__(self) -> str:
        shapes = ", ".join(f"{name} {list(getattr(self, name).shape)}" for name in ("queries", "keys", "values", "wo"))
        return (f"<kvsim.Layer {self.index}: {self.prompt_len} prompt tokens of {self.keys.shape[1]}, {shapes}>")

    @property
    def positions(self) -> np.ndarray:
        """Of the keys and values: 0..n-1 of a prompt, 0..N-1 of a whole trace."""
        return np.arange(self.keys.shape[1])

    @property
    def group_size(self) -> int:
        """Query heads that read one KV head."""
        return self.queries.shape[0] // self.keys.shape[0]

    def prompt(self) -> "Layer":
        """The prompt alone: what a policy may see when it compresses."""
        n = self.prompt_len
        stored = int(np.searchsorted(self.query_positions, n))
        return replace(
            self, queries=self.queries[:, :stored], query_positions=self.query_positions[:stored],
            keys=self.keys[:, :n], values=self.values[:, :n],
            residual_norm=None if self.residual_norm is None else self.residual_norm[:stored],
            gate=None if self.gate is None else self.gate[:, :stored],
            **{name: norm if norm is None or norm.eps is None
               else replace(norm, rms=norm.rms[:stored])
               for name, norm in (("inner", self.inner), ("outer", self.outer))},
            tokens=None if self.tokens is None else self.tokens[:n],
            text=None if self.text is None else self.text[:n])

    def attention(self, last: int | None = None) -> np.ndarray:
        """Attention of the last `last` stored queries (all): float32 [Hq, last, keys].

        Softmax over the keys that each query sees, soft cap, window and sink included."""
        first = 0 if last is None else max(0, len(self.query_positions) - last)
        at = self.query_positions[first:, None]
        seen = self.positions <= at
        if self.sliding_window:
            seen &= self.positions > at - self.sliding_window
        result = np.empty((self.queries.shape[0], *seen.shape), np.float32)
        for head, out in enumerate(result):
            key = self.keys[head // self.group_size].astype(np.float32)
            np.matmul(self.queries[head, first:].astype(np.float32) * self.scale, key.T, out=out)
            if self.softcap:
                np.multiply(np.tanh(out / self.softcap), self.softcap, out=out)
            out[~seen] = -np.inf
            top = out.max(axis=1, keepdims=True)
            if self.sink is not None:
                top = np.maximum(top, np.float32(self.sink[head]))
            np.exp(out - top, out=out)
            total = out.sum(axis=1, keepdims=True)
            if self.sink is not None:
                total += np.exp(np.float32(self.sink[head]) - top)
            out /= total
        return result


class Trace:
    """A trace file. Nothing is read but what is asked for.

    >>> trace = Trace("data/sample.h5")
    >>> trace.layer(5).keys.shape
    (3, 639, 64)"""

    path: Path
    model: str
    prompt_len: int  #: n: tokens whose cache is compressed
    total_len: int  #: N: with the later ones
    num_layers: int  #: of the model; `layers` are those of the file
    num_query_heads: int  #: Hq
    num_kv_heads: int  #: Hkv
    head_dim: int  #: d
    hidden_size: int  #: D

    def __init__(self, path: str | PathLike):
        self.path = Path(path)
        self._file = open_hdf5(self.path)
        self._read_header()

    @reads_file("a trace")
    def _read_header(self) -> None:
        refuse_links(self._file)
        attributes = self._file.attrs
        if "format" not in attributes and "kl_divergence" in self._file or "config" in attributes:
            raise DataError(f"{self.path}: results of kvsim stand where a trace is expected "
                            "(kvsim.open_results reads results)")
        if "format" not in attributes or scalar(attributes, "format") != "kvtrace":
            raise DataError(f"{self.path}: not a trace: no attribute format = kvtrace")
        self.model = str(scalar(attributes, "model"))
        for name in SIZES:
            setattr(self, name, int(scalar(attributes, name)))
        self.scale = float(scalar(attributes, "attention_scale"))
        self.layers = sorted(int(name) for name in self._file["layers"])
        if not self.layers:
            raise DataError(f"{self.path}: not a trace: no layers")
        self.query_positions = self._file["query_position"][()]

    @functools.cached_property
    @reads_file("a trace")
    def spans(self) -> tuple[Span, ...]:
        """Named ranges of the prompt."""
        if "spans/name" not in self._file:
            return ()
        names = self._file["spans/name"].asstr()[()]
        ends = zip(self._file["spans/begin"][()], self._file["spans/end"][()])
        return tuple(Span(str(name), int(b), int(e)) for name, (b, e) in zip(names, ends))

    @functools.cached_property
    @reads_file("a trace")
    def tokens(self) -> np.ndarray | None:
        """Token ids [N], or None."""
        return self._file["tokens/id"][()] if "tokens/id" in self._file else None

    @functools.cached_property
    @reads_file("a trace")
    def text(self) -> tuple[str, ...] | None:
        """The text that each token adds [N], or None."""
        if "tokens/text" not in self._file:
            return None
        return tuple(self._file["tokens/text"].asstr(errors="replace")[()])

    @reads_file("a trace")
    def _rotation(self, index: int) -> tuple[np.ndarray | None, float]:
        """A layer's frequencies [d/2], None where it pairs other dimensions than the halves of a
        head, and the factor of what it rotates."""
        own = f"layers/{index}/rope_inv_freq"
        name, layout = (own, self._file[own].attrs.get("layout")) if own in self._file else \
            ("rope/inv_freq", self._file.attrs.get("rope_layout"))
        if layout not in ("half", b"half") or len(self._file[name]) != self.head_dim // 2:
            return None, 1.0
        factor = float(self._file[name].attrs.get("attention_factor", 1))
        return self._array(name, (self.head_dim // 2,)), factor

    @functools.cached_property
    def source(self) -> dict[str, Any]:
        """How the trace was made, as far as it says."""
        try:
            found = json.loads(self._file.attrs.get("source", "{}"))
        except (TypeError, ValueError):
            return {}
        return found if isinstance(found, dict) else {}

    @reads_file("a trace")
    def layer(self, index: int) -> Layer:
        """One layer, by the model's number of it."""
        if index not in self.layers:
            raise DataError(f"{self.path}: no layer {index}; the trace has " + ", ".join(map(str, self.layers)))
        group = self._file[f"layers/{index}"]
        heads, stored = self.num_query_heads, len(self.query_positions)
        def optional(name: str, shape: tuple) -> np.ndarray | None:
            return self._array(f"{group.name}/{name}", shape) if name in group else None

        def own(name: str, otherwise: float | None = None) -> float | None:
            return scalar(group.attrs, name) if name in group.attrs else otherwise

        def norm(name: str, shape: tuple) -> PathNorm | None:
            gain, eps = optional(f"{name}_gain", shape), own(f"{name}_eps")
            if gain is None or eps is None:
                return None if gain is None else PathNorm(gain)
            return PathNorm(gain, float(eps), self._array(f"{group.name}/{name}_rms", (stored,)))

        window, softcap = own("sliding_window"), own("softcap")
        inv_freq, factor = self._rotation(index)
        values = self._array(f"{group.name}/v", (self.num_kv_heads, self.total_len, None))
        return Layer(
            index=index, queries=self._array(f"{group.name}/q", (heads, stored, self.head_dim)),
            query_positions=self.query_positions,
            keys=self._array(f"{group.name}/k", (self.num_kv_heads, self.total_len, self.head_dim)),
            values=values,
            wo=self._array(f"{group.name}/wo", (heads, values.shape[2], self.hidden_size)),
            scale=float(own("attention_scale", self.scale)), prompt_len=self.prompt_len,
            spans=self.spans, softcap=None if softcap is None else float(softcap),
            sliding_window=None if window is None else int(window),
            sink=optional("attention_sink", (heads,)),
            residual_norm=optional("residual_norm", (stored,)), tokens=self.tokens, text=self.text,
            num_layers=self.num_layers, inv_freq=inv_freq, attention_factor=factor,
            gate=optional("gate", (heads, stored, None)),
            inner=norm("inner", (heads, values.shape[2])), outer=norm("outer", (self.hidden_size,)))

    def __getitem__(self, index: int) -> Layer:
        return self.layer(index)

    def __iter__(self) -> Iterator[Layer]:
        return (self.layer(index) for index in self.layers)

    def __len__(self) -> int:
        return len(self.layers)

    def _array(self, name: str, shape: tuple) -> np.ndarray:
        """A dataset as it lies in the file where it is contiguous, else read."""
        dataset = self._file[name]
        if dataset.ndim != len(shape) or any(
            wanted is not None and found != wanted for found, wanted in zip(dataset.shape, shape)):
            wanted = ", ".join("any" if one is None else str(one) for one in shape)
            raise DataError(f"{self.path}: {name}: wrong shape: found {list(dataset.shape)}, expected [{wanted}]")
        begin = dataset.id.get_offset()
        bits = dataset.attrs.get("encoding") in ("bfloat16", b"bfloat16")
        if begin is None or dataset.external:
            array = dataset[()]
        else:
            array = np.memmap(self.path, dataset.dtype, "r", begin, dataset.shape)
        return (array.astype(np.uint32) << 16).view(np.float32) if bits else array

    def close(self) -> None:
        """Closes the file; arrays that were taken from it stay good."""
        self._file.close()

    def __enter__(self) -> "Trace":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __fspath__(self) -> str:
        return str(self.path)

    def __repr__(self) -> str:
        spans = ", ".join(f"{s.name} {s.begin}..{s.end - 1}" for s in self.spans)
        return (f"<kvsim.Trace {self.path.name}: {self.model}, {self.prompt_len} prompt tokens and "
                f"{self.total_len - self.prompt_len} later, {len(self.layers)} of "
                f"{self.num_layers} layers" + (f", spans {spans}" if spans else "") + ">")
