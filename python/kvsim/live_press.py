"""`press`: any policy that compresses once after the prompt, live, as a press of kvpress.

The prefill is recorded as `capture` does it, into a temporary trace. The program chooses what is
kept, by `replay`, and the cache is compressed before the model's forward returns."""

from __future__ import annotations

import re
import warnings
import weakref
from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch

from .api import PolicyLike
from .compact_cache import check_cache, compress
from .errors import Error, UsageError
from .kvtrace.capture import no_progress
from .kvtrace.kept_sets import check_static
from .kvtrace.layers import cache_in, find_attention_layers, hooked
from .kvtrace.model import of_caller
from .kvtrace.probes import make_probes, record_probes
from .kvtrace.prompt import token_texts
from .kvtrace.record import Recorder, listening
from .kvtrace.rope import find_rotations
from .kvtrace.writer import TraceWriter
from .plain import counted
from .policy import Policy, as_policies, choose, described
from .program import KvsimWarning, call, exchange, in_words_of_python

try:
    from kvpress import BasePress
except ImportError as error:
    raise UsageError("kvsim.press needs kvpress, which masks heads that keep different counts "
                     f"({error}): pip install kvpress==0.5.5") from None

REGISTERED_NAME = "kvsim_press"
# The need, by `kvsim policies --json`, of a policy that looks past the prompt.
LATER_QUERIES = re.compile(r"positions >= n|\.\.N-1")


def _check(policy: Policy, described: dict, tokenizer: Any) -> None:
    """Refuses what no press of a finished prompt can do."""
    cells, needs = described["cells"], described["needs"]
    later = [one for one in needs if LATER_QUERIES.search(one)]
    check_static(policy.record, cells, "; kvsim.closed_loop runs others")
    if cells.get("granularity", "kv") != "kv":
        raise UsageError(f"{policy.record}: found granularity={cells['granularity']}, expected kv: "
                         "caches hold one set of entries for a KV head")
    if later:
        raise UsageError(f"{policy.record}: needs {later[0]}, which come after the cache is compressed")
    if cells.get("probe", "none") != "none" and tokenizer is None:
        raise UsageError(f"{policy.record}: reads the prompt again (probe={cells['probe']}); give "
                         "the model's tokenizer, kvsim.press(..., tokenizer=tokenizer)")


class _PromptRecorder(Recorder):
    """Listens to a prefill of n tokens and writes every layer.

    A trace has at least one later step. Here the last token, a second time, stands in for it.
    No policy that a press takes looks at it."""

    def __init__(self, model: Any, n: int, writer: TraceWriter):
        super().__init__(model, sorted(find_attention_layers(model)),
                         np.append(np.arange(n), n - 1), np.array([n - 1]), writer,
                         lambda done, total: None)

    def _describe(self, *arguments, **options) -> dict:
        layer = super()._describe(*arguments, **options)
        return layer | {name: np.concatenate([layer[name], layer[name][:, -1:]], axis=1) for name in ("keys", "values")}


class _Prefill:
    """One prompt from its first layer to the sets that are kept of it."""

    def __init__(self, press: "LivePress", model: Any, ids: torch.Tensor | None, n: int):
        self.press, self.model, self.n = press, model, n
        self.ids = None if ids is None else [int(one) for one in ids]
        self.loaded = of_caller(model, press.tokenizer)
        self.own = model.config.get_text_config()._attn_implementation
        self.folder, self.writing, self.hearing = ExitStack(), ExitStack(), ExitStack()
        self.path = Path(self.folder.enter_context(exchange())) / "prompt.h5"
        call(self.path, "the prompt")
        self.writer = self.writing.enter_context(TraceWriter(self.path, press.dtype))
        self.writer.wider = 'dtype="float32"'

    def listen(self) -> None:
        """From now on the model's attention is recorded."""
        tokens = {} if self.ids is None else {"tokens": [*self.ids, self.ids[-1]]}
        if tokens and self.press.tokenizer is not None:
            tokens["text"] = token_texts(self.press.tokenizer, tokens["tokens"])
        self.writer.describe(
            model=self.loaded.name, num_layers=self.loaded.num_layers, prompt_len=self.n,
            query_positions=np.arange(self.n + 1), check_positions=np.array([self.n - 1]), **tokens)
        self.recorder = _PromptRecorder(self.model, self.n, self.writer)
        self.hearing.enter_context(listening(self.model, REGISTERED_NAME, self.recorder._attend, self.own))
        self.hearing.enter_context(hooked(self.recorder.hooks()))

    def choose(self) -> dict[int, np.ndarray]:
        """Entries that the policy keeps: bool [Hkv, n] of every layer that it compresses."""
        press = self.press
        self.recorder.check_complete()
        if press.probe is not None:
            probes = make_probes(self.loaded, [press.probe], self.ids, False, no_progress)
            try:
                record_probes(self.loaded, sorted(self.recorder.wanted), self.ids, probes, self.writer, no_progress)
            finally:
                self.model.set_attn_implementation(self.own)
        self.writer.amend(source={"tool": "kvsim.press"}, rotations=find_rotations(
            self.model, self.ids or [0] * self.n, sorted(self.recorder.wanted), self.own))
        self.writing.close()
        # 1 - 0.8 is not 0.2 in binary, and counts are rounded from exact ratios.
        masks, = choose(press.policy, self.path, [str(round(1 - press.compression_ratio, 10))],
                        seed=press.seed, threads=press.threads)
        if not any(mask.any() for mask in masks.values()):
            warnings.warn(f"{press.policy.record}, compression_ratio={press.compression_ratio}: keeps "
                          f"none of the prompt's {counted(self.n, 'entry', 'entries')}", KvsimWarning,
                          stacklevel=2)
        return masks

    def close(self) -> None:
        """Nothing stays of a prompt, finished or not, and the model is as it was."""
        self.hearing.close()
        stop = Error("the prompt was not finished")
        self.writing.__exit__(type(stop), stop, None)   # nothing to do where it was
        self.folder.close()


