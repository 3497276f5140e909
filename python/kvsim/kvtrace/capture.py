"""One capture from prompt to file: tokens, later steps, recording, and what the file says of it."""

import functools
import itertools
import json
from collections.abc import Iterable
from dataclasses import dataclass, field, fields
from pathlib import Path

import numpy as np

from ..errors import DataError, UsageError
from .generate import generate
from .inputs import Inputs, beside
from .layers import find_attention_layers, other_layers
from .markup import Conversation
from .model import LoadedModel, config_digest, config_record, token_digest
from .probes import make_probes, record_probes
from .prompt import TokenizedPrompt, render, token_texts, tokenize
from .record import FirstPass, OtherAttention, Recorder, choose_attention
from .rope import find_rotations, own_positions
from .writer import CHECKS, Rotations, TraceWriter, spread

DEFAULT_STEPS = 128
LATENT = ("kv_lora_rank", "qk_rope_head_dim")   # of an attention, in every family that has them


@dataclass
class CaptureOptions:
    """Options of a capture. None for `layers` is all, for `queries` every query, for `steps` the default.

    `record` holds further entries for the trace's `source`: file names, digests, the command."""

    layers: list[int] | None = None
    queries: int | None = None
    steps: int | None = None
    answer: str = ""
    raw: bool = False
    ignore_end: bool = False
    probes: list[str] = field(default_factory=list)
    dtype: str = "float16"
    wider: str = "--dtype float32"   # what a user types when numbers do not fit `dtype`
    record: dict = field(default_factory=dict)

    @classmethod
    def of(cls, given: dict, **more) -> "CaptureOptions":
        """Those among many names, options of a command or arguments of a function, and `more`."""
        return cls(**{one.name: given[one.name] for one in fields(cls) if one.name in given} | more)


def no_progress(stage: str, done: int, total: int) -> None:
    """For callers that show nothing."""


def ranges(numbers: list[int]) -> str:
    """`0..3, 7` of ascending numbers."""
    runs = [[one for _, one in run] for _, run in itertools.groupby(enumerate(numbers), lambda one: one[1] - one[0])]
    return ", ".join(str(run[0]) if len(run) == 1 else f"{run[0]}..{run[-1]}" for run in runs)


def latent_size(attentions: Iterable) -> int | None:
    """Numbers that a cache of latents (MLA) holds of a token, for all heads: the latent and the part
    of a key that is rotated. None where a layer caches keys and values, or layers differ."""
    sizes = {tuple(getattr(one, name, None) for name in LATENT) for one in attentions}
    first, = sizes if len(sizes) == 1 else [(None,)]
    return sum(first) if None not in first else None


def later_tokens(loaded: LoadedModel, conversation: Conversation | None, options: CaptureOptions,
                 progress, inputs: Inputs | None = None) -> tuple[list[int], TokenizedPrompt, int]:
    """Returns all N token ids, the tokenised prompt, and how many of the ids the model wrote.
    `inputs` stand in the place of a conversation."""
    if inputs is None:
        rendered = render(loaded.tokenizer, conversation, options.raw)
        prompt = tokenize(loaded.tokenizer, rendered, options.answer)
        without = len(tokenize(loaded.tokenizer, rendered).ids)
    else:   # a processor has made the prompt already
        without = len(inputs.ids)
        later = loaded.tokenizer.encode(options.answer, add_special_tokens=False) if options.answer else []
        prompt = TokenizedPrompt(inputs.ids + later, without, inputs.spans, without)
    ids, count, written = prompt.ids, options.steps, []
    if options.answer:
        count = 0
        if options.steps is not None:
            ids = ids[: max(without, prompt.prompt_len) + options.steps]
    elif count is None:
        count = 0 if conversation and conversation.has_compress else DEFAULT_STEPS
    if count > 0:
        choose_attention(loaded.model)
        given = beside(inputs, len(ids))
        written = generate(loaded, ids, count, functools.partial(progress, "generating"), inputs,
                           keeps_cache=not (given and own_positions(loaded.model, ids, given)),
                           ignore_end=options.ignore_end)
    ids = ids + written
    if len(ids) <= prompt.prompt_len:
        raise UsageError("no tokens after the compression point: give --steps, --answer or text after <compress/>")
    return ids, prompt, len(written)


