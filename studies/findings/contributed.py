"""Studies that were contributed: studies/contributed/MODEL/, of a fixed layout, listed in one table.

    studies/make.sh contributed STUDY STUDIES     copies what belongs there of a finished study
"""

import argparse
import json
import math
import shutil
from pathlib import Path

import pandas

from kvsim.errors import DataError
from kvsim.studies import table as boards
from kvsim.studies.table import is_hindsight, number

#: Files of a folder and the columns that each has at least. Those of tasks stand there together.
TEXTS = {
    "losses.csv": ("model", "text", "category", "prompt_tokens", "later_tokens", "policy", "budget",
                   "bytes", "kl"),
    "leaderboard.csv": ("model", "budget", "policy", "relative", "low", "high", "worst_text", "texts"),
    "categories.csv": ("category", "model", "budget", "policy", "relative", "texts"),
    "texts.csv": ("model", "text", "category", "prompt_tokens", "later_tokens", "origin", "sha256"),
}
TASKS = {
    "accuracy.csv": ("model", "task", "question", "budget", "policy", "accuracy", "instances"),
    "agreement.csv": ("model", "task", "question", "budget", "by", "spearman", "told_apart", "alike"),
    "tried.csv": ("model", "task", "question", "tried", "solved"),
}
SETTINGS = ("model", "budgets", "prompt_tokens", "steps", "probe", "dtype")


def layout(folder: Path) -> dict[str, tuple[str, ...]]:
    """The files that a folder must have."""
    return TEXTS | (TASKS if any((folder / one).exists() for one in TASKS) else {})


def check(folder: Path) -> dict:
    """The settings of a folder that has the layout; an error names what is missing."""
    for name, columns in layout(folder).items():
        if not (folder / name).is_file():
            raise DataError(f"{folder}: {name} is missing: kvsim study writes it beside index.html")
        missing = set(columns).difference(pandas.read_csv(folder / name, nrows=0).columns)
        if missing:
            raise DataError(f"{folder / name}: found no column {', '.join(sorted(missing))}")
    settings = json.loads((folder / "study.json").read_text(encoding="utf-8"))
    missing = [one for one in SETTINGS if one not in settings]
    if missing:
        raise DataError(f"{folder / 'study.json'}: found no {', '.join(missing)}")
    return settings


def contribute(study: Path, studies: Path) -> Path:
    """Copies the files of the layout into studies/contributed/MODEL/."""
    check(study)
    models = pandas.read_csv(study / "losses.csv").model.unique()
    if len(models) > 1:
        raise DataError(f"{study}: found {len(models)} models, expected a study of one")
    target = studies / "contributed" / Path(models[0]).name
    target.mkdir(parents=True, exist_ok=True)
    for name in ("study.json", *layout(study)):
        shutil.copyfile(study / name, target / name)
    return target


def table(studies: Path) -> tuple[list[str], list[list[str]]]:
    """Header and rows of the table of all studies: what loses least at each budget, and the files."""
    rows = []
    for folder in sorted(one for one in (studies / "contributed").iterdir() if one.is_dir()):
        settings = check(folder)
        board = pandas.read_csv(folder / "leaderboard.csv", dtype={"budget": str})
        reference = boards.reference_of(board)
        best = board[~board.policy.map(is_hindsight)]
        best = best.loc[best.groupby("budget", sort=False).relative.idxmin()]
        said = "; ".join(f"`{policy}` at " + ", ".join(
            f"{one.budget} ({number(one.relative)})" for one in own.itertuples())
            for policy, own in best.groupby("policy", sort=False))
        files = ", ".join(f"[{Path(name).stem}](contributed/{folder.name}/{name})"
                          for name in layout(folder))
        rows.append([folder.name, str(board.texts.max()), f"{settings['prompt_tokens']}, "
                     f"{settings['steps']}", f"{said}, of `{reference}`'s loss", files])
    return ["model", "texts", "prompt, later tokens", "loses least", "tables"], rows


def by_category(studies: Path, model: str) -> tuple[list[str], list[list[str]]]:
    """Header and rows: the loss relative to the reference by category of texts, at all budgets."""
    found = pandas.read_csv(studies / "contributed" / model / "categories.csv", dtype={"budget": str})
    budgets = boards.budgets_of(found)
    cells = found.set_index(["policy", "category", "budget"]).relative
    order = found.groupby("policy").relative.apply(lambda own: own.map(math.log).mean())
    texts = found.groupby("category").texts.max()
    return (["policy", *(f"{one} ({count} texts)" for one, count in texts.items())],
            [[f"`{policy}`", *(", ".join(number(cells[policy, category, budget]) for budget in budgets)
                               for category in texts.index)]
             for policy in sorted(order.sort_values().index, key=is_hindsight)])


def main() -> None:
    parser = argparse.ArgumentParser(prog="contributed.py", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("study", metavar="STUDY", type=Path)
    parser.add_argument("studies", metavar="STUDIES", type=Path)
    options = parser.parse_args()
    try:
        print(contribute(options.study, options.studies))
    except (DataError, OSError) as error:
        raise SystemExit(f"contributed.py: {error}") from None


if __name__ == "__main__":
    main()
