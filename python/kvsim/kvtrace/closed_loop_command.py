"""Runs the model of a trace with the compressed caches of a results file, and writes what it loses.

Replay is open loop. Here the captured model runs again, once per policy and budget, and every query
after the prompt meets the compressed cache; the tokens are those of the trace."""

import argparse
import contextlib
import functools
import json
import shlex
import sys
from pathlib import Path

from ..errors import UsageError
from ..plain import counted
from ..program import run as run_program
from ..program import version
from ..progress import Progress
from ..tool import Parser, add_table, run_tool
from ..whole import check_target
from .capture_command import add_model, add_running, number


def positive(text: str) -> float:
    try:
        if 0 < float(text) < float("inf"):
            return float(text)
    except ValueError:
        pass
    raise argparse.ArgumentTypeError(f"found {text}, expected a number above 0")


def parser() -> Parser:
    p = Parser(prog="kvsim closed-loop", description=__doc__)
    p.set_defaults(show=None)   # how callers from Python are told of progress
    add = p.add_argument_group("what to run").add_argument
    add("trace", type=Path, metavar="TRACE.h5", nargs="?", help="the trace of the results (where they say it is)")
    add("results", type=Path, metavar="RESULTS.nc", help="of that trace, with --save-keep")
    add("--kvsim", metavar="PROGRAM", help="the kvsim program, for policies that change the cache (the one that runs)")
    add("--policy", action="append", metavar="RECORD", help="policy, as the results name it; repeatable (all)")
    add("--budget", action="append", metavar="LIST", help="budgets of the results, by comma; repeatable (all)")
    add("--generate", type=number(int, 1), metavar="K",
        help="also write K tokens greedily and count how many agree with the full cache's")
    add("--loss", type=positive, metavar="X",
        help="also print the least bytes of each policy with a loss of X nats at most")
    add_table(add)
    add_model(add, "as for kvsim capture (the one the trace names)")
    add = p.add_argument_group("output").add_argument
    add("-o", "--out", required=True, type=Path, metavar="LOOP.nc")
    add("--overwrite", action="store_true", help="replace an existing file, start anew")
    add("-q", "--quiet", action="store_true", help="no progress, no summary")
    add = p.add_argument_group("running").add_argument
    add_running(add, None)
    return p


def chosen_pairs(args, results) -> tuple[list[int], list[int]]:
    policies = results.choose(args.policy, results.policies, "policy")
    budgets = results.choose(args.budget, results.budget_labels, "budget")
    live = [results.policies[p] for p in policies if not results.is_static(p)]
    if live and args.generate:
        raise UsageError(f"--generate: only with kept sets that stay as they are, not with "
                         f"{', '.join(live)}; choose others with --policy")
    if live and "equal_bytes" in results.data.attrs:
        raise UsageError(f"{results.path}: budgets are shares of bytes (--equal-bytes), which only "
                         f"kept sets know, not {', '.join(live)}; choose others with --policy")
    if len(live) < len(policies):
        results.check_sets()
    return policies, budgets


def cache_of(results, live, policy: int, budget: int):
    """Kept sets that the model runs with, or a cache that `live` serves."""
    if results.is_static(policy):
        return results.sets(policy, budget)
    return live.cache(results.policies[policy], results.budget_labels[budget])


def run_pairs(loop, results, pairs: list[tuple[int, int]], journal, args) -> int:
    """Runs what the journal lacks, equal sets once; returns how many caches were run."""
    progress = args.show or functools.partial(Progress(quiet=args.quiet, log="kvsim closed-loop").steps, "closed loop")
    reference = loop.generate([None], args.generate)[0] if args.generate else None
    alike: dict[str, list[tuple[int, int]]] = {}     # by the cache's digest: all pairs that have it
    for pair in pairs:
        alike.setdefault(cache_of(results, loop.live, *pair).digest(), []).append(pair)
    missing = []
    for cells in alike.values():
        names = [(results.policies[p], results.budget_labels[b]) for p, b in cells]
        if known := next((journal.pairs[name] for name in names if name in journal.pairs), None):
            journal.add(names, known)
        else:
            missing.append((*cells[0], names))
    missing.sort(key=lambda one: results.budgets[one[1]])   # equally large ones together
    for begin in range(0, len(missing), loop.batch):
        part = missing[begin : begin + loop.batch]
        batch = [cache_of(results, loop.live, policy, budget) for policy, budget, _ in part]
        losses = loop.losses(batch)
        for one, written in zip(losses, loop.generate(batch, args.generate) if args.generate else ()):
            # Tokens that are equal before the first that differs.
            one["generated_agreement"] = int((written == reference).cumprod().sum())
        for (*_, names), found in zip(part, losses):
            journal.add(names, found)
        progress(len(journal.pairs), len(pairs))
    return len(missing)


