"""A policy found by a search on both models: studies/make.sh robust [DIR] -o STUDIES

DIR holds what studies/robust.sh makes: `captured/study`, the search; `finalists`, the losses of its best on other
documents; `judged`, of the chosen one and its rivals, on documents that nobody had run; `long`, of longer prompts. Writes
losses/robust_tried.csv, robust_finalists.csv, robust.csv, robust_long.csv and robust.png in STUDIES; `pages` fills the
tables of studies/robust.md. --captured, --finalists DIR, --judged and --long print what `kvsim study` is given, a word a line.
"""

import json
import sys
from pathlib import Path

import numpy as np
import optuna
import pandas
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend

from . import choose, output, plan, set_aside, two_models

BASE, MODELS, STREAM = two_models.BASE, two_models.MODELS, set_aside.STREAM
SEARCHED_BUDGETS = ("0.1", "0.2", "0.5")
REFERENCES = (BASE, "criticalkv:ada", "kvzip")   # of the search
FINAL = 3   # candidates of least worst cell, and of least mean, that are run on other documents; the first of each twice
READ_TWICE = ",join=power-mean"
ENOUGH = 0.7   # of the best published policy's loss, in the mean
#: What rivals became with as many trials as `rehearsal:stream` had (studies/rivals.md): those that lose least in some cell there.
TRIED = ("h2o,weight=projected-l2,recent=0.2", "criticalkv:ada,window=64,kernel=3",
         "kvzip,aggregate=mean,recent=0.2,sinks=0", "kvgrad,aggregate=mean,recent=0.2,sinks=0")
ROBUST = "rehearsal:all"   # the preset that the choice became, its numbers rounded
OURS = (STREAM, ROBUST, ROBUST + READ_TWICE, plan.REREAD)
DRAWN = ("snapkv", "criticalkv:ada", "kvzip", "kvgrad", STREAM, ROBUST, plan.REREAD, two_models.HINDSIGHT[1])
TRIALS, FINALISTS, JUDGED, LONG = "robust_tried", "robust_finalists", "robust", "robust_long"
TRIALS_HEADER = ["candidate", "policy", "worst", "mean", *(f"{model}, {b}" for model in MODELS for b in SEARCHED_BUDGETS)]


def options(policies, probe, prompt=704):
    """What `kvsim study` is given."""
    return ["--prompt-tokens", str(prompt), "--steps", "128", "--budget", ",".join(two_models.BUDGETS), "--reference", BASE,
            "--probe", probe, *(word for one in policies for word in ("--policy", one))]


def trials(folder):
    """Rows of TRIALS_HEADER: what every candidate that was measured to the end loses over the best of the references on
    a text at a budget, geometric means over texts; the least worst model and budget first."""
    folder = folder / "captured/study"
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    study = optuna.load_study(study_name="search", storage=JournalStorage(JournalFileBackend(str(folder / "study.journal"))))
    model_of = {text["digest"]: Path(text["file"]).parts[-3] for text in study.user_attrs["searched"]}
    lost: dict[str, dict[str, np.ndarray]] = {}
    with open(folder / "units.jsonl") as file:
        for unit in map(json.loads, file):
            if "look" in unit:
                lost.setdefault(unit["record"], {})[unit["look"]] = np.log(unit["measured"]["closed_loop"])
    best = {text: np.min([lost[one][text] for one in REFERENCES], axis=0) for text in model_of}
    found = {}
    for trial in study.get_trials():
        record = trial.user_attrs.get("record")
        if trial.state == optuna.trial.TrialState.COMPLETE and record not in found:
            cells = np.concatenate([np.mean([lost[record][text] - best[text] for text in best if model_of[text] == model], axis=0)
                                    for model in MODELS])
            found[record] = [trial.number, record, *np.exp([cells.max(), cells.mean(), *cells])]
    return sorted(found.values(), key=lambda row: row[2])


def rows_of_trials(folder):
    for number, record, *cells in trials(folder):
        yield [number, record, *(f"{one:.5g}" for one in cells)]


def finalists(folder):
    """The candidates of least worst cell in the search and those of least mean, the first of each with a second reading,
    too."""
    rows = trials(folder)
    orders = [[row[1] for row in sorted(rows, key=lambda row: row[at])] for at in map(TRIALS_HEADER.index, ("worst", "mean"))]
    names = dict.fromkeys(record for order in orders for record in order[:FINAL])
    return [*names, *dict.fromkeys(order[0] + READ_TWICE for order in orders)]


