"""Lets the model write the later tokens itself, greedily."""

import torch

from .inputs import Inputs, beside
from .layers import cache_in, few_logits, with_cache
from .model import LoadedModel
from .record import running


def end_tokens(loaded: LoadedModel) -> set[int]:
    """Ids at which the model stops of its own accord."""
    declared = getattr(loaded.model.generation_config, "eos_token_id", None)
    declared = declared if isinstance(declared, (list, tuple)) else [declared]
    return {int(i) for i in [*declared, loaded.tokenizer.eos_token_id] if i is not None}


def generate(loaded: LoadedModel, ids: list[int], steps: int, progress, inputs: Inputs | None = None,
             keeps_cache: bool = True, ignore_end: bool = False) -> list[int]:
    """Returns up to `steps` new token ids; fewer when the model ends its answer, unless `ignore_end`. `inputs`:
    what stands beside `ids`. Without a cache, all tokens run again for each: a model that gives tokens positions
    of its own tells later ones only in its own loop of generation.

    Written out here so that no setting of the model's own generation config (a repetition
    penalty, a temperature) changes what the command line says."""
    ends = end_tokens(loaded)
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
            if ignore_end:
                logits[list(ends)] = float("-inf")
            new.append(int(logits.argmax()))
            progress(len(new), steps)
            if new[-1] in ends:
                break
            tokens = torch.tensor([[new[-1]] if keeps_cache else ids + new], device=loaded.model.device)
    return new
