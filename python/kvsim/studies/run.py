"""Works a study off: capture, replay, closed loop, text by text; what is finished is not run again."""

import json
from argparse import Namespace
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path

from ..errors import DataError, Error
from ..kvtrace.kept_sets import changed_stages
from ..policy import answers, described
from ..program import options, run
from ..trace import Trace
from ..units import Tell, work_off
from ..whole import write_text
from .folder import Folder, Part
from .sources import Source, passage


def missing(folder: Folder, name: str, policies: list[str]) -> list[str]:
    """The policies that have not been run on a text, as they were typed."""
    canonical = canonical_records(policies)
    have = {one for part in folder.parts(name) if part.finished for one in part.policies()}
    have.update(folder.unserved(name))
    return [typed for typed, record in zip(policies, canonical) if record not in have]


def canonical_records(policies: list[str]) -> list[str]:
    """How results name these records. A function in a file is named as it is typed."""
    return [one if one.startswith("python:") else described(one)["canonical"] for one in policies]


def is_static(policy: str) -> bool:
    """Does it compress once and leave entries as they are, so that its kept sets say it all?"""
    return policy.startswith("python:") or not changed_stages(described(policy)["cells"])


def unserved(trace: Path, policies: list[str], budgets: list[str]) -> dict[str, str]:
    """Of these policies, as they are typed, those that a replay of the trace would refuse, and why.
    Functions in Python show it only at work."""
    asked = [one for one in policies if not one.startswith("python:")]
    if not asked:
        return {}
    return {policy: fault.removeprefix(f"{trace}: ")
            for policy, (_, fault) in answers(trace, asked, budgets).items() if fault}


def by_record(refused: dict[str, str]) -> dict[str, str]:
    return {described(one)["canonical"]: why for one, why in refused.items()}


def run_text(folder: Folder, source: Source, loaded, settings: Namespace, tell: Tell) -> None:
    """Does the rest of one text. Policies that its trace cannot serve are noted, and left out."""
    wanted = missing(folder, source.name, settings.policies)
    trace = folder.traces / f"{source.name}.h5"
    first = None
    if not (trace.is_file() and folder.facts_file(source.name).is_file()):
        first = capture(folder, source, loaded, settings, trace, tell)
    refused = unserved(trace, wanted, settings.budgets)
    if refused:
        folder.leave_out(source.name, by_record(refused))
        wanted = [one for one in wanted if one not in refused]
    if wanted:
        part = next((one for one in folder.parts(source.name) if not one.finished), None)
        if part and set(part.policies()) != set(canonical_records(wanted)):
            part.results.unlink()   # of an interrupted run with other policies
            part = None
        if part is None:
            tell(f"{source.name}: replay", 0.1)
            part = folder.next_part(source.name)
            replay_text(trace, part.results, wanted, settings)
        close_loop(trace, part, loaded, first, settings, lambda share: tell(
            f"{source.name}: closed loop", 0.25 + 0.75 * share))
    if not settings.keep_traces:
        trace.unlink()


def capture(folder: Folder, source: Source, loaded, settings: Namespace, trace: Path, tell: Tell):
    """The trace of a text, and what is known of it; returns the FirstPass."""
    tell(f"{source.name}: capture", 0)
    folder.traces.mkdir(exist_ok=True)
    text = passage(source.path, loaded.tokenizer, settings.prompt_tokens, settings.steps)
    known = folder.facts().get(source.name)
    if known is not None and known["digest"] != text.digest:
        raise DataError(f"{source.name}: another text than the study has under this name")
    first = record_text(text, source.name, loaded, settings, trace, keep_first=True)
    with Trace(trace) as made:
        facts = {"category": source.category, "origin": str(source.path), "digest": text.digest,
                 "model": loaded.name, "prompt_len": made.prompt_len, "total_len": made.total_len,
                 "later_text": list(made.text[made.prompt_len :])}
    write_text(folder.facts_file(source.name), json.dumps(facts))
    return first


def record_text(text, name: str, loaded, settings: Namespace, trace: Path, keep_first: bool = False):
    """The trace of a passage; returns the FirstPass where somebody wants it."""
    from ..kvtrace.capture import CaptureOptions, capture_trace
    from ..kvtrace.record import choose_attention

    choose_attention(loaded.model)
    return capture_trace(loaded, text.conversation, CaptureOptions(
        steps=settings.steps, answer=text.answer, raw=text.raw, dtype=settings.dtype,
        probes=settings.probes, record={"tool": "kvsim study", "text": name}), trace,
        keep_first=keep_first)["first"]


def replay_text(trace: Path, results: Path, policies: list[str], settings: Namespace, **more) -> None:
    """The results file of a trace; `more`: further options of the replay, or others than the settings'."""
    run(["replay", trace, "-o", results, "--save-keep", "-q", *options(**{
        "policy": policies, "budget": ",".join(settings.budgets), "metric": settings.metrics,
        "threads": settings.threads or None} | more)], False)


def close_loop(trace: Path, part: Part, loaded, first, settings: Namespace, tell: Callable[[float], None]) -> None:
    from ..kvtrace import closed_loop_command as command

    words = [str(trace), str(part.results), f"--out={part.loop}", "--quiet", f"--threads={settings.threads}"]
    args = command.parser().parse_args(words)
    args.show = lambda done, all_: tell(done / max(all_, 1))
    command.run(args, words, loaded, first)


def count_left_out(records: list[str], refused: Iterable[dict[str, str]]) -> dict[str, tuple[str, int]]:
    """Of policies that texts could not serve: record -> why, and of how many texts. `refused`: of each
    text or instance, record -> why."""
    found: dict[str, tuple[str, int]] = {}
    for one in refused:
        for record in filter(records.__contains__, one):
            why, texts = found.get(record, (one[record], 0))
            found[record] = why, texts + 1
    return found


def run_all(folder: Folder, found: list[Source], load: Callable[[], object], settings: Namespace,
            tell: Tell) -> dict[str, str]:
    """All texts; those that cannot be run are left out: name -> why, in one line."""
    failed = {}

    def unit(source: Source, tell: Tell) -> None:
        try:
            run_text(folder, source, loaded, settings, tell)
        except (Error, RuntimeError, MemoryError) as error:
            failed[source.name] = (str(error).splitlines() or [type(error).__name__])[0]

    work = [one for one in found if missing(folder, one.name, settings.policies)]
    loaded = load() if work else None
    work_off([[partial(unit, one)] for one in work], tell)
    return failed
