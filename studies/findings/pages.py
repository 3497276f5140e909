"""Fills the tables and figures of the pages from the runs: studies/make.sh pages [DIR]

DIR holds the runs that studies/losses.sh makes, and DIR/figures what it drew of them. Without it
the tables are made from the CSV files in studies/. Only the predictors need the runs themselves. Between
`<!-- table: NAME -->` and `<!-- end -->` of the pages below studies/ stand the tables that TABLES,
FROM_TABLES and FROM_RUNS name; the CSV files and the figures are written whole.
"""

import argparse
import re
import shutil
from pathlib import Path

from . import (agnostic, choose, claims, contributed, coverage, decoding, details, drawn, instructions, long_tables,
               losses, order, plan, prediction, quantizing, readings, replays, reread, rivals, robust, runs, second_question, set_aside, shapes, tasks,
               two_models, why)

ROOT = Path(__file__).resolve().parents[2]
FEW = (plan.FLOOR, "oracle-mean", plan.RECENT, "layer-defensivekv:code", "layer-defensivekv",
       "defensivekv:code", "cake", "h2o", "restkv", "adakv", "streaming")
FIGURES = ("losses.png", "losses_layers.png", "prediction_measures.png", "prediction_layers.png")


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
            intervals and policy != losses.BASE and low == low else words   # one text has no interval

    def name(policy):
        ending = {losses.BASE: ", nats"} | dict.fromkeys(plan.FLOOR_LEAST, " (hindsight of one rule)")
        return f"**{policy}**" if policy == plan.FLOOR else f"`{policy}`{ending.get(policy, '')}"

    rows = [[name(policy), *(cell(policy, budget) for budget in budgets)]
            for policy in (*policies, losses.BASE)]
    return table(["policy", *(f"{budget:g}" for budget in budgets)],
                 [row for row in rows if set(row[1:]) != {"-"}])


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
    **{f"{paper} against its baselines, counted": (
        lambda study, _, paper=paper: claims.tally(study, paper)) for paper in claims.PAPERS},
    "policies below the floor, short texts": lambda study, _: losses.below_floor(study, plan.SHORT),
    "policies below the floor, long texts": lambda study, _: losses.below_floor(study, plan.LONG),
    "rules of hindsight, long texts": lambda study, _: table(*losses.rules(study, plan.LONG)),
    "comparisons": lambda study, _: claims.said(study),
}
FROM_RUNS = {"predictors": predicted}
# CSV files beside the pages: what long_tables draws.
LONG = {
    "losses/losses_relative.csv": lambda study, _: long_tables.relative(study),
    "reproduction/fragility_lengths.csv": lambda _, studies: long_tables.fragility(studies),
    "reproduction/instructions_summary.csv": lambda _, studies: long_tables.summary(every_length(studies)),
}


def with_floor(studies, *tables):
    """Runs of tables of losses, and the rules of hindsight on the same texts."""
    return runs.Study(*(studies / f"losses/{name}.csv" for name in (*tables, "floor")))


def instruction_tables(studies, order):
    return {length: instructions.Table(instructions.file_of(studies / "reproduction", length), order)
            for length in instructions.LENGTHS}


def every_length(studies):
    """{length: {order: Table}} of the instructions."""
    return {length: {order: instruction_tables(studies, order)[length] for order in instructions.ORDERS}
            for length in instructions.LENGTHS}


def of_instructions(make, order):
    return lambda studies: table(*make(instruction_tables(studies, order)["500"]))


