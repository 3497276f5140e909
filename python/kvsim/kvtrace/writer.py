"""Writes a kvtrace v1 file piece by piece, under a temporary name until it is complete."""

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from ..errors import Error, UsageError
from ..whole import check_target, create_hdf5, whole_file

# Arguments of probe_rows that are stored in the trace's own type.
STORED_PROBE_NAMES = {"queries": "q", "keys": "k", "values": "v", "gate": "gate"}
STORED_TYPES = ("float16", "float32", "bfloat16")
CHECKS = 8   # positions whose outputs a trace keeps
SPARE = 1 << 20   # bytes that stay free: for what HDF5 writes of its own


def bfloat16_bits(values: np.ndarray) -> np.ndarray:
    """The upper half of each float32, rounded to nearest, ties to even."""
    bits = np.ascontiguousarray(values, dtype=np.float32).view(np.uint32)
    rounding = np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))
    return ((bits + rounding) >> np.uint32(16)).astype(np.uint16)


def spread(positions: np.ndarray, count: int) -> np.ndarray:
    """`count` of the positions, evenly spread, the last among them."""
    count = min(count, len(positions))
    return positions[np.arange(1, count + 1) * len(positions) // count - 1]


def check_room(path: Path, size: int) -> None:
    """HDF5 cannot close a file whose disk is full: so nothing is written that does not fit."""
    disk = os.statvfs(path.parent)
    free = disk.f_bavail * disk.f_frsize
    if free < size + SPARE:
        raise Error(f"{path}: the disk is full: found {free / 1e6:.2f} MB free, expected at least "
                    f"{(size + SPARE) / 1e6:.2f} MB")


def as_array(values: Any) -> np.ndarray:
    """A NumPy array, of a torch tensor on any device, too."""
    if hasattr(values, "detach"):
        values = values.detach().float().cpu().numpy()
    return np.asarray(values)


#: The axes of what a layer is made of.
AXES = {"queries": ("query heads", "stored queries", "head size"),
        "keys": ("KV heads", "tokens", "head size"),
        "values": ("KV heads", "tokens", "value size"),
        "wo": ("query heads", "value size", "hidden size")}


def check_axes(index: int, name: str, array: np.ndarray, sizes: tuple[int | None, ...]) -> None:
    """Refuses a shape. `sizes`: None where any will do."""
    if array.ndim == 3 and all(want in (None, size) for want, size in zip(sizes, array.shape)):
        return
    expected = ", ".join(axis if size is None else f"{size} {axis}" for axis, size in zip(AXES[name], sizes))
    raise UsageError(f"layer {index}: {name}: found shape {list(array.shape)}, expected [{expected}]"
                     + ("; of a torch.nn.Linear give weight.T.reshape(query heads, value size, -1)"
                        if name == "wo" else ""))


@dataclass
class PathNorm:
    """A norm between a layer's heads and the residual stream, before or behind W_O.

    Attributes:
        gain: what is multiplied with, [Hq * dv] or [Hq, dv] before W_O and [D] behind it; Gemma's
            is 1 + weight. A multiplier is D equal numbers.
        eps: of the root of the mean square that is divided by; None where the gain is all.
        rms: [M], that root (with eps) at the stored queries; with an eps."""

    gain: Any
    eps: float | None = None
    rms: Any = None


@dataclass(frozen=True)
class Rotation:
    """Pairs of dimensions turn by position * inv_freq [r], r <= d/2. A pair is (first + j,
    first + j + r), layout half, or (first + 2j, first + 2j + 1), interleaved; the other dimensions
    stay. Zeros are layers without positions, negative numbers turn the other way. The model
    multiplies what it rotates by `attention_factor`; `scaling` is its name for how it comes to
    these frequencies."""

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


def place_of(wrong: np.ndarray) -> str:
    """The first place where `wrong` holds, e.g. "[1, 5, 3]", and at how many places it does."""
    count = int(np.count_nonzero(wrong))
    first = ", ".join(map(str, np.argwhere(wrong)[0]))
    return f"at [{first}]" + (f", the first of {count} places" if count > 1 else "")


class TraceWriter:
    """Writes a trace: :meth:`describe` once, and :meth:`layer` for every layer.

    A context manager that leaves a complete file behind, or none. Datasets are contiguous, which
    is what readers map fastest. Nothing is kept in memory.

    >>> with TraceWriter("mine.h5") as writer:
    ...     writer.describe(model="mine", num_layers=32, prompt_len=1000,
    ...                     query_positions=range(936, 1128), tokens=ids)
    ...     for index, (q, k, v, wo) in enumerate(tensors):
    ...         writer.layer(index, queries=q, keys=k, values=v, wo=wo)

    Args:
        path: of the file.
        stored_type: float16, float32 or bfloat16: in which q, k, v and W_O are stored."""

    def __init__(self, path: str | os.PathLike, stored_type: str = "float16", *, overwrite: bool = False):
        if stored_type not in STORED_TYPES:
            raise UsageError(f"stored_type {stored_type}: expected one of " + ", ".join(STORED_TYPES))
        self.path = Path(path)
        try:
            check_target(self.path, overwrite, [])
        except UsageError as error:
            raise UsageError(str(error).replace("--overwrite", "overwrite=True")) from None
        self.stored_type = stored_type
        self.wider = 'stored_type="float32"'   # what to do when numbers do not fit
        self.sizes: dict[str, int] = {}      # of the first layer
        self.scale: float | None = None
        self.positions: np.ndarray | None = None
        self.rotations: Rotations | None = None           # written when the first layer has said a head's size

    def __enter__(self) -> "TraceWriter":
        self.stack = ExitStack()   # closes the file, then gives it its name
        try:
            temporary = self.stack.enter_context(whole_file(self.path))
            self.file = self.stack.enter_context(create_hdf5(temporary))
            self.stack.push(self._finish)
        except OSError as error:
            raise Error(f"{self.path}: cannot write: {error}") from None
        return self

    def __exit__(self, *failure) -> None:
        self.stack.__exit__(*failure)

    def _finish(self, failure: type | None, *_) -> None:
        if failure is None and not self.sizes:
            raise UsageError(f"{self.path}: no layer was written: call describe(...) once, "
                             "then layer(...) for every layer")
        if failure is None and self.rotations is not None:
            self._write_rotations(self.rotations)

    def describe(self, *, model: str, num_layers: int, prompt_len: int,
                 query_positions: Iterable[int], total_len: int | None = None, tokens: Any = None,
                 text: Sequence[str] | None = None, spans: Iterable[tuple[str, int, int]] = (),
                 source: Mapping[str, Any] | str | None = None, inv_freq: Any = None,
                 check_positions: Any = None, latent_size: int | None = None) -> None:
        """Describes the whole trace; before the layers.

        Args:
            model: its name.
            num_layers: of the model; the trace may hold fewer.
            prompt_len: n, tokens in the cache when it is compressed.
            query_positions: [M] ascending positions whose queries are stored.
            total_len: N, prompt and later tokens; without it the last query position + 1.
            tokens: ids [N].
            text: what each token adds [N].
            spans: (name, begin, end) of prompt tokens, half-open.
            source: how the trace was made.
            inv_freq: [d/2] of a rotation whose pairs are the halves of a head.
            check_positions: [R] among query_positions: where `layer` gets the model's outputs.
            latent_size: numbers that the model's own cache holds of a token in a layer, for all
                heads together, where it holds latents (MLA)."""
        positions = np.asarray(list(query_positions), dtype=np.int64)
        if positions.ndim != 1 or not len(positions) or (np.diff(positions) <= 0).any():
            raise UsageError("query_positions: expected ascending positions")
        total = int(positions[-1]) + 1 if total_len is None else int(total_len)
        if not 0 < prompt_len <= total or positions[-1] >= total or positions[0] < 0:
            raise UsageError(f"prompt_len {prompt_len}, total_len {total}, queries at "
                             f"{positions[0]}..{positions[-1]}: expected 0 < prompt_len <= "
                             "total_len and queries below total_len")
        for name, given in (("tokens", tokens), ("text", text)):
            if given is not None and len(given) != total:
                raise UsageError(f"{name}: found {len(given)}, expected one for each of {total} positions")
        self.positions, self.total_len = positions, total
        spans = sorted(spans, key=lambda span: (span[1], -span[2]))
        for name, value in {
            "format": "kvtrace", "version": 1, "model": model, "num_layers": int(num_layers),
            "prompt_len": int(prompt_len), "total_len": total, "latent_size": latent_size,
        }.items():
            self.attribute(name, value)
        self.array("query_position", positions)
        self.array("check/query_position", check_positions, np.int64)
        self.array("tokens/id", tokens, np.int32)
        self.strings("tokens/text", text)
        if spans:
            self.strings("spans/name", [name for name, _, _ in spans])
            self.array("spans/begin", [begin for _, begin, _ in spans], np.int64)
            self.array("spans/end", [end for _, _, end in spans], np.int64)
        self.amend(source=source, inv_freq=inv_freq)

    def amend(self, *, source: Mapping[str, Any] | str | None = None, inv_freq: Any = None,
              rotations: Rotations | None = None) -> None:
        """Adds what is known only after the layers: arguments as those of :meth:`describe`.
        `rotations`: a Rotations in the place of inv_freq."""
        self.attribute("source", source if source is None or isinstance(source, str) else
                       json.dumps(source, sort_keys=True))
        self.array("rope/inv_freq", inv_freq, np.float64)
        if inv_freq is not None:
            self.attribute("rope_layout", "half")
        if rotations is not None:
            self.rotations = rotations

    def _write_rotations(self, rotations: Rotations) -> None:
        """Once for the whole file where all layers turn whole heads alike, else layer by layer."""
        self.attribute("rope_missing", rotations.missing or None)
        kinds = set(rotations.layers.values())
        if len(kinds) == 1 and not rotations.missing and all(
                one.attention_factor == 1 and 2 * len(one.inv_freq) == self.sizes["head_dim"]
                for one in kinds):
            only, = kinds
            self.attribute("rope_layout", only.layout)
            self.attribute("rope_scaling", only.scaling)
            self.array("rope/inv_freq", only.inv_freq, np.float64)
            return
        for layer, one in sorted(rotations.layers.items()):
            dataset = f"layers/{layer}/rope_inv_freq"
            self.array(dataset, one.inv_freq, np.float64)
            self.file[dataset].attrs.update(
                layout=one.layout, scaling=one.scaling, first=np.int64(one.first),
                attention_factor=float(one.attention_factor))

    def layer(self, index: int, *, queries: Any, keys: Any, values: Any, wo: Any,
              scale: float | None = None, softcap: float | None = None,
              sliding_window: int | None = None, sink: Any = None, residual_norm: Any = None,
              check_output: Any = None, check_added: Any = None, gate: Any = None,
              inner: PathNorm | None = None, outer: PathNorm | None = None) -> None:
        """Writes one layer; arrays of NumPy or torch, queries and keys rotated and normalised as
        they enter the softmax.

        Args:
            index: the model's number of it.
            queries: [Hq, M, d] at `query_positions`.
            keys: [Hkv, N, d].
            values: [Hkv, N, dv].
            wo: [Hq, dv, D], a head's rows of the output projection: the layer's output is the sum
                over heads h of z_h @ wo[h].
            scale: logits are scale * q . k; without it 1 / sqrt(d).
            softcap: c of c * tanh(logit / c).
            sliding_window: W; position p sees p-W+1..p.
            sink: [Hq], a logit without a value.
            residual_norm: [M], norm of the residual stream that enters the layer.
            check_output: [Hq, R, dv], the model's own outputs before W_O, for `kvsim verify`.
            check_added: [R, D], what the model's attention added to the residual stream there,
                without the projection's bias.
            gate: [Hq, M, dv] or [Hq, M, 1], what a head's outputs are multiplied with before W_O.
            inner, outer: norms before and behind W_O."""
        if self.positions is None:
            raise UsageError("layer() before describe()")
        queries, keys, values, wo = map(as_array, (queries, keys, values, wo))
        scale = float(queries.shape[-1] ** -0.5 if scale is None else scale)
        self._keep_sizes(index, queries, keys, values, wo, scale)
        group = f"layers/{index}"
        for name, tensor, called in (("q", queries, "queries"), ("k", keys, "keys"),
                                     ("v", values, "values"), ("wo", wo, "wo")):
            self.tensor(f"{group}/{name}", np.asarray(tensor, dtype=np.float32), f"layer {index}: {called}")
        for name, given in (("residual_norm", residual_norm), ("check_output", check_output),
                            ("check_added", check_added), ("attention_sink", sink)):
            self.array(f"{group}/{name}", given, np.float32)
        if gate is not None:
            gate, wanted = np.asarray(as_array(gate), dtype=np.float32), [*queries.shape[:2], values.shape[2]]
            if list(gate.shape) not in (wanted, [*wanted[:2], 1]):
                raise UsageError(f"layer {index}: gate: found shape {list(gate.shape)}, expected {wanted}, or 1 "
                                 "as the last")
            self.tensor(f"{group}/gate", gate, f"layer {index}: gate")
        self._write_norm(index, "inner", inner, wo.shape[:2])
        self._write_norm(index, "outer", outer, wo.shape[2:])
        for name, value in (("attention_scale", scale if scale != self.scale else None),
                            ("softcap", softcap), ("sliding_window", sliding_window)):
            self.attribute(name, value, group)

    def _write_norm(self, index: int, name: str, norm: PathNorm | None, shape: tuple) -> None:
        if norm is None:
            return
        parts = {"gain": (norm.gain, shape)}
        if norm.eps is not None:
            parts["rms"] = norm.rms, (len(self.positions),)
            self.attribute(f"{name}_eps", float(norm.eps), f"layers/{index}")
        for what, (given, wanted) in parts.items():
            array = np.asarray(as_array(given), dtype=np.float32)
            if array.size != np.prod(wanted) or not np.isfinite(array).all():
                raise UsageError(f"layer {index}: {name}.{what}: found shape {list(array.shape)}, "
                                 f"expected {list(wanted)} finite numbers")
            self.array(f"layers/{index}/{name}_{what}", array.reshape(wanted))

    def probe(self, name: str, *, positions: Any, part_begin: Any = (0,), reads: Any = None,
              tokens: Any = None, text: Any = None, answer_begin: int | None = None,
              checks: Any = None) -> None:
        """A further set of queries over the prompt's cache; after the layers.

        Args:
            name: what records call it.
            positions: [P], ascending in each part, from prompt_len on.
            part_begin: [C], the first token of each part; a part sees the prompt and itself.
            reads: [C][2], entries [begin, end) of the prompt that a part reads again.
            tokens: ids [P].
            text: what each token adds [P].
            answer_begin: the first token of the answer, where the probe is a question with one.
            checks: [R] tokens whose outputs :meth:`probe_rows` gets."""
        if not self.sizes:
            raise UsageError("probe() before layer()")
        group = f"probes/{name}"
        self.array(f"{group}/position", positions, np.int64)
        self.array(f"{group}/part_begin", part_begin, np.int64)
        for at, end in enumerate(("read_begin", "read_end")) if reads is not None else ():
            self.array(f"{group}/{end}", np.asarray(reads)[:, at], np.int64)
        self.array(f"{group}/token_id", tokens, np.int32)
        self.strings(f"{group}/token_text", text)
        self.attribute("answer_begin", answer_begin, group)
        self.array(f"{group}/check_token", checks, np.int64)

    def probe_rows(self, index: int, name: str, *, first: int = 0, **arrays: Any) -> None:
        """Writes what one layer says of tokens first, first + 1, ... of a probe.

        Args:
            index: the model's number of the layer.
            name: of the probe, which :meth:`probe` has described.
            first: the first of these tokens.
            arrays: queries [Hq, tokens, d]; where wanted keys [Hkv, tokens, d], values
                [Hkv, tokens, dv], residual_norm, input_norm and output_gradient [tokens], gate
                [Hq, tokens, dv or 1] (of layers that have one),
                check_output [Hq, checks among these tokens, dv]."""
        about, group = f"probes/{name}", f"layers/{index}/probes/{name}"
        total = len(self.file[f"{about}/position"])
        for argument, given in arrays.items():
            if given is None:
                continue
            values = np.asarray(as_array(given), dtype=np.float32)
            dataset, begin, count = f"{group}/{STORED_PROBE_NAMES.get(argument, argument)}", first, total
            if argument in STORED_PROBE_NAMES:
                values = self.stored(dataset, values)
            elif argument == "check_output":
                checks = self.file[f"{about}/check_token"][:]
                begin, count = int((checks < first).sum()), len(checks)
            axis = min(1, values.ndim - 1)   # of the tokens
            if dataset not in self.file:
                self._create(dataset, values.dtype, (*values.shape[:axis], count, *values.shape[axis + 1:]))
            where = (slice(None),) * axis + (slice(begin, begin + values.shape[axis]),)
            self.file[dataset][where] = values

    def _keep_sizes(self, index: int, queries, keys, values, wo, scale: float) -> None:
        """The root attributes come from the first layer; later ones must fit."""
        stored, total = len(self.positions), self.total_len
        check_axes(index, "queries", queries, (None, stored, None))
        heads, _, dim = queries.shape
        check_axes(index, "keys", keys, (None, total, dim))
        kv_heads = keys.shape[0]
        check_axes(index, "values", values, (kv_heads, total, None))
        width = values.shape[-1]
        check_axes(index, "wo", wo, (heads, width, None))
        if heads % kv_heads:
            raise UsageError(f"layer {index}: queries have {heads} heads, keys {kv_heads}: "
                             "expected a multiple of the KV heads")
        sizes = {"num_query_heads": heads, "num_kv_heads": kv_heads, "head_dim": dim, "hidden_size": wo.shape[-1]}
        if not self.sizes:
            self.sizes, self.scale = sizes, scale
            for name, value in {**sizes, "attention_scale": scale}.items():
                self.attribute(name, value)
        if sizes != self.sizes:
            raise Error(f"layer {index}: shapes {sizes}, but earlier layers have "
                        f"{self.sizes}; choose layers of one shape")

    def attribute(self, name: str, value: Any, group: str = "/") -> None:
        """None is not written, here and below."""
        if value is not None:
            self.file.require_group(group).attrs[name] = value

    def array(self, name: str, values: Any, kind: Any = None) -> None:
        """Writes numbers of a type, or as they are."""
        if values is not None:
            values = np.ascontiguousarray(as_array(values), dtype=kind)
            self._create(name, values.dtype, values.shape, values)

    def strings(self, name: str, values: Sequence[str] | None) -> None:
        if values is not None:
            check_room(self.path, sum(16 + len(one.encode()) for one in values))
            self.file.create_dataset(name, data=list(values), dtype=h5py.string_dtype("utf-8"))

    def tensor(self, name: str, values: np.ndarray, called: str = "") -> None:
        """Writes float32 [..] in the stored type."""
        stored = self.stored(name, values, called)
        self._create(name, stored.dtype, stored.shape, stored)

    def _create(self, name: str, kind: np.dtype, shape: tuple, values: np.ndarray | None = None) -> None:
        check_room(self.path, int(np.prod(shape)) * kind.itemsize)
        dataset = self.file.create_dataset(name, shape, kind, values)
        if kind == np.uint16:
            dataset.attrs["encoding"] = "bfloat16"

    def stored(self, name: str, values: np.ndarray, called: str = "") -> np.ndarray:
        """float32 in the stored type. NaN, infinity and overflow are errors, which name the array
        as it is `called`."""
        called = called or name
        finite = np.isfinite(values)
        if not finite.all():
            what = "NaN" if np.isnan(values[tuple(np.argwhere(~finite)[0])]) else "infinity"
            raise Error(
                f"{called}: {what} {place_of(~finite)}: the model's own arithmetic overflowed, "
                "often in float16: run it in float32 or bfloat16")
        if self.stored_type == "bfloat16":
            # A finite float32 above the largest bfloat16 would round to infinity.
            stored = bfloat16_bits(values)
            fits = (stored & 0x7F80) != 0x7F80
        else:
            with np.errstate(over="ignore"):
                stored = np.ascontiguousarray(values, dtype=self.stored_type)
            fits = np.isfinite(stored)
        if not fits.all():
            first = float(values[tuple(np.argwhere(~fits)[0])])
            raise Error(f"{called}: {first:.6g} {place_of(~fits)} does not fit {self.stored_type}; use {self.wider}")
        return stored
