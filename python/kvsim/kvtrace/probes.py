"""Further queries over the same cache: what a model would read or write right behind a prompt.

Every part of a probe is read in one pass over the prompt and the part, as if nothing else had
followed the prompt; parts do not see one another."""

import functools
import re
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from ..errors import DataError, UsageError
from ..plain import read_text
from .generate import generate
from .layers import cache_in, find_attention_layers, hooked, with_cache
from .model import LoadedModel
from .prompt import token_texts
from .record import Recorder
from .stream import StreamWatch
from .writer import CHECKS, TraceWriter, as_array, spread

# KVzip: tokens of a chunk (kvpress' default), its two requests, and how many tokens of the chunk
# before are repeated in the second one.
REPEAT_CHUNK = 2048
REPEAT_ALL = "\n\nRepeat the previous context exactly."
REPEAT_PART = "\n\nRepeat the part of the previous context exactly, starting with"
REPEAT_OVERLAP = 8
REREAD_REST = re.compile(r"|gradient|[1-9]\d*(:gradient)?")   # behind `repeat:`
ANSWER_STEPS = 32
# Tokens of the prompt that a probe's first tokens are decoded behind.
CONTEXT = 8


@dataclass
class Part:
    """Tokens that follow the prompt, and the prompt's entries [begin, end) that they read again."""

    ids: list[int]
    reads: tuple[int, int] = (0, 0)


@dataclass
class Probe:
    name: str
    parts: list[Part]
    answer_begin: int | None = None   # first token of the answer to a question
    gradient: bool = False            # with the gradient at what each layer's attention adds

    @property
    def ids(self) -> list[int]:
        return [token for part in self.parts for token in part.ids]


def split_spec(spec: str) -> tuple[str, str]:
    """`repeat:512` -> ("repeat", "512"), `repeat:gradient` -> ("repeat", "gradient")."""
    kind, _, rest = spec.partition(":")
    if kind in ("repeat", "repeat-text") and REREAD_REST.fullmatch(rest):
        return kind, rest
    if kind == "draft" and re.fullmatch(r"[1-9]\d*", rest):
        return kind, rest
    if kind == "file" and rest:
        return kind, rest
    raise UsageError(f'probe "{spec}": expected repeat[:CHUNK][:gradient], '
                     "repeat-text[:CHUNK][:gradient], draft:K or file:QUESTIONS")


def _around_user_text(tokenizer, raw: bool) -> tuple[str, str]:
    """Text that the chat template writes before a user's text, and between it and the answer."""
    if raw or getattr(tokenizer, "chat_template", None) is None:
        return "", "\n"
    stand_in = "stand-in"
    text = tokenizer.apply_chat_template([{"role": "user", "content": stand_in}], tokenize=False,
                                         add_generation_prompt=True)
    before, _, after = text.partition(stand_in)
    return before, after


def _encode(tokenizer, text: str) -> list[int]:
    return tokenizer.encode(text, add_special_tokens=False) if text else []


def _repeat(loaded: LoadedModel, prompt: list[int], chunk: int, raw: bool, text_only: bool) -> list:
    """KVzip's chunks: a request to repeat, the end of the turn, and the chunk itself."""
    before, after = _around_user_text(loaded.tokenizer, raw)
    begin = min(len(_encode(loaded.tokenizer, before)), len(prompt) - 1) if text_only else 0
    suffix = _encode(loaded.tokenizer, after)
    parts = []
    for first in range(begin, len(prompt), chunk):
        last = min(first + chunk, len(prompt))
        request = _encode(loaded.tokenizer, REPEAT_ALL if first == begin else REPEAT_PART)
        if first > begin:
            request += prompt[first - min(REPEAT_OVERLAP, chunk) : first]
        parts.append(Part(request + suffix + prompt[first:last], (first, last)))
    return parts


def _questions(loaded: LoadedModel, prompt: list[int], file: Path, raw: bool, progress) -> list:
    """A probe per line: a question and, after a tab, its answer; else the model's own answer."""
    lines = [line for line in read_text(file).splitlines() if line.strip()]
    if not lines:
        raise DataError(f"{file}: no questions; expected one a line")
    suffix = _encode(loaded.tokenizer, _around_user_text(loaded.tokenizer, raw)[1])
    probes = []
    for number, line in enumerate(lines, 1):
        question, tab, answer = line.partition("\t")
        asked = _encode(loaded.tokenizer, "\n" + question.strip()) + suffix
        if tab and answer.strip():
            answered = _encode(loaded.tokenizer, answer.strip())
        else:
            answered = generate(loaded, prompt + asked, ANSWER_STEPS, functools.partial(progress, "answering"))
        probes.append(Probe(f"question{number}", [Part(asked + answered)], len(asked) if asked and answered else None))
    return probes


