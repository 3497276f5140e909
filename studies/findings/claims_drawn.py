"""Maps of the claims: studies/make.sh claims_drawn [STUDIES]

Reads losses/claims.csv and draws two figures for each paper: its methods against their baselines, and
its parts. A cell is the loss of the first over that of the second.
"""

import argparse
import csv
from pathlib import Path

import matplotlib
import numpy as np

from kvsim.plots import style
from . import output, plan

BASELINE = "against a baseline"
DARKEST = 3   # doublings of the loss
NAMES = {"DefensiveKV": "defensivekv", "ReST-KV": "restkv", "KeepKV": "keepkv"}
HERE = Path(__file__).resolve().parents[1]


def read(studies):
    """Comparisons by the loss, as they stand in the table."""
    with (studies / "losses/claims.csv").open(newline="", encoding="utf-8") as file:
        return [row for row in csv.DictReader(file) if row["measure"] == "kl"]


def cells(rows):
    """{pair: {(tokens, budget): (ratio, mark)}}; a pair is a method and its baseline, or a part."""
    found = {}
    for row in rows:
        pair = row["part"] if row["part"] != BASELINE else (
            f"{row['policy'].split(',sinks')[0]} / {row['without'].split(',sinks')[0]}")
        mark = "" if row["effect"] in ("undecided", "level") else "**" if row["after_holm"] == "yes" else "*"
        found.setdefault(pair, {})[int(row["prompt_tokens"]), float(row["budget"])] = (
            float(row["ratio"]), mark)
    return found


def draw(rows, paper, what):
    """A panel per length of prompt: pairs by budget, blue where the first loses less."""
    found = cells(rows)
    lengths = sorted({tokens for of in found.values() for tokens, _ in of})
    budgets = {tokens: sorted({budget for of in found.values() for at, budget in of if at == tokens})
               for tokens in lengths}
    fig, axes = style.frame(
        f"{paper}: {what}", "KL divergence of the next-token distribution, the first over the second; "
        "geometric mean over texts. Blue: less is lost. *: the interval is without 1 and the effect is 5 % "
        f"at least; **: also after Holm's correction. {plan.MODEL}.", 1, len(lengths),
        0.5 + 0.15 * len(found), (), ("budget (fraction of the prompt kept)", ""),
        width_ratios=[len(budgets[tokens]) for tokens in lengths])
    colours = matplotlib.colormaps["RdBu_r"]
    for ax, tokens in zip(axes.flat, lengths):
        values = np.array([[of.get((tokens, budget), (np.nan, ""))[0] for budget in budgets[tokens]]
                           for of in found.values()])
        shade = 0.5 + np.log2(values) / (2 * DARKEST)
        image = colours(np.clip(np.nan_to_num(shade, nan=0.5), 0.08, 0.92))
        image[np.isnan(values)] = (0.93, 0.93, 0.93, 1)
        ax.imshow(image, aspect="auto", interpolation="nearest")
        for (i, k), value in np.ndenumerate(values):
            if np.isnan(value):
                continue
            mark = list(found.values())[i][tokens, budgets[tokens][k]][1]
            ax.text(k, i, (f"{value:.2f}" if value < 10 else f"{value:.0f}") + mark, ha="center",
                    va="center", fontsize=4.6,
                    color="white" if np.dot(image[i, k, :3], (0.299, 0.587, 0.114)) < 0.5 else "black")
        ax.set_xticks(range(len(budgets[tokens])), [f"{budget:g}" for budget in budgets[tokens]])
        ax.set_yticks(range(len(found)), list(found) if ax is axes.flat[0] else [""] * len(found),
                      fontsize=4.8)
        ax.set_title(f"{tokens // 100 * 100} tokens")
        ax.grid(False)
        ax.tick_params(length=0)
    return fig


def main():
    parser = argparse.ArgumentParser(prog="claims_drawn.py", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("studies", metavar="STUDIES", type=Path, nargs="?", default=HERE)
    studies = parser.parse_args().studies
    rows = read(studies)
    for paper, name in NAMES.items():
        own = [row for row in rows if row["paper"] == paper]
        for ending, what, chosen in (
                ("", "its methods against their baselines", [r for r in own if r["part"] == BASELINE]),
                ("_parts", "its parts, one at a time", [r for r in own if r["part"] != BASELINE])):
            output.save(studies, f"claims_{name}{ending}",
                        lambda rows=chosen, paper=paper, what=what: draw(rows, paper, what), ("png",))


if __name__ == "__main__":
    main()