def run(args: argparse.Namespace, command: list[str], loaded=None, first=None, inputs=None) -> None:
    """`loaded`: the model, when somebody holds it already; `first`: the FirstPass of its capture;
    `inputs`: images and sounds beside the trace's prompt, as its capture was given them."""
    from .closed_loop import ClosedLoop
    from .kept_sets import ResultsFile
    from .live_cache import LiveAttention
    from .loop_results import Journal, write_loop
    from .model import load_model
    from .token_trace import TokenTrace

    with ResultsFile(args.results) as results:
        args.trace = args.trace or results.trace
        check_target(args.out, args.overwrite, [args.trace, args.results])
        trace = TokenTrace(args.trace, results.later)
        policies, budgets = chosen_pairs(args, results)
        trace.check(results, inputs)
        dtype = args.model_dtype or trace.source.get("model_dtype", "float32")
        if loaded is None:
            loaded = load_model(args.model or trace.model_name(), args.gguf, dtype, args.device, args.threads)
        trace.check_model(loaded)
        model = loaded.record()
        pairs = [(p, b) for p in policies for b in budgets]
        identity = {
            "tool": "kvsim closed-loop", "trace_digest": results.trace_digest,
            "results": results.history, "model_source": model["model_source"],
            "model_dtype": model["model_dtype"], "generate": args.generate}
        journal = Journal(args.out, identity, args.overwrite)
        ids = trace.run_tokens()
        with contextlib.ExitStack() as stack:
            live = None   # the program that serves policies which no kept sets describe
            if others := [p for p in policies if not results.is_static(p)]:
                live = stack.enter_context(LiveAttention(trace, results, others, budgets, args.kvsim, args.threads))
            loop = ClosedLoop(loaded.model, ids, trace.prompt_len, live, first, inputs)
            stack.enter_context(loop)
            trace.check_cache(loop)
            ran = run_pairs(loop, results, pairs, journal, args)
        coordinates = {
            "policy": [results.policies[p] for p in policies],
            "budget": results.budgets[budgets],
            "budget_label": [results.budget_labels[b] for b in budgets],
            "step": list(range(trace.prompt_len, len(ids))),
        }
        attributes = {
            "history": shlex.join(["kvsim", "closed-loop", *command]), "kvsim_version": version(),
            "trace": args.trace.name, "trace_path": str(args.trace.resolve()),
            "trace_digest": results.trace_digest, "model": trace.model, **model,
            "libraries": json.dumps(model["libraries"]), "seed": results.seed,
            "prompt_len": trace.prompt_len, "total_len": len(ids),
            "compressed_layers": results.layers, "config": results.config}
        if args.generate:
            attributes["generate"] = args.generate
        if trace.answer_begin() is not None:
            attributes["answer_begin"] = trace.answer_begin()
        if results.later:
            attributes["later"] = results.later
        write_loop(args.out, coordinates, journal.pairs, attributes, results.what_is_held(policies, budgets))
        journal.remove()
    if not args.quiet:
        print(f"{args.out}: {counted(len(pairs), 'pair')} of policy and budget, {counted(ran, 'run')} of the model, "
              f"{counted(len(coordinates['step']), 'step')}", file=sys.stderr)
        sys.stdout.write(run_program(["rank", args.out, f"--table={args.table}"]))
        if args.loss:
            import xarray

            from ..bytes_for_loss import as_text, least_bytes

            with xarray.open_dataset(args.results, engine="h5netcdf") as results, \
                    xarray.open_dataset(args.out, engine="h5netcdf") as losses:
                found = least_bytes(results, losses, args.loss)
                sys.stdout.write(as_text(found, args.loss, args.table, args.out))


def main(argv: list[str] | None = None) -> int:
    argv = sys.argv[1:] if argv is None else argv
    args = parser().parse_args(argv)
    return run_tool("kvsim closed-loop", lambda: run(args, argv))
