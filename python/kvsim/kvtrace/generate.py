"""Lets the model write the later tokens itself: greedily, or sampled with a seed."""

from dataclasses import dataclass

import torch
from transformers import RepetitionPenaltyLogitsProcessor

from .cache_names import cache_in, few_logits, with_cache
from .inputs import Inputs, beside
from .model import LoadedModel
from .record import running


@dataclass
class Sampling:
    """temperature 0 is greedy. repetition_penalty 1 changes nothing."""

    temperature: float = 0.0
    top_p: float = 1.0
    repetition_penalty: float = 1.0
    seed: int = 0
    ignore_end: bool = False


def end_tokens(loaded: LoadedModel) -> set[int]:
    """Ids at which the model stops of its own accord."""
    declared = getattr(loaded.model.generation_config, "eos_token_id", None)
    declared = declared if isinstance(declared, (list, tuple)) else [declared]
    return {int(i) for i in [*declared, loaded.tokenizer.eos_token_id] if i is not None}


def _pick(logits, sampling: Sampling, generator) -> int:
    """The next token from logits [vocabulary], on the host in float32."""
    if sampling.temperature <= 0:
        return int(logits.argmax())
    probabilities = torch.softmax(logits / sampling.temperature, dim=-1)
    ordered, order = probabilities.sort(descending=True, stable=True)
    # The nucleus holds the tokens before whose turn less than top_p has been spent.
    ordered[ordered.cumsum(0) - ordered >= sampling.top_p] = 0
    return int(order[torch.multinomial(ordered, 1, generator=generator)])


def generate(loaded: LoadedModel, ids: list[int], steps: int, sampling: Sampling, progress,
             inputs: Inputs | None = None, keeps_cache: bool = True):
    """Returns up to `steps` new token ids; fewer when the model ends its answer. `inputs`: what stands
    beside `ids`. Without a cache, all tokens run again for each: a model that gives tokens positions
    of its own tells later ones only in its own loop of generation.

    Written out here so that no setting of the model's own generation config (a repetition
    penalty, a temperature) changes what the command line says.
    """
    ends = end_tokens(loaded)
    generator = torch.Generator().manual_seed(sampling.seed)
    new: list[int] = []
    past = None
    tokens = torch.tensor([ids], device=loaded.model.device)
    with torch.inference_mode(), running(loaded.model):
        while len(new) < steps:
            given = beside(inputs, tokens.shape[1]) if past is None else {}
            out = loaded.model(input_ids=tokens, use_cache=keeps_cache,
                               **few_logits(loaded.model, 1),
                               **(with_cache(loaded.model, past) if keeps_cache else {}), **given)
            past = cache_in(out) if keeps_cache else None
            logits = out.logits[0, -1].float().cpu()
            if sampling.repetition_penalty != 1:
                penalise = RepetitionPenaltyLogitsProcessor(float(sampling.repetition_penalty))
                logits = penalise(torch.tensor([ids + new]), logits[None])[0]
            if sampling.ignore_end:
                logits[list(ends)] = float("-inf")
            new.append(_pick(logits, sampling, generator))
            progress(len(new), steps)
            if new[-1] in ends:
                break
            tokens = torch.tensor([[new[-1]] if keeps_cache else ids + new],
                                  device=loaded.model.device)
    return new
