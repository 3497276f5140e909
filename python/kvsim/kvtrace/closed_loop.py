"""Runs a model whose later queries see only what compression left of the cache.

All tokens run once, with the full cache; the prompt's keys and values serve every run. Only the later tokens are run
again, several caches at a time: each layer sees the entries that its heads keep, or its attention comes from the
program that holds the compressed cache (live_cache.py). A model that carries more than keys and values from the prompt
on (a convolution's or a recurrent layer's state), or that counts positions by itself, gives other logits in that way
even with everything kept. There prompt and later tokens run together each time, and only later queries miss what is
dropped. As in a capture, the model's attention function is replaced in transformers' registry by one that calls it."""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch

from ..errors import DataError, Error
from .inputs import Inputs, beside
from .kept_sets import KeptSets
from .layers import few_logits, find_attention_layers
from .live_cache import LiveAttention, LiveCache
from .record import FirstPass, last_logits, listening, off, running, tolerance
from .rope import takes_positions
from .writer import as_array

REGISTERED_NAME = "kvtrace_closed_loop"
# Rows (sets times tokens) of one forward pass: on a CPU as many as hide the reading of the weights, else
# what keeps the device busy.
ROWS_AT_ONCE = {"cpu": 512}
ROWS_AT_ONCE_ELSEWHERE = 2048
# Logits that two ways through one model may differ by, of their norm: rounding, in 16 bits of all layers.
SAME_MODEL, SAME_MODEL_LOW_PRECISION = 1e-3, 0.1
# The tokens so far beside the keys and values that later tokens added.
TOKENS = "tokens"
# Rows whose distributions over the vocabulary are compared at once.
COMPARED_ROWS = 8

# Cache of one row of a forward pass; None keeps everything.
Cache = KeptSets | LiveCache | None


def rows_at_once(device) -> int:
    """Sets times tokens of one forward pass on a torch device."""
    return ROWS_AT_ONCE.get(device.type, ROWS_AT_ONCE_ELSEWHERE)


@dataclass
class Answer:
    """Tokens that a model writes greedily with one cache. kl: from the full cache's over the tokens of the
    full cache's answer, mean, nats. same: are both answers the same?"""

    tokens: list[int]
    kl: float
    same: bool


