"""One capture from prompt to file: tokens, later steps, recording, and what the file says of it."""

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from .errors import EXIT_USAGE, CaptureError
from .generate import Sampling, generate
from .inputs import Inputs
from .layers import find_attention_layers, other_layers
from .markup import Conversation
from .model import LoadedModel, config_digest, config_record, token_digest
from .probes import make_probes, record_probes
from .prompt import TokenizedPrompt, render, token_texts, tokenize
from .record import FirstPass, OtherAttention, Recorder, choose_attention
from .rope import find_rotations, own_positions
from .rotations import Rotations
from .writer import TraceWriter, spread

DEFAULT_STEPS = 128
LATENT = ("kv_lora_rank", "qk_rope_head_dim")   # of an attention, in every family that has them


@dataclass
class CaptureOptions:
    """Options of a capture. None for `layers` is all, for `window` every query, for `steps` the default.

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


def latent_size(attentions: Iterable) -> int | None:
    """Numbers that a cache of latents (MLA) holds of a token, for all heads: the latent and the part
    of a key that is rotated. None where a layer caches keys and values, or layers differ."""
    sizes = {tuple(getattr(one, name, None) for name in LATENT) for one in attentions}
    first, = sizes if len(sizes) == 1 else [(None,)]
    return sum(first) if None not in first else None


def _number_of_steps(options: CaptureOptions, conversation: Conversation | None) -> int:
    """How many tokens the model writes itself."""
    if options.answer:
        return 0
    if options.steps is not None:
        return options.steps
    return 0 if conversation and conversation.has_compress else DEFAULT_STEPS


def _behind_inputs(loaded: LoadedModel, inputs: Inputs, answer: str) -> TokenizedPrompt:
    """A prompt that a processor has made already, and a written answer."""
    n = len(inputs.ids)
    later = loaded.tokenizer.encode(answer, add_special_tokens=False) if answer else []
    return TokenizedPrompt(inputs.ids + later, n, inputs.spans, n)


def later_tokens(loaded: LoadedModel, conversation: Conversation | None, options: CaptureOptions,
                 progress, inputs: Inputs | None = None) -> tuple[list[int], TokenizedPrompt, int]:
    """Returns all N token ids, the tokenised prompt, and how many of the ids the model wrote.
    `inputs` stand in the place of a conversation."""
    if inputs is None:
        rendered = render(loaded.tokenizer, conversation, options.raw)
        prompt = tokenize(loaded.tokenizer, rendered, options.answer)
    else:
        prompt = _behind_inputs(loaded, inputs, options.answer)
    ids = prompt.ids
    if options.answer and options.steps is not None:
        without = len(tokenize(loaded.tokenizer, rendered).ids) if inputs is None else 0
        ids = ids[: max(without, prompt.prompt_len) + options.steps]
    count = _number_of_steps(options, conversation)
    written = []
    if count > 0:
        choose_attention(loaded.model)
        beside = inputs.of(len(ids)) if inputs else {}
        written = generate(loaded, ids, count, options.sampling,
                           lambda i, n: progress("generating", i, n), inputs,
                           keeps_cache=not (beside and own_positions(loaded.model, ids, beside)))
    ids = ids + written
    if len(ids) <= prompt.prompt_len:
        raise CaptureError(
            "no tokens after the compression point: give --steps, --answer or text after "
            "<compress/>",
            EXIT_USAGE)
    return ids, prompt, len(written)


def _source_record(loaded: LoadedModel, options: CaptureOptions, prompt: TokenizedPrompt, ids,
                   written, attention, beside: list[str]) -> str:
    record = {
        "tool": "kvsim capture", **loaded.record(), "stored_dtype": options.stored_type,
        "device": loaded.model.device.type, "attention": attention,
        "config": config_record(loaded.config), "config_sha256": config_digest(loaded.config),
        "token_ids_sha256": token_digest(ids), "generated_tokens": written,
        "answer_begin": prompt.answer_begin}
    if beside:
        record["inputs"] = beside
    if written:
        sampling = options.sampling
        record["generation"] = "sampling" if sampling.temperature > 0 else "greedy"
        record["repetition_penalty"] = sampling.repetition_penalty
        if sampling.temperature > 0:
            record |= {"temperature": sampling.temperature, "top_p": sampling.top_p}
            record["seed"] = sampling.seed
    return json.dumps(record | options.record, sort_keys=True)


def capture_trace(loaded: LoadedModel, conversation: Conversation | None, options: CaptureOptions,
                  target: Path, progress=no_progress,
                  tokens: tuple[list[int], TokenizedPrompt, int] | None = None,
                  keep_first: bool = False, inputs: Inputs | None = None) -> dict:
    """Captures one trace into `target`; returns n, T, the layers and the size for a summary.

    `tokens`: what later_tokens() gave, when somebody has called it already. `keep_first`: the summary
    also has the FirstPass, with which a closed loop need not run the prompt again. `inputs` stand in
    the place of a conversation.
    """
    known = find_attention_layers(loaded.model)
    layers = sorted(known) if options.layers is None else options.layers
    for layer in layers:
        if layer not in known:
            raise CaptureError(f"layer {layer}: the model's attention layers are "
                               f"{ranges(sorted(known))}")
    if inputs is not None and options.probes:
        raise CaptureError("probes read the prompt's text again, which images and sounds have none of: "
                           "give inputs or probes", EXIT_USAGE)
    text = tokens or later_tokens(loaded, conversation, options, progress, inputs)
    ids, prompt, _ = text
    probes = make_probes(loaded, options.probes, ids[: prompt.prompt_len], options.raw, progress)
    positions = stored_queries(prompt.prompt_len, len(ids), options.window)
    run = _Run(loaded, options, target, progress, layers, text, probes, inputs, keep_first)
    try:
        return run.write(positions)
    except OtherAttention:
        # Tokens of one image may see one another: no later query does what a trace cannot say.
        inside = [at for _, begin, end in (inputs.spans if inputs else ()) for at in range(begin, end)]
        if not np.isin(positions, inside).any():
            raise
        return run.write(np.setdiff1d(positions, inside))


@dataclass
class _Run:
    """One capture whose tokens are known."""

    loaded: LoadedModel
    options: CaptureOptions
    target: Path
    progress: Callable
    layers: list[int]
    text: tuple[list[int], TokenizedPrompt, int]
    probes: list
    inputs: Inputs | None
    keep_first: bool

    def checks(self, positions: np.ndarray) -> np.ndarray:
        """Rows that are compared with the model's own; of images and sounds the first, which tells
        whether it sees those behind it."""
        begins = [begin for _, begin, _ in (self.inputs.spans if self.inputs else ())]
        begins = spread(np.intersect1d(begins, positions), self.options.checks)
        return np.union1d(spread(positions, self.options.checks), begins).astype(np.int64)

    def write(self, positions: np.ndarray) -> dict:
        """The trace with the queries at these positions, and its summary."""
        loaded, options, progress = self.loaded, self.options, self.progress
        ids, prompt, written = self.text
        before, layers, checks = ids[: prompt.prompt_len], self.layers, self.checks(positions)
        beside = self.inputs.of(len(ids)) if self.inputs else {}
        left_out = other_layers(loaded.model) if options.layers is None else {}
        with TraceWriter(self.target, options.stored_type, overwrite=True) as writer:
            writer.wider = options.wider
            recorder = Recorder(loaded.model, layers, positions, checks, writer,
                                lambda done, total: progress("recording", done, total))
            writer.describe(
                model=loaded.name, num_layers=loaded.num_layers, prompt_len=prompt.prompt_len,
                total_len=len(ids), query_positions=positions, check_positions=checks, tokens=ids,
                text=token_texts(loaded.tokenizer, ids), spans=prompt.spans,
                latent_size=latent_size(recorder.modules[layer].attention for layer in layers))
            if self.keep_first:
                recorder.first_pass = FirstPass(ids, prompt.prompt_len)
            left_out |= recorder.run(ids, leave_out=options.layers is None, beside=beside)
            recorder.refuse_other_model(ids, beside)
            layers = [layer for layer in layers if layer not in left_out]
            record_probes(loaded, layers, before, self.probes, writer, progress)
            writer.amend(
                source=_source_record(loaded, options, prompt, ids, written, recorder.own_name,
                                      sorted(beside)),
                rotations=self.rotations(beside, layers))
        return {
            "prompt_len": prompt.prompt_len,
            "total_len": len(ids),
            "queries": len(positions),
            "layers": layers,
            "left_out": left_out,
            "spans": prompt.spans,
            "probes": [(probe.name, sum(len(part.ids) for part in probe.parts))
                       for probe in self.probes],
            "bytes": self.target.stat().st_size,
            "first": recorder.first_pass,
        }

    def rotations(self, beside: dict, layers: list[int]) -> Rotations:
        """Rotations of a text of these tokens; beside images and sounds, of words in their place."""
        ids, model = self.text[0], self.loaded.model
        if self.inputs is None:
            return find_rotations(model, ids, layers)
        if why := own_positions(model, ids, beside):
            return Rotations({}, why)
        words = self.inputs.words or [0]
        return find_rotations(model, [words[at % len(words)] for at in range(len(ids))], layers)
