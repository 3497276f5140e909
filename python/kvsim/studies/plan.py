"""Needs of a study, before it runs: pairs, time, disk. Times are those of a text and of an instance of
a task that are tried on the machine, in part; nothing of them stays."""

import tempfile
import time
from argparse import Namespace
from dataclasses import dataclass
from pathlib import Path

from ..kvtrace.kept_sets import ResultsFile
from ..plain import counted, duration
from ..trace import Trace
from .folder import Folder, Part
from .run import (canonical_records, close_loop, is_static, missing, record_text, replay_text, unserved)
from .sources import Source, passage
from .tasks import Sheet, run_instance

ENTRY_BYTES = 2   # of a number in a trace
GB = 1e9
REPLAYED_LAYERS = 4   # of a trace, about: the others take as long
TRIES = 3             # instances, until the full cache answers one right


@dataclass(frozen=True)
class Shape:
    """Sizes of a model that a study's cost follows from. `parameters` without those of embeddings
    that are only looked up."""

    parameters: float
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    vocabulary: int


def shape_of(loaded) -> Shape:
    """Of a model that is held."""
    config = loaded.config
    heads = config.num_attention_heads
    total = sum(one.numel() for one in loaded.model.parameters())
    looked_up = 0 if getattr(config, "tie_word_embeddings", False) else config.vocab_size * config.hidden_size
    return Shape(total - looked_up, config.num_hidden_layers, heads,
                 getattr(config, "num_key_value_heads", heads),
                 getattr(config, "head_dim", None) or config.hidden_size // heads, config.vocab_size)


def trace_bytes(shape: Shape, prompt: int, steps: int, probes: int = 1) -> float:
    """Queries, keys and values of every layer, and the queries of probes as long as the prompt."""
    rows = (prompt + steps) * (shape.heads + 2 * shape.kv_heads) + probes * prompt * shape.heads
    return shape.layers * shape.head_dim * ENTRY_BYTES * rows


def kept_bytes(shape: Shape, prompt: int, steps: int) -> float:
    """Of a results file, a policy and budget: a byte per entry before compression, and numbers of each
    step."""
    return shape.layers * (shape.kv_heads * prompt + 40 * steps)


def memory_bytes(shape: Shape, prompt: int, steps: int, number_bytes: int, rows: int) -> float:
    """Weights, the prompt's cache, and of the largest batch of the closed loop the masks of a layer and
    logits beside those of the full cache. Libraries take about 1 GB more."""
    total, batch = prompt + steps, max(1, rows // steps)
    cache = 2 * shape.layers * shape.kv_heads * shape.head_dim * total * number_bytes
    masks = batch * shape.heads * steps * total * (number_bytes + 1)
    logits = (batch + 3) * steps * shape.vocabulary * 4
    return shape.parameters * number_bytes + cache + masks + logits


def plan_text(found: list[Source], chosen: list, loaded, settings: Namespace, folder: Folder) -> str:
    """How much of the study is left, and what it takes."""
    from ..kvtrace.closed_loop import rows_at_once

    lacks = {one: missing(folder, one.name, settings.policies) for one in found}
    work = [one for one in found if lacks[one]]
    runs, all_ = (len(settings.budgets) * sum(map(len, ones)) for ones in (
        lacks.values(), [settings.policies] * len(found)))
    shape = shape_of(loaded)
    sizes = settings.prompt_tokens, settings.steps
    trace = trace_bytes(shape, *sizes, len(settings.probes))
    memory = memory_bytes(shape, *sizes, loaded.model.dtype.itemsize, rows_at_once(loaded.model.device))
    lines = [f"{counted(len(found), 'text')}, {counted(len(settings.policies), 'policy', 'policies')}, "
             f"{counted(len(settings.budgets), 'budget')}: {counted(all_, 'run')} of the model, {runs} of them left"]
    total, measured, refused = 0.0, [], {}
    for one in found:
        if one not in work:
            refused |= folder.unserved(one.name)
    if work:
        capture, replay, run, unserved_now = of_text(work[0], loaded, settings, lacks[work[0]])
        refused |= unserved_now
        total += len(work) * (capture + replay) + run * (runs - len(work) * len(unserved_now) * len(settings.budgets))
        measured.append(f"{work[0].name}: capture {capture:.1f} s, replay {replay:.1f} s, a "
                        f"policy and budget {run:.2f} s")
    tasks = [one for one in chosen if isinstance(one, Sheet)]
    if tasks:
        records = canonical_records(settings.policies)
        instances, answers = answers_left(tasks, records, settings)
        lines.append(f"{counted(len(tasks), 'task')}, {counted(settings.instances, 'instance')} "
                     f"each: at least {counted(answers, 'answer')} left")
        if instances:
            seconds, name = of_instance(tasks, records, loaded, settings)
            total += instances * seconds
            measured.append(f"{name}: {seconds:.1f} s")
    for sheet in chosen:
        if sheet not in tasks:
            rows = len(sheet.benchmark.rows)
            count = rows * len(settings.policies) * len(settings.budgets)
            lines.append(f"{sheet.name}: {counted(rows, 'question')}, {counted(count, 'answer')}; their time "
                         "is not in the next line")
    tries = f", where others take as long as what was tried now ({'; '.join(measured)})" if measured else ""
    kept = f"{len(work)} of them kept" if settings.keep_traces else "one at a time"
    return "\n".join([
        *lines, f"about {duration(total)} on {loaded.model.device}{tries}",
        f"disk: {trace / 1e6:.0f} MB for a trace, {kept}; at most "
        f"{runs * kept_bytes(shape, *sizes) / 1e6:.0f} MB of results",
        f"memory: about {memory / GB:.1f} GB, and one for the libraries",
        *(f"{one} will be left out: {why}" for one, why in refused.items())])


def of_text(source: Source, loaded, settings: Namespace,
            wanted: list[str]) -> tuple[float, float, float, dict[str, str]]:
    """Captures a text, replays all policies in some of its layers, and runs the model with one budget
    of every policy that changes the cache, which takes longest, and with sets of one that does not.
    Seconds of capture, replay, and a pair of policy and budget; policies that it cannot serve, and why."""
    from ..kvtrace.closed_loop import ClosedLoop

    text = passage(source.path, loaded.tokenizer, settings.prompt_tokens, settings.steps)
    with tempfile.TemporaryDirectory(prefix="kvsim-plan-") as place:
        trace, results = Path(place) / f"{source.name}.h5", Path(place) / "some.nc"
        begin = time.monotonic()
        first = record_text(text, source.name, loaded, settings, trace, keep_first=True)
        capture = time.monotonic() - begin
        refused = unserved(trace, wanted, settings.budgets)
        served = [one for one in wanted if one not in refused]
        static = [one for one in served if is_static(one)]
        changing = [one for one in served if one not in static]
        replay = run = 0.0
        if served:
            with Trace(trace) as made:
                layers = made.layers
            some = layers[:: max(1, len(layers) // REPLAYED_LAYERS)]
            begin = time.monotonic()
            replay_text(trace, results, served, settings, layers=",".join(map(str, some)))
            replay = (time.monotonic() - begin) * len(layers) / len(some)
        if static:
            replay_text(trace, results, static[:1], settings, budget=settings.budgets[0], overwrite=True)
            begin = time.monotonic()
            with ResultsFile(results) as file, \
                    ClosedLoop(loaded.model, first.ids, first.prompt_len, first=first) as loop:
                capture += time.monotonic() - begin
                begin = time.monotonic()
                loop.losses([file.sets(0, 0)] * loop.batch)
                run += len(static) * (time.monotonic() - begin) / loop.batch
        if changing:
            replay_text(trace, results, changing, settings, budget=settings.budgets[0], overwrite=True)
            begin = time.monotonic()
            close_loop(trace, Part(results), loaded, first, settings, lambda share: None)
            run += time.monotonic() - begin
    return capture, replay, run / max(1, len(served)), refused


def of_instance(chosen: list[Sheet], records: list[str], loaded, settings: Namespace) -> tuple[float, str]:
    """Seconds of the first instance left that the full cache answers right, or of the last one tried,
    and its name."""
    sheet, (number, lacks, *_) = next((sheet, left) for sheet in chosen
                                      for left in sheet.left(records, settings.instances))
    policies = [settings.policies[at] for at in lacks]
    with tempfile.TemporaryDirectory(prefix="kvsim-plan-") as place:
        for other in range(number, number + TRIES):
            begin = time.monotonic()
            line = run_instance(Folder(place), sheet, loaded, settings, other, policies)
            seconds = time.monotonic() - begin
            if line["solved"]:
                break
    return seconds, f"{sheet.name} {other}"


def answers_left(chosen: list[Sheet], records: list[str], settings: Namespace) -> tuple[int, int]:
    """Instances that lack answers, and the answers."""
    instances = answers = 0
    for sheet in chosen:
        known = [have for have in sheet.tried().values() if have is not None]
        fresh = max(0, settings.instances - len(known))
        begun = [sum(one not in have for one in records) for have in known]
        instances += fresh + sum(count > 0 for count in begun)
        lacks = sum(begun) + fresh * len(records)
        answers += lacks * len(settings.budgets)
    return instances, answers