class ClosedLoop:
    """One model and one text: `ids` [N] tokens, of which the first `prompt_len` are the prompt.

    `live` serves the LiveCaches. `first`: what a pass over these tokens has left already. `inputs`:
    images and sounds beside the prompt. A context manager: the model's own attention is back when it
    ends."""

    def __init__(self, model, ids: list[int], prompt_len: int, live: LiveAttention | None = None,
                 first: FirstPass | None = None, inputs: Inputs | None = None):
        self.model = model
        self.device = model.device
        self.ids = torch.tensor(ids, device=self.device)
        self.prompt_len = prompt_len
        self.live = live
        self.inputs = inputs
        if first is not None and (first.ids, first.prompt_len) != (ids, prompt_len):
            raise ValueError("the first pass is of other tokens")
        # Live caches want queries of the prompt, too.
        self.first = first if first is not None and live is None else FirstPass(ids, prompt_len)
        self.layers = find_attention_layers(model)
        # Whether the prompt runs again with every cache.
        self.whole = not takes_positions(model)
        if live is not None and live.first < prompt_len:
            self.whole = True
            live.prompt_queries = np.arange(prompt_len)
        # [1, Hkv, n, d] by layer; what later tokens added, [B, Hkv, t, d], or their tokens [B, t];
        # sets by layer, or None.
        self.prompt, self.heads = self.first.prompt, self.first.heads
        self.later: dict[int | str, tuple] = {}
        self.kept: dict[int, object] = {}
        # Queries of the prompt by layer, as far as the live caches need them; the caches by row.
        self.prompt_queries: dict[int, torch.Tensor] = {}
        self.live_rows: dict[int, LiveCache] = {}
        self.keeps_later = False
        self.start: int | None = None

    def __enter__(self) -> "ClosedLoop":
        with contextlib.ExitStack() as stack:
            stack.enter_context(listening(self.model, REGISTERED_NAME, self._attend))
            with torch.inference_mode(), running(self.model):
                self._run_prompt()
            self.stack = stack.pop_all()   # the model's own attention is back with it
        return self

    def __exit__(self, *_) -> None:
        self.stack.close()

    def _run_prompt(self) -> None:
        """The run with everything kept; refuses a model whose own logits [T + 1, vocabulary] are others."""
        own = self.first.logits if self.prompt else last_logits(
            self.model, self.ids[None], len(self.ids) - self.prompt_len + 1,
            **beside(self.inputs, len(self.ids)))[0]

        def full():
            """[T, vocabulary] of the later tokens."""
            return self._forward(self.ids[None, self.prompt_len :], [None], self.prompt_len)[0].float()

        self.full_logits = full()
        if own is not None:
            self.first_token = int(own[0].argmax())
            most = tolerance(self.model, SAME_MODEL, SAME_MODEL_LOW_PRECISION)   # of rounding
            if not off(self.full_logits, own[1:]) < most and not self.whole:
                self.whole = True
                self.full_logits = full()
            if not (error := off(self.full_logits, own[1:])) < most:
                raise Error(
                    f"{type(self.model).__name__}: with everything kept the next-token logits of a "
                    f"closed loop differ from the model's own by {error:.2g} of their norm")
        self.full = self.full_logits.softmax(-1)
        self.full_sum = self.full.sum(-1, dtype=torch.float64)
        self.full_top = self.full_logits.argmax(-1)

    def _attend(self, own, module, query, key, value, attention_mask, **kwargs):
        """query [B, Hq, m, d], key [B, Hkv, m, d]: the first pass, or m later tokens."""
        layer = getattr(module, "layer_idx", None)
        if self.layers.get(layer) is None or self.layers[layer].attention is not module:
            return own(module, query, key, value, attention_mask, **kwargs)
        if self.start is None:
            self.first.see(layer, query, key, value)
            if self.live is not None and layer in self.live.layers:
                self.prompt_queries[layer] = query[0][:, self.live.prompt_queries]
            return own(module, query, key, value, attention_mask, **kwargs)
        if self.whole:
            return self._attend_whole(own, module, query, key, value, attention_mask, **kwargs)
        later = (key, value)
        if layer in self.later:
            later = tuple(torch.cat(both, dim=2) for both in zip(self.later[layer], later))
        if self.keeps_later:
            self.later[layer] = later
        served = self._served(layer, lambda row: (
            torch.cat([self.prompt_queries[layer], query[row]], dim=1),
            *(torch.cat([prompt[0], part[row]], dim=1)
              for prompt, part in zip(self.prompt[layer], later))))
        if len(served) == len(query):
            return torch.stack([served[row] for row in range(len(query))]), None
        prompt, positions, dropped = self._kept_of_prompt(layer, len(query))
        keys, values = (torch.cat(both, dim=2) for both in zip(prompt, later))
        mask = self._mask(query, positions, dropped, later[0].shape[2], kwargs.get("sliding_window"))
        output, weights = own(module, query, keys, values, mask, **kwargs)
        for row, found in served.items():
            output[row] = found
        return output, weights

    def _attend_whole(self, own, module, query, key, value, mask, **kwargs):
        """Prompt and later tokens together; only later queries miss what is dropped."""
        layer, n = module.layer_idx, self.prompt_len
        kept = self.kept.get(layer)
        if kept is not None:
            hidden = torch.zeros(*query.shape[:3], key.shape[2], dtype=torch.bool, device=self.device)
            hidden[:, :, n:, :n] = ~kept.repeat_interleave(query.shape[1] // kept.shape[1], 1)[:, :, None]
            whole = torch.zeros(hidden.shape, dtype=query.dtype, device=self.device)
            if mask is None:   # causal, as transformers leaves it to the function
                hidden |= torch.ones(hidden.shape[2:], dtype=torch.bool, device=self.device).triu(1)
            elif mask.dtype == torch.bool:
                hidden |= ~mask
            else:
                whole += mask
            mask = whole.masked_fill_(hidden, torch.finfo(query.dtype).min)
        output, weights = own(module, query, key, value, mask, **kwargs)
        if layer in self.prompt_queries:
            stored = [*self.live.prompt_queries, *range(n, query.shape[2])]
            for row, found in self._served(layer, lambda row: (query[row][:, stored], key[row], value[row])).items():
                output[row, -len(found):] = found
        return output, weights

    def _served(self, layer: int, tensors) -> dict[int, object]:
        """Outputs [t, Hq, dv] of the newest t queries by row, of the rows whose cache of this layer is a
        changed one. `tensors(row)`: queries [Hq, M, d], keys and values."""
        served = {}
        for row, cache in self.live_rows.items() if layer in self.prompt_queries else ():
            found = self.live.attend(cache, layer, *map(as_array, tensors(row)))
            if found is not None:
                served[row] = torch.tensor(found).to(self.prompt_queries[layer]).transpose(0, 1)
        return served

    def _kept_of_prompt(self, layer: int, rows: int) -> tuple:
        """Entries of the prompt that later tokens see: keys and values [rows, Hkv, k, d], their positions
        [rows or 1, Hkv or 1, k], and bool [rows, Hq, k] of those that a query head does not keep,
        or None. A KV head has what one of its query heads keeps, ascending, and fillers up to k."""
        kept = self.kept.get(layer)
        if kept is None:
            positions = torch.arange(self.prompt_len, device=self.device)[None, None]
            return tuple(t.expand(rows, -1, -1, -1) for t in self.prompt[layer]), positions, None
        heads = self.prompt[layer][0].shape[1]
        of_head = kept.unflatten(1, (heads, -1)).any(dim=2) if kept.shape[1] > heads else kept
        row, head, position = of_head.nonzero(as_tuple=True)
        count = of_head.sum(-1)
        positions = torch.zeros(rows, heads, int(count.max()), dtype=torch.long, device=self.device)
        positions[row, head, (of_head.cumsum(-1) - 1)[of_head]] = position
        parts = self._entries(layer, positions)
        filler = torch.arange(positions.shape[2], device=self.device) >= count[..., None]
        group = self.heads[layer] // heads
        dropped = filler.repeat_interleave(group, 1)
        if kept is not of_head:
            dropped |= ~kept.gather(2, positions.repeat_interleave(group, 1))
        return parts, positions, dropped if dropped.any() else None

    def _entries(self, layer: int, positions) -> tuple:
        """Keys and values [rows, Hkv, k, d] at positions [rows, Hkv, k]: rows of memory as a whole."""
        first = self.prompt_len * torch.arange(positions.shape[1], device=self.device)[:, None]
        return tuple(t[0].flatten(0, 1).index_select(0, (first + positions).flatten()).unflatten(
            0, positions.shape) for t in self.prompt[layer])

    def _mask(self, query, positions, dropped, later: int, window: int | None):
        """Additive mask [B or 1, Hq or 1, m, k + later]: causal, sliding window, kept sets."""
        def hidden(where):
            mask = torch.zeros(where.shape, dtype=query.dtype, device=self.device)
            return mask.masked_fill_(where, float("-inf"))

        rows = torch.arange(self.start, self.start + query.shape[2], device=self.device)[:, None]
        own = torch.arange(self.prompt_len, self.prompt_len + later, device=self.device)[None, None]
        if not window:   # all later tokens see all of the prompt, so that heads share one mask
            positions = positions[:1, :1]
        entries = torch.cat([positions, own.expand(*positions.shape[:2], -1)], dim=2)[:, :, None]
        visible = entries <= rows
        if window:
            visible &= entries > rows - window
        mask = hidden(~visible)
        if mask.shape[1] > 1:
            mask = mask.repeat_interleave(query.shape[1] // mask.shape[1], 1)
        if dropped is None:
            return mask
        return mask + torch.nn.functional.pad(hidden(dropped), (0, later))[:, :, None]

    def _choose(self, caches: list[Cache]) -> None:
        """Puts the sets of a batch together per layer, as bool [B, Hkv, n], or [B, Hq, n] where some
        of them are by query head."""
        self.kept = {}
        self.live_rows = {i: one for i, one in enumerate(caches) if isinstance(one, LiveCache)}
        sets = [one if isinstance(one, KeptSets) else None for one in caches]
        for layer in {layer for one in sets if one is not None for layer in one.masks}:
            if layer not in self.prompt:
                raise DataError(f"layer {layer}: the model has no such attention layer")
            whole = np.ones((self.prompt[layer][0].shape[1], self.prompt_len), dtype=bool)
            masks = [whole if one is None else one.masks.get(layer, whole) for one in sets]
            heads = max(len(whole), *(len(mask) for mask in masks))
            for mask in masks:
                if heads % len(mask) or self.heads[layer] % heads or mask.shape[1] != self.prompt_len:
                    raise DataError(f"layer {layer}: kept sets of shape {mask.shape} do not "
                                    f"fit {self.heads[layer]} heads and {self.prompt_len} tokens")
            self.kept[layer] = torch.from_numpy(np.stack(
                [np.repeat(mask, heads // len(mask), axis=0) for mask in masks])).to(self.device)

    def _forward(self, tokens, caches: list[Cache], start: int, last: int = 0):
        """Logits [B, m, vocabulary] of tokens [1 or B, m] at positions start.., one cache a row;
        of the `last` tokens alone where it is not 0."""
        self._choose(caches)
        self.start = start
        if self.whole:
            return self._forward_whole(tokens.expand(len(caches), -1), last or tokens.shape[1])
        positions = torch.arange(start, start + tokens.shape[1], device=self.device)
        return self.model(
            input_ids=tokens.expand(len(caches), -1),
            position_ids=positions[None].expand(len(caches), -1), use_cache=False,
            **few_logits(self.model, last)).logits[:, -last:]   # all of them where it is 0

    def _forward_whole(self, tokens, last: int):
        """Logits [B, last, vocabulary] of tokens [B, m] behind the prompt and what was written."""
        later = torch.cat([*self.later.get(TOKENS, ()), tokens], dim=1)
        if self.keeps_later:
            self.later[TOKENS] = (later,)
        prompt = self.ids[None, : self.prompt_len].expand(len(tokens), -1)
        whole = torch.cat([prompt, later], dim=1)
        return last_logits(self.model, whole, last, **beside(self.inputs, whole.shape[1]))

    @property
    def batch(self) -> int:
        """How many caches one forward pass takes: what stands beside a prompt is there once."""
        if self.whole and self.inputs:
            return 1
        tokens = len(self.ids) - (0 if self.whole else self.prompt_len)
        return max(1, rows_at_once(self.device) // tokens)

    def logits(self, caches: list[Cache]):
        """Teacher-forced logits [B, T, vocabulary] of the later tokens, one cache a row."""
        with torch.inference_mode():
            return self._forward(self.ids[None, self.prompt_len :], caches, self.prompt_len)

    def losses(self, caches: list[Cache]) -> list[dict[str, list[float]]]:
        """Runs one batch of caches and compares each with the run that keeps everything: by losses.json,
        per later query; the last one has no next token."""
        logits = self.logits(caches)
        with torch.inference_mode():
            return [self._compare(one.float()) for one in logits]

    def _compare(self, logits) -> dict[str, list[float]]:
        """logits [T, vocabulary] float32 against those of the run that keeps everything."""
        parts = []
        for begin in range(0, len(logits), COMPARED_ROWS):
            rows = slice(begin, begin + COMPARED_ROWS)
            parts.append(self._compare_rows(logits[rows], rows))
        kl, normaliser, agrees = (torch.cat(part) for part in zip(*parts))
        following = self.ids[self.prompt_len + 1 :, None]
        nll = torch.full_like(kl, torch.nan)
        change = (logits[:-1].gather(-1, following) - self.full_logits[:-1].gather(-1, following))
        nll[:-1] = normaliser[:-1] - change[:, 0]
        return {"kl_divergence": kl.tolist(), "nll_difference": nll.tolist(),
                "top1_agreement": agrees.double().tolist()}

    def _compare_rows(self, logits, rows: slice) -> tuple:
        """KL to the full run, change of the logits' normaliser (log-sum-exp), equal top tokens."""
        def expected(values):
            """Mean over the full run's distribution; float64, and exact for a constant."""
            return (self.full[rows] * values).sum(-1, dtype=torch.float64) / self.full_sum[rows]

        change = logits - self.full_logits[rows]
        mean = expected(change)
        # KL = log E[e^(change - mean)]: no difference of large numbers, so that a small loss keeps
        # its digits. Past 80 the exponential would leave float32.
        spread = change - mean[:, None].float()
        spread = spread if spread.max() < 80 else spread.double()
        kl = expected(spread.expm1()).log1p().clamp(min=0)
        return kl, kl + mean, logits.argmax(-1) == self.full_top[rows]

    def answers(self, sets: list[KeptSets], begin: int, ends: frozenset[int],
                longest: int | None = None) -> list["Answer"]:
        """Answers that each cache gives greedily where the tokens from `begin` on, at least one after the
        prompt, are the full cache's greedy answer; to one of `ends`, or `longest` tokens at most, by
        default as many as the full cache's answer has.

        Tokens between prompt and answer run once; then the full cache's answer, token by token, and
        where a cache would have written another one, its own answer."""
        forced, own = self.ids[None, self.prompt_len : begin], self.ids[None, begin:]
        with self._writing():
            logits = [self._forward(forced, sets, self.prompt_len, last=1)]
            read = dict(self.later)
            self.keeps_later = False
            if own.shape[1] > 1:
                logits.append(self._forward(own[:, :-1], sets, begin))
            logits = torch.cat(logits, dim=1).float()
            rows = slice(begin - self.prompt_len - 1, len(self.ids) - self.prompt_len - 1)
            kl = [self._compare_rows(one, rows)[0].mean().item() for one in logits]
            same = (logits.argmax(-1) == own).all(-1).tolist()
            differ = [i for i, one in enumerate(same) if not one]
            written = own.repeat(len(sets), 1).tolist()
            if differ:
                self.later = {layer: tuple(one[differ] for one in kept) for layer, kept in read.items()}
                self.keeps_later = True
                free = self._write(logits[differ, 0].argmax(-1)[:, None],
                                   [sets[i] for i in differ], begin, longest or own.shape[1], ends)
                for i, tokens in zip(differ, free.tolist()):
                    written[i] = tokens
        return [Answer(tokens, *rest) for tokens, *rest in zip(written, kl, same)]

    @contextlib.contextmanager
    def _writing(self) -> Iterator[None]:
        """Keeps what later tokens add to the cache, as long as the block."""
        self.later, self.keeps_later = {}, True
        try:
            with torch.inference_mode():
                yield
        finally:
            self.later, self.keeps_later = {}, False

    def _write(self, written, sets: list[KeptSets | None], start: int, count: int, ends: frozenset[int] = frozenset()):
        """Goes on greedily after the tokens [B, 1] at position `start`: [B, count], or fewer where
        every row has one of `ends`."""
        while written.shape[1] < count:
            if ends and all(ends.intersection(row) for row in written.tolist()):
                break
            logits = self._forward(written[:, -1:], sets, start)
            written = torch.cat([written, logits[:, -1].argmax(-1)[:, None]], dim=1)
            start += 1
        return written

    def full_answer(self, longest: int, ends: frozenset[int]) -> list[int]:
        """Tokens that the full cache writes greedily behind all tokens, to one of `ends` or `longest` tokens."""
        with self._writing():
            logits = self._forward(self.ids[None, self.prompt_len :], [None], self.prompt_len, last=1)
            return self._write(logits[:, -1].argmax(-1)[:, None], [None], len(self.ids), longest, ends)[0].tolist()

    def generate(self, sets: list[KeptSets | None], count: int) -> np.ndarray:
        """Greedy tokens [B, count] after the prompt; the first comes from the prompt itself.

        Live caches end with the trace's tokens and cannot be written with."""
        first = torch.full((len(sets), 1), self.first_token, device=self.device)
        with self._writing():
            return self._write(first, sets, self.prompt_len, count).cpu().numpy()
