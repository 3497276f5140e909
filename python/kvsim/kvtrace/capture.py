"""One capture from prompt to file: tokens, later steps, recording, and what the file says of it."""

import json
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from .errors import EXIT_USAGE, CaptureError
from .generate import Sampling, generate
from .markup import Conversation
from .model import LoadedModel, config_digest, config_record, token_digest
from .probes import make_probes, record_probes
from .prompt import TokenizedPrompt, render, token_texts, tokenize
from .record import FirstPass, Recorder, choose_attention, find_attention_layers, other_layers
from .rope import find_rotations
from .writer import TraceWriter

DEFAULT_STEPS = 128


@dataclass
class CaptureOptions:
    """What to capture. None for `layers` is all, for `window` every query, for `steps` the default.

    `record` holds further entries for the trace's `source`: file names, digests, the command.
    """

    layers: list[int] | None = None
    window: int | None = None
    steps: int | None = None
    answer: str = ""
    raw: bool = False
    checks: int = 8
    probes: list[str] = field(default_factory=list)
    stored_type: str = "float16"
    wider: str = "--dtype float32"   # what a user types when numbers do not fit `stored_type`
    sampling: Sampling = field(default_factory=Sampling)
    record: dict = field(default_factory=dict)


def no_progress(stage: str, done: int, total: int) -> None:
    """For callers that show nothing."""


def stored_queries(prompt_len: int, total_len: int, window: int | None) -> np.ndarray:
    """Every position, or the last `window` of the prompt and all later ones."""
    begin = 0 if window is None else max(0, prompt_len - window)
    return np.arange(begin, total_len, dtype=np.int64)


def ranges(numbers: list[int]) -> str:
    """`0..3, 7` of ascending numbers."""
    runs: list[list[int]] = []
    for one in numbers:
        if runs and runs[-1][-1] == one - 1:
            runs[-1].append(one)
        else:
            runs.append([one])
    return ", ".join(str(run[0]) if len(run) == 1 else f"{run[0]}..{run[-1]}" for run in runs)


def spread(positions: np.ndarray, count: int) -> np.ndarray:
    """`count` of the positions, evenly spread, the last among them."""
    count = min(count, len(positions))
    return positions[np.arange(1, count + 1) * len(positions) // count - 1]


def _number_of_steps(options: CaptureOptions, conversation: Conversation) -> int:
    """How many tokens the model writes itself."""
    if options.answer:
        return 0
    if options.steps is not None:
        return options.steps
    return 0 if conversation.has_compress else DEFAULT_STEPS


def later_tokens(
    loaded: LoadedModel, conversation: Conversation, options: CaptureOptions, progress
) -> tuple[list[int], TokenizedPrompt, int]:
    """Returns all N token ids, the tokenised prompt, and how many of the ids the model wrote."""
    rendered = render(loaded.tokenizer, conversation, options.raw)
    prompt = tokenize(loaded.tokenizer, rendered, options.answer)
    ids = prompt.ids
    if options.answer and options.steps is not None:
        without = len(tokenize(loaded.tokenizer, rendered).ids)
        ids = ids[: max(without, prompt.prompt_len) + options.steps]
    count = _number_of_steps(options, conversation)
    written = []
    if count > 0:
        choose_attention(loaded.model)
        written = generate(
            loaded, ids, count, options.sampling, lambda i, n: progress("generating", i, n)
        )
    ids = ids + written
    if len(ids) <= prompt.prompt_len:
        raise CaptureError(
            "no tokens after the compression point: give --steps, --answer or text after "
            "<compress/>",
            EXIT_USAGE,
        )
    return ids, prompt, len(written)


def _source_record(
    loaded: LoadedModel, options: CaptureOptions, prompt: TokenizedPrompt, ids, written, attention
) -> str:
    record = {
        "tool": "kvsim capture",
        **loaded.record(),
        "stored_dtype": options.stored_type,
        "device": loaded.model.device.type,
        "attention": attention,
        "config": config_record(loaded.config),
        "config_sha256": config_digest(loaded.config),
        "token_ids_sha256": token_digest(ids),
        "generated_tokens": written,
        "answer_begin": prompt.answer_begin,
    }
    if written:
        sampling = options.sampling
        record["generation"] = "sampling" if sampling.temperature > 0 else "greedy"
        record["repetition_penalty"] = sampling.repetition_penalty
        if sampling.temperature > 0:
            record |= {"temperature": sampling.temperature, "top_p": sampling.top_p}
            record["seed"] = sampling.seed
    return json.dumps(record | options.record, sort_keys=True)


def capture_trace(
    loaded: LoadedModel,
    conversation: Conversation,
    options: CaptureOptions,
    target: Path,
    progress=no_progress,
    tokens: tuple[list[int], TokenizedPrompt, int] | None = None,
    keep_first: bool = False,
) -> dict:
    """Captures one trace into `target`; returns n, T, the layers and the size for a summary.

    `tokens`: what later_tokens() gave, when somebody has called it already. `keep_first`: the summary
    also has the FirstPass, with which a closed loop need not run the prompt again.
    """
    known = find_attention_layers(loaded.model)
    layers = sorted(known) if options.layers is None else options.layers
    for layer in layers:
        if layer not in known:
            raise CaptureError(f"layer {layer}: the model's attention layers are "
                               f"{ranges(sorted(known))}")
    left_out = other_layers(loaded.model) if options.layers is None else {}
    ids, prompt, written = tokens or later_tokens(loaded, conversation, options, progress)
    positions = stored_queries(prompt.prompt_len, len(ids), options.window)
    checks = spread(positions, options.checks)
    before = ids[: prompt.prompt_len]
    probes = make_probes(loaded, options.probes, before, options.raw, progress)

    with TraceWriter(target, options.stored_type, overwrite=True) as writer:
        writer.wider = options.wider
        recorder = Recorder(
            loaded.model, layers, positions, checks, writer,
            lambda done, total: progress("recording", done, total),
        )  # fmt: skip
        writer.describe(
            model=loaded.name,
            num_layers=loaded.num_layers,
            prompt_len=prompt.prompt_len,
            total_len=len(ids),
            query_positions=positions,
            check_positions=checks,
            tokens=ids,
            text=token_texts(loaded.tokenizer, ids),
            spans=prompt.spans,
        )
        if keep_first:
            recorder.first_pass = FirstPass(ids, prompt.prompt_len)
        left_out |= recorder.run(ids, leave_out=options.layers is None)
        recorder.refuse_other_model(ids)
        layers = [layer for layer in layers if layer not in left_out]
        record_probes(loaded, layers, before, probes, writer, progress)
        writer.amend(
            source=_source_record(loaded, options, prompt, ids, written, recorder.own_name),
            rotations=find_rotations(loaded.model, ids, layers),
        )
    return {
        "prompt_len": prompt.prompt_len,
        "total_len": len(ids),
        "queries": len(positions),
        "layers": layers,
        "left_out": left_out,
        "spans": prompt.spans,
        "probes": [(probe.name, sum(len(part.ids) for part in probe.parts)) for probe in probes],
        "bytes": target.stat().st_size,
        "first": recorder.first_pass,
    }
