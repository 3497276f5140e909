"""Compares a capture, a replay and a closed loop of a model with the model itself.

The judge is the model's own eager attention, masked by the kept sets, in one pass over all tokens:
nothing of the capture's listening, of the trace or of the closed loop's caches takes part in it."""

import contextlib
import sys
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch

from ..errors import Error
from ..program import call, exchange, options, readable
from ..program import run as run_program
from .capture import CaptureOptions, capture_trace
from .closed_loop import ClosedLoop
from .kept_sets import ResultsFile
from .layers import find_attention_layers, hooked
from .model import LoadedModel
from .prompt import TokenizedPrompt
from .record import tolerance
from .stream import relative

POLICY, BUDGET = "snapkv", "0.3"
JUDGED_LAYERS = 4   # whose residual error is compared, spread over the model
TEXT = " ".join(Path(__file__).with_suffix(".txt").read_text(encoding="utf-8").split())
MOVES_POSITIONS = ("rehearsal:recent", "expected-attention", "streaming,positions=cache")
# Replay sums in float64 what a float32 model computed: its rounding, over the layers of a model.
TOLERANCE = 2e-3
LOW_PRECISION = 0.1


@dataclass
class Verdict:
    """`parts`: {what was compared: largest relative difference}; `lacks`: {part: why it is
    refused}; `left_out`: {layer: why it has no attention in the trace}."""

    tolerance: float
    refused: str = ""
    left_out: dict[int, str] = field(default_factory=dict)
    parts: dict[str, float] = field(default_factory=dict)
    lacks: dict[str, str] = field(default_factory=dict)

    @property
    def wrong(self) -> dict[str, float]:
        return {part: size for part, size in self.parts.items() if not size < self.tolerance}

    @property
    def word(self) -> str:
        if self.refused:
            return "refused"
        if self.wrong:
            return "wrong"
        return "in part" if self.lacks or self.left_out else "right"

    def why(self) -> str:
        """Says what is missing, or wrong, in one line."""
        if self.refused:
            return self.refused
        said = [f"{part} differs by {size:.2g}" for part, size in self.wrong.items()]
        by_reason: dict[str, list[str]] = {}
        for layer, reason in self.left_out.items():
            by_reason.setdefault(reason, []).append(str(layer))
        said += [f"layers {', '.join(layers)} left out: {reason}" for reason, layers in by_reason.items()]
        return "; ".join(said + [f"{part}: {reason}" for part, reason in self.lacks.items()])


