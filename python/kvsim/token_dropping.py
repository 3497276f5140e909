"""`drop_tokens`: a policy as the function that LMCache's SDK edits a cached prompt with (docs/engines.md).

The tensors become a temporary trace, the program chooses by `replay`, and what it keeps is gathered."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np

from .api import PolicyLike
from .errors import UsageError
from .kvtrace.engines import NO_EXTRAS, said_of
from .kvtrace.kept_sets import check_static
from .kvtrace.writer import STORED_TYPES, Rotation, Rotations, TraceWriter, as_array
from .policy import as_policies, choose, described
from .program import call, exchange

LAYOUT = "[2, layers, tokens, KV heads * head size]"
LAYOUTS = {"halves": "half", "neighbours": "interleaved"}
MADE_UP = 300   # tokens that show what a policy looks at
SHARES = (0.3, 0.6)   # that it keeps of them


class TokenDropper:
    """A policy as the function that LMCache's SDK edits a cached prompt with (docs/engines.md).

    >>> drop = kvsim.drop_tokens("snapkv,union=mean,union_layers=yes", keep=0.3, kv_heads=8)
    >>> request.modify_kv(drop)   # or kv, kept_ids = drop(kv, token_ids, queries=queries)

    Args:
        policy: a record, a function ``score(layer)``, or a :class:`Policy`.
        keep: share of the tokens that is kept: the budget of a replay.
        kv_heads: of the model; tensors [2, layers, tokens, KV heads, head size] say it themselves.
        inv_freq: [r], the rotation's frequencies: kept keys are turned to their new places, and
            policies that need the rotation have it. Without it keys stay as they are.
        rope_pairs: which dimensions rotate together, as for :func:`from_engine`.
        attention: ``scale``, ``window``, ``softcap``, ``sinks``, as for :func:`from_engine`; without
            it 1 / sqrt(head size) and none of the others.

    Raises:
        UsageError: for policies that look at more than queries, keys and values of the prompt,
            compress again later, merge or round; when called, where layers or heads would keep
            different tokens."""

    def __init__(self, policy: PolicyLike, keep: float = 0.5, *, kv_heads: int | None = None, inv_freq: Any = None,
                 rope_pairs: Literal["halves", "neighbours"] = "halves", attention: Mapping | None = None,
                 seed: int | None = None, threads: int | None = None):
        self.policy, = as_policies(policy)
        self.rotation = None
        if inv_freq is not None:
            if rope_pairs not in LAYOUTS:
                raise UsageError(f"rope_pairs: found {rope_pairs!r:.60}, expected halves or neighbours")
            frequencies = np.asarray(as_array(inv_freq), dtype=np.float64)
            if frequencies.ndim != 1 or not frequencies.size or not np.isfinite(frequencies).all():
                raise UsageError(f"inv_freq: found shape {list(frequencies.shape)}, expected [r] finite numbers")
            self.rotation = Rotation(tuple(frequencies.tolist()), LAYOUTS[rope_pairs])
        if isinstance(keep, bool) or not isinstance(keep, (int, float)) or not 0 < keep <= 1:
            raise UsageError(f"keep: found {keep!r:.60}, expected 0 < keep <= 1, the share of tokens that is kept")
        self.keep, self.kv_heads, self.attention = float(keep), kv_heads, attention
        self.seed, self.threads = seed, threads
        check_static(self.policy.record, described(self.policy.record)["cells"] | {"positions": "absolute"},
                     ": an engine holds entries as they are")
        self._check_what_is_read()

    def __repr__(self) -> str:
        return f"kvsim.drop_tokens({self.policy.record!r}, keep={self.keep})"

    def __call__(self, tensors: Any, token_ids: Sequence[int], *, queries: Any = None,
                 query_positions: Sequence[int] | None = None) -> tuple[Any, list]:
        """The cache with the kept tokens alone, and their ids in the order of the prompt."""
        start = None
        if isinstance(tensors, Mapping):
            kinds = {getattr(kind, "value", kind): one for kind, one in tensors.items()}
            if "kv" not in kinds:
                raise UsageError(f"tensors: found {', '.join(map(str, kinds)) or 'none'}, expected kv, "
                                 "and query where the policy needs queries")
            if queries is None and (queries := kinds.get("query")) is not None:
                start = getattr(tensors, "segment_start_token_id", None)
            tensors = kinds["kv"]
        kv, queries = self._by_heads(tensors, queries)
        n = kv.shape[2]
        token_ids = token_ids.tolist() if hasattr(token_ids, "tolist") else token_ids
        if len(token_ids) != n:
            raise UsageError(f"token_ids: found {len(token_ids)}, expected one for each of {n} tokens")
        rows = 0 if queries is None else queries.shape[2]
        if query_positions is None:
            if start is not None and rows != n - start:
                raise UsageError(f"queries: found {rows} for {n - start} tokens from {start} on, of every "
                                 "chunk the last ones; give their query_positions, or no window "
                                 "(lmcache.mp.q.sw_size_tokens)")
            query_positions = range(n - rows, n)
        if len(query_positions) != rows:
            raise UsageError(f"query_positions: found {len(query_positions)}, expected one for each of {rows} queries")
        sets, = self._sets(kv, queries, query_positions, token_ids, [self.keep])
        kept = np.flatnonzero(self._one_set(sets))
        if not len(kept):
            raise UsageError(f"{self!r}: keeps none of {n} tokens")
        return self._gathered(tensors, kept, kv.shape[3]), [token_ids[at] for at in kept.tolist()]

    def _by_heads(self, kv: Any, queries: Any) -> tuple[Any, Any]:
        """Both as [.., layers, tokens, heads, head size]."""
        shape = list(kv.shape)
        if len(shape) not in (4, 5) or shape[0] != 2 or not all(shape):
            raise UsageError(f"tensors: found shape {shape}, expected {LAYOUT}")
        if len(shape) == 4:
            if not self.kv_heads:
                raise UsageError(f"tensors: found shape {shape}, {LAYOUT}, which does not say how many "
                                 "heads there are: give kv_heads")
            if shape[3] % self.kv_heads:
                raise UsageError(f"tensors: found {shape[3]} numbers for a token, expected a multiple of "
                                 f"{self.kv_heads} KV heads")
            kv = kv.reshape(*shape[:3], self.kv_heads, -1)
        if (kind := _kind(kv)) not in STORED_TYPES:
            raise UsageError(f"tensors: found {kind}, expected {', '.join(STORED_TYPES)}")
        if queries is None:
            return kv, None
        found, size, group = list(queries.shape), kv.shape[4], kv.shape[3] * kv.shape[4]
        if len(found) == len(shape) == 5:
            queries, found = queries.reshape(*found[:3], -1), [*found[:3], found[3] * found[4]]
        if len(found) != 4 or found[:2] != [1, shape[1]] or not 0 < found[2] <= shape[2] or \
                not found[3] or found[3] % group:
            raise UsageError(f"queries: found shape {list(queries.shape)}, expected [1, {shape[1]}, at most "
                             f"{shape[2]}, a multiple of {group}]")
        return kv, queries.reshape(*found[:3], -1, size)

    def _sets(self, kv: Any, queries: Any, positions: Sequence[int], ids: Sequence[int], shares: Sequence[float],
              wo: np.random.Generator | None = None,
              later: np.random.Generator | None = None) -> list[dict[int, np.ndarray]]:
        """By share the entries that the policy keeps, as :class:`KeptSets` has them, of a trace of the prompt. It has
        to hold W_O and a later token, too: ones, and the last token a second time, or made-up numbers. No policy
        that is served looks at them."""
        layers, n, _, size = kv.shape[1:]
        kinds = {_kind(kv), _kind(kv if queries is None else queries)}
        with exchange() as folder:
            path = Path(folder) / "prompt.h5"
            call(path, "the tensors")
            with TraceWriter(path, kinds.pop() if len(kinds) == 1 else "float32") as writer:
                writer.describe(model="engine", num_layers=layers, prompt_len=n,
                                query_positions=[*positions, n], tokens=[*ids, ids[-1]])
                if self.rotation is not None:
                    writer.amend(rotations=Rotations(dict.fromkeys(range(layers), self.rotation)))
                for layer in range(layers):
                    keys, values = (_closed(as_array(kv[part, layer]), later) for part in (0, 1))
                    rows = keys[:, -1:] if queries is None else _closed(as_array(queries[0, layer]), later)
                    shape = len(rows), size, 1
                    projection = np.ones(shape) if wo is None else np.exp(wo.normal(size=shape, scale=2))
                    writer.layer(layer, queries=rows, keys=keys, values=values, wo=projection,
                                 **said_of(layer, {"scale": size ** -0.5, **NO_EXTRAS}, self.attention))
            return choose(self.policy, path, [np.format_float_positional(one, trim="0") for one in shares],
                          seed=self.seed, threads=self.threads)

    def _one_set(self, masks: dict[int, np.ndarray]) -> np.ndarray:
        """[n], where all heads of all layers keep the same."""
        first = masks[0][0]
        for layer, mask in sorted(masks.items()):
            for head, kept in enumerate(mask):
                if differ := int((kept != first).sum()):
                    raise UsageError(
                        f"{self.policy.record}: layer {layer}, head {head} keeps other tokens than layer "
                        f"0, head 0 ({differ} of {len(kept)} differ), expected one set for all layers and "
                        "heads: add union=mean,union_layers=yes, and allocate=uniform where counts differ")
        return first

    def _gathered(self, kv: Any, kept: np.ndarray, heads: int) -> Any:
        """The kept tokens in the type and layout of `kv`, their keys turned to where they now stand."""
        result = kv[:, :, kept.tolist()]
        if self.rotation is not None:
            by = (np.arange(len(kept)) - kept)[:, None, None]
            for layer in range(result.shape[1]):
                rows = as_array(result[0, layer])
                turned = self.rotation.turn(rows.reshape(len(kept), heads, -1), by).reshape(rows.shape)
                result[0, layer] = turned if isinstance(result, np.ndarray) else result.new_tensor(turned)
        return result

    def _check_what_is_read(self) -> None:
        """Replays made-up tokens with other numbers where an engine hands over none: the sets of a
        policy that does not look there stay equal."""
        size = 16 if self.rotation is None else 2 * (self.rotation.first + len(self.rotation.inv_freq))
        kv, queries = (np.random.default_rng(seed).normal(size=(*shape, size)).astype(np.float32)
                       for seed, shape in enumerate(((2, 2, MADE_UP, 2), (1, 2, MADE_UP, 4))))
        attention, self.attention = self.attention, None   # which is of the model's heads
        try:
            expected, later, wo = (
                self._sets(kv, queries, range(MADE_UP), range(MADE_UP), SHARES, **other)
                for other in ({}, {"later": np.random.default_rng(3)}, {"wo": np.random.default_rng(2)}))
        finally:
            self.attention = attention
        for what, found in (("what comes after the prompt", later), ("the output projection W_O", wo)):
            if any((one[layer] != other[layer]).any() for one, other in zip(expected, found) for layer in one):
                raise UsageError(f"{self.policy.record}: chooses by {what}, expected a policy of "
                                 "queries, keys and values of the prompt alone")


def _kind(tensor: Any) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def _closed(rows: np.ndarray, later: np.random.Generator | None) -> np.ndarray:
    """[heads, tokens + 1, size] of [tokens, heads, size], with a later token."""
    rows = np.swapaxes(rows, 0, 1)
    last = rows[:, -1:]
    return np.concatenate([rows, last if later is None else 3 * later.normal(size=last.shape)], axis=1)


drop_tokens = TokenDropper   # as a function is called
