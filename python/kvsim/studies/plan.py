"""Needs of a study, before it runs: pairs, time, disk. Rates are measured on the machine."""

import tempfile
import time
from pathlib import Path

from ..kvtrace.cache_names import cache_in, with_cache
from ..kvtrace.closed_loop import rows_at_once
from ..plain import counted
from .cost import GB, kept_bytes, memory_bytes, shape_of, trace_bytes, words
from .folder import Folder
from .run import canonical_records, missing, record_text, unserved
from .settings import Settings
from .sources import Source, passage
from .tasks import Sheet

QUESTION_TOKENS = 16   # of a task, about


def plan_text(found: list[Source], chosen: list[Sheet], files: list, loaded, settings: Settings,
              folder: Folder) -> str:
    """How much of the study is left, and what it takes."""
    left = {one.name: len(missing(folder, one.name, settings.policies)) for one in found}
    runs = sum(left.values()) * len(settings.budgets)
    pairs = len(found) * len(settings.policies) * len(settings.budgets)
    texts = sum(count > 0 for count in left.values())
    prompt, later = measured(loaded, settings)
    # The prompt runs twice in a capture with a probe, once more in the closed loop.
    seconds = texts * (3 * prompt + later) + runs * later
    shape = shape_of(loaded)
    sizes = settings.prompt_tokens, settings.steps
    trace = trace_bytes(shape, *sizes, len(settings.probes))
    kept = runs * kept_bytes(shape, *sizes)
    memory = memory_bytes(shape, *sizes, loaded.model.dtype.itemsize, rows_at_once(loaded.model.device))
    lines = [f"{counted(len(found), 'text')}, {counted(len(settings.policies), 'policy', 'policies')}, "
             f"{counted(len(settings.budgets), 'budget')}: {counted(pairs, 'run')} of the model, {runs} "
             "of them left"]
    if chosen:
        records = canonical_records(settings.policies)
        instances, answers, tokens = answers_left(chosen, records, settings)
        # The full cache answers first; then a capture and a closed loop as of a text.
        seconds += instances * 4 * prompt + tokens * later / settings.steps
        lines.append(f"{counted(len(chosen), 'task')}, {counted(settings.instances, 'instance')} "
                     f"each: at least {counted(answers, 'answer')} left")
    for sheet in files:
        rows = len(sheet.benchmark.rows)
        count = rows * len(settings.policies) * len(settings.budgets)
        lines.append(f"{sheet.name}: {counted(rows, 'question')}, {counted(count, 'answer')}; their time "
                     "is not in the next line")
    lines += [f"about {words(seconds)} on {loaded.model.device} (a prompt {prompt:.2f} s, later "
              f"tokens {later:.2f} s per policy and budget, measured now; replay comes on top)",
              f"disk: {trace / 1e6:.0f} MB for a trace" + (
                  f", {texts} of them kept" if settings.keep_traces else ", one at a time")
              + f"; at most {kept / 1e6:.0f} MB of results",
              f"memory: about {memory / GB:.1f} GB, and one for the libraries"]
    lines += left_out(found, loaded, settings, folder)
    return "\n".join(lines)


def left_out(found: list[Source], loaded, settings: Settings, folder: Folder) -> list[str]:
    """Policies that the first text with work left cannot serve, each with the reason: its trace is
    made, asked and removed."""
    refused = {}
    for one in found:
        wanted = missing(folder, one.name, settings.policies)
        if not wanted:
            refused |= folder.unserved(one.name)
            continue
        text = passage(one, loaded.tokenizer, settings.prompt_tokens, settings.steps)
        with tempfile.TemporaryDirectory(prefix="kvsim-plan-") as place:
            trace = Path(place) / f"{one.name}.h5"
            record_text(text, one.name, loaded, settings, trace)
            refused |= unserved(trace, wanted, settings.budgets)
        break
    return [f"{one} will be left out: {why}" for one, why in refused.items()]


def answers_left(chosen: list[Sheet], records: list[str], settings: Settings) -> tuple[int, int, int]:
    """Instances that lack answers, the answers, and the tokens that the model reads and writes for
    them."""
    instances = answers = tokens = 0
    for sheet in chosen:
        known = [have for have in sheet.tried().values() if have is not None]
        fresh = max(0, settings.instances - len(known))
        begun = [sum(one not in have for one in records) for have in known]
        instances += fresh + sum(count > 0 for count in begun)
        lacks = sum(begun) + fresh * len(records)
        answers += lacks * len(settings.budgets)
        # An answer is read as the full cache wrote it, then written; a question comes before it.
        tokens += lacks * len(settings.budgets) * 2 * (sheet.task.tokens + QUESTION_TOKENS // 2)
    return instances, answers, tokens


def measured(loaded, settings: Settings) -> tuple[float, float]:
    """Seconds of one pass over a prompt, and over the later tokens behind it."""
    import torch

    model = loaded.model
    limit = min(settings.prompt_tokens, 2048)   # longer prompts are computed from it
    ids = torch.randint(5, loaded.config.vocab_size, (1, limit + settings.steps),
                        device=model.device)
    with torch.inference_mode():
        model(input_ids=ids[:, :16])
        begin = time.monotonic()
        cache = cache_in(model(input_ids=ids[:, :limit], use_cache=True))
        prompt = time.monotonic() - begin
        begin = time.monotonic()
        model(input_ids=ids[:, limit:], **with_cache(model, cache))
        later = time.monotonic() - begin
    return prompt * settings.prompt_tokens / limit, later