class Judge:
    """The model itself, its later queries masked by kept sets. A context manager."""

    def __init__(self, model, ids: list[int], prompt_len: int, beside: dict | None = None):
        self.model, self.prompt_len, self.beside = model, prompt_len, beside or {}
        self.ids = torch.tensor([ids], device=model.device)
        self.layers = find_attention_layers(model)
        self.masks: dict[int, np.ndarray] = {}

    def __enter__(self) -> "Judge":
        self.own = getattr(self.model.config, "_attn_implementation", None)
        self.patched = {}
        for layer in self.layers.values():
            module = sys.modules[type(layer.attention).__module__]
            if module not in self.patched and hasattr(module, "eager_attention_forward"):
                self.patched[module] = module.eager_attention_forward
                module.eager_attention_forward = self._masked(module.eager_attention_forward)
        self.model.set_attn_implementation("eager")
        return self

    def __exit__(self, *_) -> None:
        for module, own in self.patched.items():
            module.eager_attention_forward = own
        self.model.set_attn_implementation(self.own)

    def _masked(self, eager):
        def attend(module, query, key, value, attention_mask, *args, **kwargs):
            mask = self.masks.get(getattr(module, "layer_idx", None))
            if mask is not None and self.layers[module.layer_idx].attention is module:
                heads, entries = query.shape[1], key.shape[2]
                kept = torch.from_numpy(np.repeat(mask, heads // len(mask), 0)).to(query.device)
                hidden = torch.zeros(1, heads, query.shape[2], entries, dtype=query.dtype, device=query.device)
                hidden[0, :, self.prompt_len:, : self.prompt_len].masked_fill_(
                    ~kept[:, None], torch.finfo(query.dtype).min)
                attention_mask = hidden if attention_mask is None else \
                    (attention_mask + hidden).clamp(min=torch.finfo(query.dtype).min)
            return eager(module, query, key, value, attention_mask, *args, **kwargs)

        return attend

    def logits(self, masks: dict[int, np.ndarray]):
        """[N - n, vocabulary] float64 of the later tokens."""
        self.masks = masks
        with torch.inference_mode():
            out = self.model(input_ids=self.ids, use_cache=False, **self.beside)
        return out.logits[0, self.prompt_len:].double().cpu().numpy()

    def block_change(self, layer: int, mask: np.ndarray) -> np.ndarray:
        """[N - n]: what masking this layer alone changes of its block's output where all but the
        attention and norms of the block adds nothing, over what enters the block, both as norms."""
        found, entering, leaving = self.layers[layer], [], []

        def first(value):
            return value[0] if isinstance(value, tuple) else value

        def keep(module, args, kwargs, output):
            entering.append((args[0] if args else kwargs["hidden_states"])[0].double())
            leaving.append(first(output)[0].double())

        def silence(module, args, output):
            nothing = first(output) * 0
            return (nothing, *output[1:]) if isinstance(output, tuple) else nothing

        hooks = [found.block.register_forward_hook(keep, with_kwargs=True)]
        for child in found.block.children():
            kind = type(child).__name__.lower()
            if "norm" not in kind and "drop" not in kind and found.attention not in child.modules():
                hooks.append(child.register_forward_hook(silence))
        with hooked(hooks):
            self.logits({})
            self.logits({layer: mask})
        changed = (leaving[1] - leaving[0]).norm(dim=-1) / entering[0].norm(dim=-1)
        return changed[self.prompt_len:].cpu().numpy()


@contextlib.contextmanager
def lacking(verdict: Verdict, part: str):
    """A part that is refused in words."""
    try:
        yield
    except Error as error:
        verdict.lacks[part] = readable(str(error))


def check_tokens(tokenizer) -> tuple[list[int], int]:
    """The text of a check and how much of it is the prompt."""
    ids = tokenizer.encode(TEXT)
    return ids, 4 * len(ids) // 5


def check_model(loaded: LoadedModel, ids: list[int], prompt_len: int) -> Verdict:
    """One text of a model, captured, replayed and run again; nothing stays of it."""
    with exchange() as folder:
        return _check(loaded, ids, prompt_len, Path(folder))


def _check(loaded: LoadedModel, ids: list[int], prompt_len: int, folder: Path) -> Verdict:
    verdict = Verdict(tolerance(loaded.model, TOLERANCE, LOW_PRECISION))
    trace, results = folder / "trace.h5", folder / "results.nc"
    prompt = TokenizedPrompt(ids, prompt_len, [], prompt_len)
    try:
        captured = capture_trace(loaded, None, CaptureOptions(dtype="float32"), trace, tokens=(ids, prompt, 0))
    except Error as error:
        verdict.refused = str(error)
        return verdict
    verdict.left_out = captured["left_out"]
    sets = None
    call(trace, "the trace")
    with lacking(verdict, "replay"):
        _replay(trace, results, [POLICY])
        with ResultsFile(results) as file:
            residual = dict(zip(file.layers, file.data["residual_error"].values[0, 0]))
            sets = file.sets(0, 0)
    with lacking(verdict, "moving positions"):
        _replay(trace, results, MOVES_POSITIONS)
    with Judge(loaded.model, ids, prompt_len) as judge:
        expected = [judge.logits(masks) for masks in [{}] + ([sets.masks] if sets else [])]
        measured = sorted(sets.masks) if sets else []
        for layer in measured[::-max(1, len(measured) // JUDGED_LAYERS)][:JUDGED_LAYERS]:
            size = relative(residual[layer], judge.block_change(layer, sets.masks[layer]))
            verdict.parts["residual error"] = max(size, verdict.parts.get("residual error", 0))
    with lacking(verdict, "closed loop"):
        with ClosedLoop(loaded.model, ids, prompt_len) as loop:
            found = loop.logits([None] + ([sets] if sets else []))
        verdict.parts["closed loop"] = max(
            relative(one.double().cpu().numpy(), own) for one, own in zip(found, expected))
    return verdict


def _replay(trace: Path, results: Path, policies) -> None:
    run_program(["replay", trace, "-o", results, "--overwrite", "--save-keep", "-q",
                 *options(budget=BUDGET, threads=1, policy=policies)], progress=False)