FROM_TABLES = {
    "fair eviction and whitelists, counted": lambda studies: table(*instructions.counted(every_length(studies)))
} | {
    f"{name}, {order} first": of_instructions(make, order)
    for order in instructions.ORDERS for name, make in {
        "gains of fair eviction and whitelists": instructions.gains,
        "Pareto fronts of debiasing": instructions.fronts,
        **{f"instructions at budget {budget:g}": (
            lambda own, budget=budget: instructions.at_budget(own, budget, instructions.BASES[:1]))
           for budget in instructions.LOOP_BUDGETS}}.items()
} | {
    "keep rates of instructions": lambda studies: table(*instructions.keep_rates(every_length(studies))),
    "compressed before the question, by text": lambda studies: table(*agnostic.by_text(studies)),
    "compressed before the question, mean over texts":
        lambda studies: table(*agnostic.over_texts(studies)),
    "compressed before the question, against baselines":
        lambda studies: table(*agnostic.against(studies)),
    "intervals over few texts": lambda _: table(*coverage.table()),
    "policies below the floor, unseen texts":
        lambda studies: losses.below_floor(with_floor(studies, "unseen"), plan.UNSEEN_ALONE),
    "policies below the floor, texts set aside": lambda studies: losses.below_floor(
        with_floor(studies, "fresh"), plan.FRESH, budgets=reread.BUDGETS),
    "rules of hindsight": lambda studies: table(*losses.rules(
        with_floor(studies, "losses", "unseen", "fresh"), plan.SHORT + plan.UNSEEN_ALONE + plan.FRESH)),
    **{f"aggregation, {form}": lambda studies, form=form: table(*replays.aggregation(
        studies, replays.FORMS[form])) for form in ("heads compete", "equal budgets")},
    **{name: lambda studies, make=make: table(*make(studies / "reproduction")) for name, make in {
        "order of rules": drawn.order_of_rules,
        "estimates of risk": drawn.risk, "dynamics of attention": drawn.dynamics,
        "needles kept": drawn.needles}.items()},
    **{name: lambda studies, make=make: table(*make(studies)) for name, make in {
        "methods by retained importance": replays.methods, "windows": replays.windows,
        "smoothing, crossed": replays.smoothing, "what merging does": replays.merges,
        "the same selection, evicted or merged": replays.selection,
        "fewer entries or fewer bits, DefensiveKV": details.int4,
        "fewer entries or fewer bits, ReST-KV": details.kivi,
        "merging again and again": details.periodic, "merging first": details.merge_first}.items()},
    **{f"second reading, {name}": (
        lambda studies, make=make: table(*make(reread.study_of(studies / "losses/fresh.csv"))))
       for name, make in {
           "few": lambda study: reread.table(study, reread.FEW),
           "all": lambda study: reread.table(study, reread.MANY),
           "worst text": reread.worst, "against KVgrad": reread.against_gradient,
           "by text": reread.by_text}.items()},
    "two readings": lambda studies: table(*readings.table(studies)),
    "stream error among the best": lambda studies: table(*prediction.among_best(studies)),
    "studies": lambda studies: table(*contributed.table(studies)),
    "SmolLM2-135M-Instruct by category":
        lambda studies: table(*contributed.by_category(studies, "SmolLM2-135M-Instruct")),
    "decoding, losses": lambda studies: table(*decoding.table(studies)),
    "second question, losses": lambda studies: table(*second_question.table(studies)),
    "second question, ratios": lambda studies: table(*second_question.intervals(studies)),
    **{f"losses with {shape}": (lambda studies, shape=shape: table(*shapes.table(studies, shape)))
       for shape in shapes.SHAPES},
    **{f"losses on {model}": (lambda studies, model=model: table(*two_models.table(studies, model)))
       for model in two_models.MODELS},
    "against the best published on two models": lambda studies: table(*two_models.published(two_models.read(studies))),
    "policies on both models": lambda studies: table(*two_models.both(studies)),
    "choices on two models": lambda studies: table(*two_models.choices(studies)),
    "candidates on two models": lambda studies: table(*set_aside.candidates(studies)),
    **{f"losses set aside on {model}": (lambda studies, model=model: table(*set_aside.judged(studies, model)))
       for model in set_aside.MODELS},
    "against the best published, set aside": lambda studies: table(*set_aside.published(studies)),
    "against the best published, all set aside": lambda studies: table(*set_aside.published(studies, choose.NAME)),
    **{f"choices by the trace, {name} on {model}": (
        lambda studies, model=model, judged=judged: table(*choose.table(studies, model, judged)))
       for model in choose.MODELS for name, judged in (("judged", True), ("opened", False))},
    **{f"choices by the trace, {name}": (lambda studies, make=make: table(*make(studies))) for name, make in {
        "against the best published": choose.against, "picks": choose.picked, "order": choose.agreement}.items()},
    **{f"losses set aside with trials on {model}": (lambda studies, model=model: table(*rivals.judged(studies, model)))
       for model in rivals.MODELS},
    **{f"rivals, {name}": (lambda studies, make=make: table(*make(studies))) for name, make in {
        "chosen": rivals.chosen, "against ours": rivals.against, "parts": rivals.parts}.items()},
    "robust, tried": lambda studies: table(*robust.tried(studies)),
    "robust, finalists": lambda studies: table(*robust.finals(studies)),
    **{f"robust, against {name}": (lambda studies, tuned=tuned: table(*robust.published(studies, tuned)))
       for name, tuned in (("presets", False), ("trials", True))},
    **{f"robust, {part} on {model}": (lambda studies, name=name, model=model: table(*robust.judged(studies, model, name)))
       for model in robust.MODELS for part, name in (("judged", robust.JUDGED), ("long", robust.LONG))},
    **{f"experiments at {budget}": (lambda studies, budget=budget: table(*why.table(studies, budget)))
       for budget in why.BUDGETS},
    "against the best published, generated": lambda studies: table(*order.published(studies)),
    **{f"order, {name}": (lambda studies, name=name: table(*order.table(studies, name, 15 if name in ("presets", "long") else None)))
       for name in ("generated", "horizon", "presets", "late", "longest", "long")},
    **{f"order, {name}": (lambda studies, make=make: table(*make(studies))) for name, make in {
        "claims counted": order.counted, "claims' parts": order.parts, "in shapes": order.in_shapes, "ablated": order.ablated,
        "chunks": order.chunked, "prediction": order.predicted}.items()},
    "orders of two models": lambda studies: table(*two_models.orders(studies)),
    "fewer entries, fewer bits or both": lambda studies: table(*quantizing.winners(studies)),
    "the full prompt in few bits": lambda studies: table(*quantizing.by_form(studies)),
    "what a shape costs": lambda studies: table(*shapes.cost(studies)),
    **{f"tasks, {name}": (lambda studies, make=make: table(*make(studies))) for name, make in {
        "accuracy": tasks.accuracy, "by task": tasks.by_task, "by question": tasks.by_question,
        "order": tasks.orders, "tried": tasks.tried}.items()},
    **{f"tasks on {tasks.SECOND}, {name}": (lambda studies, make=make: table(*make(studies, tasks.SECOND))) for name, make in {
        "accuracy": tasks.accuracy, "by task": tasks.by_task, "order": tasks.orders, "tried": tasks.tried}.items()},
}


