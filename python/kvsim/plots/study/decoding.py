"""Policies that evict while the model reasons: python -m kvsim.plots.study.decoding DIR -o DOCS

DIR holds what scripts/decoding.sh makes: traces of a short question with a long worked answer, and
per text and budget the closed loop, TEXT.BUDGET.loop.nc. Writes losses/decoding.csv and decoding.png
in DOCS, where `pages` finds the losses for the table.
"""

import argparse
import csv
from pathlib import Path

import numpy as np

from ...texts.worked import KINDS, worked
from .. import statistics, style
from . import runs
from .losses import number

SEED, STEPS = 1, 2048
BUDGETS = (512, 256)   # slots that every KV head holds, of the prompt and of what came later
# How each is named: nothing of a later step is seen before it.
POLICIES = {
    "streaming,schedule=decode": "sinks and the newest",
    "random:prompt": "the prompt, and a random set of later entries",
    "h2o,aggregate=sum,recent=0.5,schedule=decode": "summed attention, half of it the newest",
    "tova,schedule=decode": "attention of the newest token",
    "morphkv": "attention of the newest 32 tokens, added up",
    "r-kv": "R-KV",
    "r-kv,redundancy_mix=1": "R-KV without redundancy",
}
PARTS = 8   # stretches of the answer, of as many tokens each
HEADER = ("text", "policy", "budget", "part", "kl")


def stems():
    return [f"{kind}_{SEED}" for kind in KINDS]


def write_texts(folder):
    for kind, stem in zip(KINDS, stems()):
        text = worked(kind, SEED)
        for ending, written in (("prompt", text.question), ("answer", text.answer)):
            Path(folder / f"{stem}.{ending}.txt").write_text(written + "\n", encoding="utf-8")


def rows(folder):
    """A row per text, policy, budget and stretch of the answer: the loss there, nats. `all` is the
    whole answer; `low` and `high` its 95 % interval over blocks of steps."""
    import xarray

    for stem in stems():
        for budget in BUDGETS:
            path = folder / f"{stem}.{budget}.loop.nc"
            if not path.is_file():
                continue
            with xarray.open_dataset(path, engine="h5netcdf") as loop:
                found = loop.kl_divergence.values[:, 0]
                names = [str(name) for name in loop.policy.values]
            drawn = statistics.resampled_steps(found.shape[1])
            for name, steps in zip(names, found):
                low, high = statistics.interval(steps[drawn].mean(axis=1))
                parts = np.array_split(steps, PARTS)
                for part, value in (("all", steps.mean()), ("low", low), ("high", high),
                                    *((k + 1, one.mean()) for k, one in enumerate(parts))):
                    yield [stem, name, budget, part, f"{value:.5g}"]


def read(docs):
    """{(text, policy, budget): {part: loss}}."""
    found = {}
    with (docs / "losses/decoding.csv").open(encoding="utf-8") as file:
        for row in csv.DictReader(file):
            found.setdefault((row["text"], row["policy"], int(row["budget"])), {})[
                row["part"]] = float(row["kl"])
    return found


def table(docs):
    """Header and rows: losses in nats over the whole answer, with intervals, by text and budget."""
    found = read(docs)
    columns = sorted({(text, budget) for text, _, budget in found},
                     key=lambda one: (one[1], stems().index(one[0])))

    def cell(policy, text, budget):
        one = found.get((text, policy, budget))
        return "-" if one is None else (
            f"{number(one['all'])} [{number(one['low'])}, {number(one['high'])}]")

    return (["policy", *(f"{text.split('_')[0]}, {budget}" for text, budget in columns)],
            [[f"`{policy}`", *(cell(policy, *column) for column in columns)]
             for policy in POLICIES])


def draw(docs):
    """A panel per text and budget: the loss along the answer."""
    found = read(docs)
    panels = sorted({(text, budget) for text, _, budget in found},
                    key=lambda one: (one[1], stems().index(one[0])))
    looks = style.policy_looks(list(POLICIES))
    keys = [style.key(one.split(",schedule")[0], {**looks[one], "linewidth": 1.0})
            for one in POLICIES]
    fig, axes = style.frame(
        "What is lost while an answer grows", "KL divergence of the next-token distribution from "
        "the full cache's, mean over eighths of an answer of 2048 tokens. Lower is better.", 1,
        len(panels), 3.0, keys, ("eighth of the answer", "loss, nats (log scale)"), sharey=True)
    for ax, (text, budget) in zip(np.ravel(axes), panels):
        for policy in POLICIES:
            of = found.get((text, policy, budget))
            if of is None:
                continue
            at = [k for k in range(1, PARTS + 1) if of[str(k)] > 1e-4]
            ax.plot(at, [of[str(k)] for k in at], **{**looks[policy], "linewidth": 1.0})
        ax.set(yscale="log", title=f"{text.split('_')[0]}, {budget} slots a head")
        style.log_ticks(ax.yaxis)
    return fig


def main():
    parser = argparse.ArgumentParser(prog="decoding.py", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", metavar="DIR", type=Path)
    parser.add_argument("-o", "--out", required=True, type=Path, metavar="DOCS")
    options = parser.parse_args()
    listed = list(rows(options.folder))
    if not listed:
        parser.error(f"{options.folder}: no TEXT.BUDGET.loop.nc")
    runs.write(options.out / "losses/decoding.csv", [HEADER, *listed])
    style.use()
    style.save(draw(options.out), options.out / "decoding.png")
    print(options.out / "decoding.png")


if __name__ == "__main__":
    main()