def _source_record(loaded: LoadedModel, options: CaptureOptions, prompt: TokenizedPrompt, ids,
                   written, attention, inputs: list[str]) -> str:
    record = {
        "tool": "kvsim capture", **loaded.record(), "stored_dtype": options.dtype,
        "device": loaded.model.device.type, "attention": attention,
        "config": config_record(loaded.config), "config_sha256": config_digest(loaded.config),
        "token_ids_sha256": token_digest(ids), "generated_tokens": written,
        "answer_begin": prompt.answer_begin}
    if inputs:
        record["inputs"] = inputs
    if written:
        record["generation"] = "greedy"
    return json.dumps(record | options.record, sort_keys=True)


def capture_trace(loaded: LoadedModel, conversation: Conversation | None, options: CaptureOptions,
                  target: Path, progress=no_progress,
                  tokens: tuple[list[int], TokenizedPrompt, int] | None = None,
                  keep_first: bool = False, inputs: Inputs | None = None) -> dict:
    """Captures one trace into `target`; returns n, T, the layers and the size for a summary.

    `tokens`: what later_tokens() gave, when somebody has called it already. `keep_first`: the summary
    also has the FirstPass, with which a closed loop need not run the prompt again. `inputs` stand in
    the place of a conversation."""
    known = find_attention_layers(loaded.model)
    layers = sorted(known) if options.layers is None else options.layers
    for layer in layers:
        if layer not in known:
            raise DataError(f"layer {layer}: the model's attention layers are {ranges(sorted(known))}")
    if inputs is not None and options.probes:
        raise UsageError("probes read the prompt's text again, which images and sounds have none of: "
                         "give inputs or probes")
    ids, prompt, written = tokens or later_tokens(loaded, conversation, options, progress, inputs)
    probes = make_probes(loaded, options.probes, ids[: prompt.prompt_len], options.raw, progress)
    begin = 0 if options.queries is None else max(0, prompt.prompt_len - options.queries)
    positions = np.arange(begin, len(ids), dtype=np.int64)

    def write(positions: np.ndarray) -> dict:
        """The trace with the queries at these positions, and its summary."""
        n, model, given = prompt.prompt_len, loaded.model, beside(inputs, len(ids))
        # Of images and sounds the first, which tells whether it sees those behind it.
        first = np.intersect1d([begin for _, begin, _ in (inputs.spans if inputs else ())], positions)
        checks = np.union1d(*(spread(one, CHECKS) for one in (positions, first))).astype(np.int64)
        left_out = other_layers(model) if options.layers is None else {}
        with TraceWriter(target, options.dtype, overwrite=True) as writer:
            writer.wider = options.wider
            recorder = Recorder(model, layers, positions, checks, writer, functools.partial(progress, "recording"))
            writer.describe(
                model=loaded.name, num_layers=loaded.num_layers, prompt_len=n, total_len=len(ids),
                query_positions=positions, check_positions=checks, tokens=ids,
                text=token_texts(loaded.tokenizer, ids), spans=prompt.spans,
                latent_size=latent_size(recorder.modules[layer].attention for layer in layers))
            if keep_first:
                recorder.first_pass = FirstPass(ids, n)
            left_out |= recorder.run(ids, leave_out=options.layers is None, beside=given)
            recorder.refuse_other_model(ids, given)
            kept = [layer for layer in layers if layer not in left_out]
            record_probes(loaded, kept, ids[:n], probes, writer, progress)
            writer.amend(source=_source_record(loaded, options, prompt, ids, written, recorder.own_name,
                                               sorted(given)),
                         rotations=_rotations(model, ids, inputs, given, kept))
        return {"prompt_len": n, "total_len": len(ids), "queries": len(positions), "layers": kept,
                "left_out": left_out, "spans": prompt.spans, "bytes": target.stat().st_size,
                "probes": [(probe.name, len(probe.ids)) for probe in probes],
                "first": recorder.first_pass}

    try:
        return write(positions)
    except OtherAttention:
        # Tokens of one image may see one another: no later query does what a trace cannot say.
        inside = inputs.places if inputs else []
        if not np.isin(positions, inside).any():
            raise
        return write(np.setdiff1d(positions, inside))


def _rotations(model, ids: list[int], inputs: Inputs | None, given: dict, layers: list[int]) -> Rotations:
    """Rotations of a text of these tokens; beside images and sounds, of words in their place."""
    if inputs is not None:
        if why := own_positions(model, ids, given):
            return Rotations({}, why)
        words = inputs.words or [0]
        ids = [words[at % len(words)] for at in range(len(ids))]
    return find_rotations(model, ids, layers)
