"""Fills the tables and figures of the pages from the runs: python -m kvsim.plots.study.pages [DIR]

DIR holds the runs that scripts/losses.sh makes, and DIR/figures what it drew of them. Without it
the tables are made from what stands in docs/: losses.csv and the other tables there. Only the
predictors need the runs themselves. Between
`<!-- NAME -->` and `<!-- end -->` of README.md, docs/losses.md, docs/reproduction.md and
docs/prediction.md stand the tables that TABLES names; docs/claims.md, the CSV files and the figures
are written whole.
"""

import argparse
import re
import shutil
from pathlib import Path

from . import agnostic, claims, coverage, instructions, losses, plan, prediction, reread, runs

ROOT = Path(__file__).resolve().parents[4]
FEW = ("oracle-mean", plan.RECENT, "layer-defensivekv:code", "layer-defensivekv",
       "defensivekv:code", "cake", "h2o", "restkv", "adakv", "streaming")
MANY = (*FEW[:5], "defensivekv", *FEW[5:7], "criticalkv", "tova", *FEW[7:])
MERGED = ("keepkv:bias", "snapkv,merge=keepkv-bias", "snapkv,merge=value-fold", "kvmerger", "d2o",
          "snapkv,merge=d2o", "snapkv,merge=convex", "convex", "keepkv:code", "keepkv",
          "h2o:official", "tova:official", "streaming:official", "cam", "cam:expected")
FIGURES = ("losses.png", "losses_layers.png", "prediction_scatter.png", "prediction_measures.png",
           "prediction_layers.png")


def table(header, rows):
    """Lines of a Markdown table."""
    return "\n".join("| " + " | ".join(row) + " |" for row in
                     ([header] + [["---"] * len(header)] + rows))


def relative(study, texts, policies, intervals=True, budgets=plan.BUDGETS[1:]):
    """Loss relative to the base by policy and budget, and the base's own in nats."""
    found = {(policy, budget): values for policy, budget, column, *values in losses.summary(
        study, texts, (*policies, losses.BASE), budgets)
        if column == ("kl" if policy == losses.BASE else "kl_relative")}

    def cell(policy, budget):
        if (policy, budget) not in found:
            return "-"
        mean, low, high, _ = found[policy, budget]
        words = losses.number(mean)
        return f"{words} [{losses.number(low)}, {losses.number(high)}]" if \
            intervals and policy != losses.BASE else words

    rows = [[f"`{policy}`" + {losses.FLOOR: " (hindsight)", losses.BASE: ", nats"}.get(policy, ""),
             *(cell(policy, budget) for budget in budgets)] for policy in (*policies, losses.BASE)]
    return table(["policy", *(f"{budget:g}" for budget in budgets)],
                 [row for row in rows if set(row[1:]) != {"-"}])


def brief(study, paper, texts):
    """The claims of one paper: three measures and the verdict of the loss."""
    rows = [row[1:] for row in claims.brief(study, texts) if row[0] == paper]
    own = {claim.own for claim in claims.CLAIMS if claim.paper == paper}
    name = " / ".join(sorted(claims.OWN[one][0] for one in own))
    return table(["claim", name, "stream error", "loss", "verdict"], rows)


def predicted(folder):
    """Rank correlations of the measures shown with the loss, texts set aside."""
    texts = prediction.read(folder, plan.SET_ASIDE, prediction.POLICIES)
    rows = []
    for name, found in prediction.intervals(texts):
        rows.append([f"**{name}**" if name == prediction.BEST else name,
                     *(f"{m:.2f} [{low:.2f}, {high:.2f}]" for m, low, high in zip(*found))])
    return table(["measure", *(f"{b:g}" for b in plan.BUDGETS)], rows)


TABLES = {
    "losses of short texts": lambda study, _: relative(study, plan.SHORT, FEW),
    "losses of long texts": lambda study, _: relative(study, plan.LONG, MANY),
    **{f"losses of merged and stepwise caches, {name} texts": (
        lambda study, _, texts=texts: relative(study, texts, MERGED))
       for name, texts in (("short", plan.SHORT), ("long", plan.LONG))},
    **{f"claims of {paper}, {name} texts": (
        lambda study, _, paper=paper, texts=texts: brief(study, paper, texts))
       for paper in ("DefensiveKV", "ReST-KV", "KeepKV")
       for name, texts in (("short", plan.SHORT), ("long", plan.LONG))},
    "comparisons": lambda study, _: claims.said(study),
}
FROM_RUNS = {"predictors": predicted}


def of_instructions(make, order):
    return lambda docs: table(*make(instructions.Table(docs / "reproduction/instructions.csv",
                                                       order)))


FROM_DOCS = {
    f"{name}, {order} first": of_instructions(make, order)
    for order in instructions.ORDERS for name, make in {
        "gains of fair eviction and whitelists": instructions.gains,
        "Pareto fronts of debiasing": instructions.fronts,
        **{f"instructions at budget {budget:g}": (
            lambda own, budget=budget: instructions.at_budget(own, budget))
           for budget in instructions.LOOP_BUDGETS}}.items()
} | {
    "compressed before the question, by text": lambda docs: table(*agnostic.by_text(docs)),
    "compressed before the question, mean over texts":
        lambda docs: table(*agnostic.over_texts(docs)),
    "intervals over few texts": lambda _: table(*coverage.table()),
    **{f"second reading, {name}": (
        lambda docs, make=make: table(*make(reread.study_of(docs / "losses/fresh.csv"))))
       for name, make in {
           "few": lambda study: reread.table(study, reread.FEW),
           "all": lambda study: reread.table(study, reread.MANY),
           "worst text": reread.worst, "by text": reread.by_text}.items()},
}


def fill(path, study, folder):
    """Writes the tables of one page anew; a page with an unknown name is refused."""
    def one(match):
        name = match.group(1)
        if name in FROM_DOCS:
            docs = path.parent if path.parent.name == "docs" else path.parent / "docs"
            return f"<!-- table: {name} -->\n{FROM_DOCS[name](docs)}\n<!-- end -->"
        if name in FROM_RUNS:
            if folder is None:
                return match.group(0)
            return f"<!-- table: {name} -->\n{FROM_RUNS[name](folder)}\n<!-- end -->"
        if name not in TABLES:
            raise SystemExit(f"{path}: no table is called {name}; there are "
                             f"{', '.join((*TABLES, *FROM_DOCS, *FROM_RUNS))}")
        return f"<!-- table: {name} -->\n{TABLES[name](study, folder)}\n<!-- end -->"

    text = path.read_text(encoding="utf-8")
    path.write_text(re.sub(r"<!-- table: (.*?) -->\n.*?<!-- end -->", one, text, flags=re.S),
                    encoding="utf-8")
    print(path)


def main():
    parser = argparse.ArgumentParser(prog="pages.py", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", metavar="DIR", type=Path, nargs="?")
    parser.add_argument("--root", type=Path, default=ROOT, help="of the repository")
    options = parser.parse_args()
    docs = options.root / "docs"
    study = runs.Study(options.folder or docs / "losses/losses.csv")
    for path in (options.root / "README.md", *sorted(docs.glob("*.md"))):
        if "<!-- table: " in path.read_text(encoding="utf-8"):
            fill(path, study, options.folder)
    (docs / "claims.md").write_text(claims.page(study), encoding="utf-8")
    if options.folder is None:
        return
    figures = options.folder / "figures"
    for name in FIGURES:
        shutil.copyfile(figures / name, docs / name)
    for name in ("losses.csv", "losses_summary.csv"):
        shutil.copyfile(figures / name, docs / "losses" / name)


if __name__ == "__main__":
    main()