def make_probes(loaded: LoadedModel, specs: list[str], prompt: list[int], raw: bool, progress) -> list[Probe]:
    """Makes what `--probe` asks for; names are distinct."""
    probes: list[Probe] = []
    for spec in specs:
        kind, rest = split_spec(spec)
        if kind == "draft":
            ids = generate(loaded, prompt, int(rest), functools.partial(progress, "drafting"))
            probes.append(Probe("draft", [Part(ids)]))
        elif kind == "file":
            probes += _questions(loaded, prompt, Path(rest), raw, progress)
        else:
            chunk = int(rest.partition(":")[0].removesuffix("gradient") or REPEAT_CHUNK)
            parts = _repeat(loaded, prompt, chunk, raw, kind == "repeat-text")
            probes.append(Probe(kind, parts, gradient=rest.endswith("gradient")))
    names = [probe.name for probe in probes]
    for name in names:
        if names.count(name) > 1:
            raise UsageError(f"probe {name}: asked for twice")
    return probes


class ProbeRecorder(Recorder):
    """Runs the model over the prompt and one part of a probe, and writes what the part saw."""

    def __init__(self, model, layers, prompt_len: int, probe: Probe, number: int, checks,
                 writer: TraceWriter, progress):
        self.prompt_len = prompt_len
        self.name = probe.name
        self.first = sum(len(part.ids) for part in probe.parts[:number])
        tokens = np.arange(len(probe.parts[number].ids))
        own = np.intersect1d(checks - self.first, tokens)
        super().__init__(model, layers, prompt_len + tokens, prompt_len + own, writer, progress)
        self.input_norms: dict[int, np.ndarray] = {}

    def hooks(self) -> list:
        return super().hooks() + [
            self.norm_hook(self.modules[layer].attention, layer, self.input_norms)
            for layer in sorted(self.wanted)]

    def _write(self, layer: int, call: dict) -> None:
        if len(self.checks):
            self.refuse_other_attention(layer, call)
        self.writer.probe_rows(layer, self.name, first=self.first,
                               keys=call["keys"][:, self.prompt_len:],
                               values=call["values"][:, self.prompt_len:],
                               residual_norm=self.residual_norms.pop(layer),
                               input_norm=self.input_norms.pop(layer),
                               **{name: call[name] for name in ("queries", "check_output", "gate")})


def gradient_norms(model, layers: list[int], prompt: list[int], part: list[int]):
    """Of KVgrad, {layer: [tokens of the part]}: norms of the gradient of Phi = sum over p of ||h_p||^2, h_p
    being the output of the last block at token p of a part, with respect to what a layer's attention adds
    at each token of the part.

    The prompt is read without a graph; its cache is constant for the part behind it."""
    modules, added, last = find_attention_layers(model), {}, {}
    watch = StreamWatch([0])

    def keep(layer, trail, output):
        if trail.added:
            added[layer] = trail.share
            added[layer].retain_grad()

    def keep_last(module, args, output):
        last["hidden"] = output[0] if isinstance(output, tuple) else output

    frozen = [one for one in model.parameters() if one.requires_grad]
    device = model.device
    with torch.inference_mode(False), torch.no_grad():
        cache = cache_in(model(input_ids=torch.tensor([prompt], device=device), use_cache=True, logits_to_keep=1))
    hooks = [hook for layer in layers for hook in watch.hooks(modules[layer], functools.partial(keep, layer))]
    hooks.append(modules[max(modules)].block.register_forward_hook(keep_last))
    try:
        for one in frozen:
            one.requires_grad_(False)
        with hooked(hooks), torch.inference_mode(False), torch.enable_grad():
            ids = torch.tensor([part], device=device)
            embedded = model.get_input_embeddings()(ids).detach().requires_grad_(True)
            model(inputs_embeds=embedded, use_cache=True, logits_to_keep=1, **with_cache(model, cache))
            last["hidden"].float().square().sum().backward()
    finally:
        for one in frozen:
            one.requires_grad_(True)
    return {layer: as_array(added[layer].grad[0].float().norm(dim=-1)) for layer in layers}


def record_probes(loaded: LoadedModel, layers, prompt: list[int], probes: list[Probe],
                  writer: TraceWriter, progress) -> None:
    """Adds every probe to a trace whose layers are written."""
    for probe in probes:
        sizes = [len(part.ids) for part in probe.parts]
        checks = spread(np.arange(len(probe.ids)), CHECKS)
        writer.probe(
            probe.name,
            positions=np.concatenate([len(prompt) + np.arange(size) for size in sizes]),
            part_begin=np.concatenate([[0], np.cumsum(sizes)[:-1]]),
            reads=[part.reads for part in probe.parts],
            tokens=probe.ids,
            text=[text for part in probe.parts
                  for text in token_texts(loaded.tokenizer, prompt[-CONTEXT:] + part.ids)
                  [len(prompt[-CONTEXT:]):]],
            answer_begin=probe.answer_begin,
            checks=checks)
        for number, part in enumerate(probe.parts):
            recorder = ProbeRecorder(loaded.model, layers, len(prompt), probe, number, checks, writer,
                                     functools.partial(progress, f"probe {probe.name}"))
            recorder.run(prompt + part.ids)
            if not probe.gradient:
                continue
            progress(f"gradients of {probe.name}", number, len(probe.parts))
            for layer, norms in gradient_norms(loaded.model, layers, prompt, part.ids).items():
                writer.probe_rows(layer, probe.name, first=recorder.first, output_gradient=norms)