def over_published(losses, ours):
    """{policy: {(model, budget): geometric mean of its loss over that of the published policy which loses least there}}."""
    found = two_models.relative(losses)
    among = [one for one in two_models.rivals(losses) if not one.startswith(plan.FOUND)]
    base = {(model, b): two_models.best(found, model, b, among) for model in MODELS for b in two_models.BUDGETS}
    return {policy: {(model, b): found[model, policy, b][0] / found[model, rival, b][0] for (model, b), rival in base.items()}
            for policy in ours}


def choice(losses, ours):
    """The policy of least worst cell, of those that have ENOUGH in the mean; else that of the least mean."""
    cells = {one: np.array(list(of.values())) for one, of in over_published(losses, ours).items()}
    mean = {one: np.exp(np.log(of).mean()) for one, of in cells.items()}
    enough = [one for one in ours if mean[one] <= ENOUGH]
    return min(enough, key=lambda one: cells[one].max()) if enough else min(ours, key=mean.get)


def with_published(losses, studies):
    """The losses of finalists, and those of published policies on the same documents from the studies that had run them."""
    known = two_models.read(studies, "two_models", set_aside.JUDGED, choose.NAME)
    known = known[known.text.isin(losses.text) & known.policy.isin(set_aside.PUBLISHED) & (known.policy != BASE)]
    return pandas.concat([losses, known], ignore_index=True)


def chosen(losses, studies):
    """The chosen policy that reads the prompt once, and the one that reads it twice."""
    losses = with_published(losses, studies)
    ours = [one for one in losses.policy.unique() if one.startswith(STREAM + ",")]
    return [choice(losses, [one for one in ours if (READ_TWICE in one) == twice]) for twice in (False, True)]


def tried(studies, most=12):
    """Header and rows: the candidates of the search, the first `most` and the ones that it began with."""
    table = pandas.read_csv(studies / f"losses/{TRIALS}.csv")
    shown = table[(table.index < most) | (table.candidate == 0)]
    return (["change", *TRIALS_HEADER[2:]],
            [[f"`{of_stream(one[1])}`", *map(two_models.number, one[2:])] for one in shown.itertuples(index=False, name=None)])


def of_stream(record):
    """What a record changes of `rehearsal:stream`."""
    return record.removeprefix(STREAM).lstrip(",") or STREAM


def finals(studies):
    """Header and rows: finalists over the published policy that loses least, by model and budget."""
    losses = with_published(two_models.read(studies, FINALISTS), studies)
    ours = [one for one in losses.policy.unique() if one.startswith(STREAM)]
    rows = []
    for policy, cells in over_published(losses, ours).items():
        values = np.array(list(cells.values()))
        rows.append([f"`{of_stream(policy)}`", *map(two_models.number, (values.max(), np.exp(np.log(values).mean()), *values))])
    return (["change", "worst", "mean", *(f"{model.split('-')[0]}, {b}" for model in MODELS for b in two_models.BUDGETS)],
            sorted(rows, key=lambda row: float(row[2])))


def judged(studies, model, name=JUDGED):
    return two_models.table(studies, model, name)


def published(studies, with_trials):
    """Header and rows: ours over the best rival of a cell, among presets alone or their chosen trials, too."""
    losses = two_models.read(studies, JUDGED)
    return two_models.published(losses if with_trials else losses[~losses.policy.isin(TRIED)], OURS, ROBUST)


def draw(studies):
    return two_models.draw(studies, JUDGED, "Documents that nobody had run", DRAWN, (ROBUST, STREAM))


def main():
    match sys.argv[1:]:
        case ["--captured"]:
            told = [*options((BASE,), "none"), "--keep-traces"]
        case ["--finalists", folder]:
            told = options((BASE, STREAM, *finalists(Path(folder))), "repeat")
        case ["--judged"]:
            told = options((*set_aside.PUBLISHED, *TRIED, *OURS, two_models.HINDSIGHT[1]), "repeat:gradient")
        case ["--long"]:
            told = options((BASE, STREAM, ROBUST), "none", 2304)
        case _:
            output.write_page(__doc__, JUDGED, {TRIALS: TRIALS_HEADER, **dict.fromkeys((FINALISTS, JUDGED, LONG), two_models.HEADER)},
                              {TRIALS: rows_of_trials, **{
                                  name: lambda folder, part=part: two_models.rows(folder / part) for name, part in
                                  ((FINALISTS, "finalists"), (JUDGED, "judged"), (LONG, "long"))}}, draw)
            return
    print("\n".join(told))


if __name__ == "__main__":
    main()
