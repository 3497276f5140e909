"""Maps of the claims: studies/make.sh claims_drawn [STUDIES]

Reads losses/claims.csv and draws two figures for each paper: its methods against their baselines, and
its parts. A cell is the loss of the first over that of the second.
"""

import argparse
import csv
from pathlib import Path

from . import maps, output, plan

BASELINE = "against a baseline"
NAMES = {"DefensiveKV": "defensivekv", "ReST-KV": "restkv", "KeepKV": "keepkv"}
HERE = Path(__file__).resolve().parents[1]


def read(studies):
    """Comparisons by the loss, as they stand in the table."""
    with (studies / "losses/claims.csv").open(newline="", encoding="utf-8") as file:
        return [row for row in csv.DictReader(file) if row["measure"] == "kl"]


def cells(rows):
    """{pair: {(tokens, budget): cell}}; a pair is a method and its baseline, or a part."""
    found = {}
    for row in rows:
        pair = row["part"] if row["part"] != BASELINE else (
            f"{row['policy'].split(',sinks')[0]} / {row['without'].split(',sinks')[0]}")
        mark = "" if row["effect"] in ("undecided", "level") else "**" if row["after_holm"] == "yes" else "*"
        found.setdefault(pair, {})[int(row["prompt_tokens"]), float(row["budget"])] = maps.ratio(
            float(row["ratio"]), mark)
    return found


def draw(rows, paper, what):
    """A panel per length of prompt: pairs by budget, blue where the first loses less."""
    return maps.draw(
        f"{paper}: {what}", "KL divergence of the next-token distribution, the first over the second; "
        "geometric mean over texts. Blue: less is lost. *: the interval is without 1 and the effect is 5 % "
        f"at least; **: also after Holm's correction. {plan.MODEL}.", cells(rows))


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