class LivePress(BasePress):
    """A live press of kvpress for any policy that compresses once after the prompt.

    >>> press = kvsim.press("rehearsal:recent", compression_ratio=0.8)
    >>> with press(model):
    ...     output = model(**inputs)   # output.past_key_values is compressed

    Args:
        policy: a record, a function ``score(layer)``, or a :class:`Policy`.
        compression_ratio: share of the prompt's entries that is dropped; 0.8 is a budget of 0.2.
        tokenizer: the model's; for policies that read the prompt again (``kvzip``,
            ``rehearsal:reread``) or that look at the tokens' text.
        dtype: in which queries, keys and values go to the program: float16, float32, bfloat16.

    Attributes:
        kept: of the last prompt, {layer: bool [Hkv, n]}; other layers keep everything.

    Raises:
        UsageError: for policies that compress again later, merge, round or move entries, keep sets
            for single query heads, or know the future."""

    def __init__(self, policy: PolicyLike, compression_ratio: float = 0.5, *, tokenizer: Any = None,
                 dtype: str = "float16", seed: int | None = None, threads: int | None = None):
        self.policy, = as_policies(policy)
        self.tokenizer, self.dtype, self.seed, self.threads = tokenizer, dtype, seed, threads
        self.compression_ratio = compression_ratio
        found = described(self.policy.record)
        _check(self.policy, found, tokenizer)
        probe = found["cells"].get("probe", "none")
        self.probe = None if probe == "none" else probe
        self.kept: dict[int, np.ndarray] = {}
        self._prefill: _Prefill | None = None
        self._compressed: tuple[weakref.ref, int] | None = None   # a cache, the prompt's tokens
        self._choosing = False

    @property
    def compression_ratio(self) -> float:
        """Share of the prompt's entries that is dropped."""
        return self._ratio

    @compression_ratio.setter
    def compression_ratio(self, ratio: float) -> None:
        if isinstance(ratio, bool) or not isinstance(ratio, (int, float)) or not 0 <= ratio < 1:
            raise UsageError(f"compression_ratio: found {ratio!r:.60}, expected 0 <= ratio < 1, "
                             "the share of entries that is dropped")
        self._ratio = ratio

    def __repr__(self) -> str:
        return f"kvsim.press({self.policy.record!r}, compression_ratio={self.compression_ratio})"

    @contextmanager
    def __call__(self, model: Any) -> Generator:
        """While the block lasts, every prompt that the model runs is compressed after its prefill.

        A prompt is a forward over an empty cache. Later tokens run as they are, one by one; several
        at once, as of a prompt in chunks, are refused."""
        body = getattr(model, "model", model)
        body = getattr(body, "language_model", body)
        hooks = [body.register_forward_pre_hook(lambda _, args, kwargs: self._begin(model, args, kwargs),
                                                with_kwargs=True),
                 body.register_forward_hook(lambda _, args, output: self._end(model, output))]
        try:
            with hooked(hooks):
                yield
        finally:
            self._compressed = None
            self._forget()

    def _forget(self) -> None:
        prefill, self._prefill = self._prefill, None
        if prefill is not None:
            prefill.close()

    def _begin(self, model: Any, args: tuple, kwargs: dict) -> None:
        if self._choosing:
            return
        cache, mask = cache_in(kwargs), kwargs.get("attention_mask")
        ids = kwargs.get("input_ids", args[0] if args else None)
        prompts, n = (ids if ids is not None else kwargs["inputs_embeds"]).shape[:2]
        if cache is not None and cache.get_seq_length() > 0:
            # A prompt in chunks would be compressed in its first one alone, and nobody would know.
            if n > 1 and self._compressed is not None and self._compressed[0]() is cache:
                raise UsageError(
                    f"found {n} more tokens in one forward over a cache that was compressed after "
                    f"{self._compressed[1]}, expected the whole prompt in one forward: no "
                    "prefill_chunk_size; a question after the prompt comes after the block")
            return
        self._forget()   # of a forward that failed
        self.kept = {}
        if prompts != 1:
            raise UsageError(f"batch of {prompts} prompts: kvsim.press takes one at a time")
        if ids is None and self.probe is not None:
            raise UsageError(f"{self.policy.record}: reads the prompt's tokens again, but the model "
                             "was given inputs_embeds")
        if self.compression_ratio == 0:
            return
        check_cache(cache)   # first: with a cache of fixed size generate gives a mask of its free places
        if isinstance(mask, torch.Tensor) and not bool(mask.all()):
            raise UsageError("attention_mask: found hidden tokens, expected a prompt without padding")
        self._prefill = _Prefill(self, model, None if ids is None else ids[0], n)
        with in_words_of_python():
            self._prefill.listen()

    def _end(self, model: Any, output: Any) -> None:
        prefill = self._prefill
        if prefill is None or self._choosing:
            return
        cache = cache_in(output)
        self._choosing = True
        try:
            prefill.hearing.close()
            if cache is None:
                raise UsageError("the model ran without a cache, so that nothing can be compressed: use_cache=True")
            with in_words_of_python():
                self.kept = prefill.choose()
            device = cache.layers[0].keys.device
            compress(cache, {layer: torch.from_numpy(kept).to(device) for layer, kept in self.kept.items()}, model)
            self._compressed = weakref.ref(cache), prefill.n
        finally:
            self._choosing = False
            self._forget()


press = LivePress   # as a function is called
