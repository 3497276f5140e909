"""Needs of a study, before it runs: pairs, time, disk. Times are those of a text and of an instance of
a task that are tried on the machine, in part; nothing of them stays."""

import tempfile
import time
from argparse import Namespace
from pathlib import Path

from ..kvtrace.closed_loop import ClosedLoop, rows_at_once
from ..kvtrace.kept_sets import ResultsFile
from ..plain import counted, duration
from ..trace import Trace
from .cost import GB, kept_bytes, memory_bytes, shape_of, trace_bytes
from .folder import Folder, Part
from .run import (canonical_records, close_loop, is_static, missing, record_text, replay_text, unserved)
from .sources import Source, passage
from .tasks import Sheet, run_instance

REPLAYED_LAYERS = 4   # of a trace, about: the others take as long
TRIES = 3             # instances, until the full cache answers one right


def plan_text(found: list[Source], chosen: list, loaded, settings: Namespace, folder: Folder) -> str:
    """How much of the study is left, and what it takes."""
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