def filled(text, study, studies, folder=None):
    """A page with its tables written anew; a page with an unknown name is refused."""
    def one(match):
        name = match.group(1)
        if name in FROM_RUNS:
            if folder is None:
                return match.group(0)
            made = FROM_RUNS[name](folder)
        elif name in FROM_TABLES:
            made = FROM_TABLES[name](studies)
        elif name in TABLES:
            made = TABLES[name](study, studies)
        else:
            raise SystemExit(f"no table is called {name}; there are "
                             f"{', '.join((*TABLES, *FROM_TABLES, *FROM_RUNS))}")
        return f"<!-- table: {name} -->\n{made}\n<!-- end -->"

    return re.sub(r"<!-- table: (.*?) -->\n.*?<!-- end -->", one, text, flags=re.S)


def with_tables(root):
    """The pages that have tables."""
    return [path for path in sorted((root / "studies").rglob("*.md"))
            if "<!-- table: " in path.read_text(encoding="utf-8")]


def main():
    parser = argparse.ArgumentParser(prog="pages.py", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", metavar="DIR", type=Path, nargs="?")
    parser.add_argument("--root", type=Path, default=ROOT, help="of the repository")
    options = parser.parse_args()
    studies = options.root / "studies"
    study = runs.of_claims(*filter(None, [options.folder]), *runs.tables(studies))
    for path in with_tables(options.root):
        text = filled(path.read_text(encoding="utf-8"), study, studies, options.folder)
        path.write_text(text, encoding="utf-8")
        print(path)
    runs.write(studies / "losses/claims.csv", claims.every(study))
    for name, make in LONG.items():
        runs.write(studies / name, make(study, studies))
    specification = (options.root / "docs/presets.md").read_text(encoding="utf-8")
    runs.write(studies / "losses/claims_bytes.csv", claims.same_bytes(study, specification))
    if options.folder is None:
        return
    figures = options.folder / "figures"
    for name in FIGURES:
        shutil.copyfile(figures / name, studies / name)
    for name in ("losses.csv", "losses_summary.csv"):
        shutil.copyfile(figures / name, studies / "losses" / name)


if __name__ == "__main__":
    main()
