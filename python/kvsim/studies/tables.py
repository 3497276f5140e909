"""The tables that a study ends with: policies by budgets, for the terminal or to paste."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pandas

from .. import ranking
from ..plain import counted
from ..table_text import table_text
from . import benchmarks, table
from .folder import Folder
from .table import interval, is_hindsight, number
from .tasks import Lines, answers

#: As the variable `unranked` of results (docs/metrics.md 6).
UNRANKED = {"": ranking.RANKED, ">": ranking.HOLDS_MORE, "<": ranking.HOLDS_LESS}
PAPER_MARKS = "bold: best at its budget; †: not told apart from it"
TEXT_MARKS = "* best at its budget; ~ not told apart from it"


def tables(folder: Folder, form: str, reference: str | None = None) -> Iterator[str]:
    """All that the study has numbers for."""
    printed = Printed(folder, form)
    losses = folder.losses()
    if not losses.empty:
        chosen = table.reference_of(losses, reference)
        for model, own in losses.groupby("model", sort=False):
            yield printed.losses(str(model), own, chosen)
    for model, own in answers(folder).groupby("model", sort=False):
        yield printed.accuracy(str(model), own)
    for keys, own in benchmarks.outcomes(folder).groupby(["model", "benchmark", "question"], sort=False):
        yield printed.scores(*map(str, keys), own)


@dataclass
class Printed:
    """The tables of a study in one form."""

    folder: Folder
    form: str

    def losses(self, model: str, losses: pandas.DataFrame, reference: str) -> str:
        """The leaderboard: losses relative to the reference's."""
        board = table.leaderboard(losses, reference)
        held = board.set_index(["policy", "budget"]).held.to_dict()
        texts = losses.drop_duplicates("text")
        return self.table(
            board, table.least_first(board), lambda one: number(one.relative) + interval(one),
            marks_of(losses.assign(kl=losses.kl.clip(lower=table.LEAST)), "kl", "text", held, scale="log"),
            f"Loss (KL divergence) of {model} relative to {reference}, geometric mean over texts "
            "[95 % interval]; lower is better",
            ["(95 % interval over texts)",
             "> holds over a twentieth more of the bytes than the budget gives, < less: not ranked there",
             "hindsight (oracle) is not ranked"],
            model=model, texts=list(map(str, texts.text)), n=counted(len(texts), "text"),
            prompt=ends(texts.prompt_tokens), later=ends(texts.later_tokens), seeds=["0"])

    def accuracy(self, model: str, answered: pandas.DataFrame) -> str:
        """How often answers stay right, all tasks together."""
        right = table.accuracy(answered)
        right = right[(right.task == table.ALL) & (right.question == table.ALL)]
        named = table.with_instances(answered)
        return self.table(
            right, table.best_first(right, "accuracy"),
            lambda one: f"{one.accuracy:.2f}" + interval(one, "{:.2f}".format),
            marks_of(named, "right", "instance", scale="share", more_is_better=True),
            f"Right answers of {model}, of those that the full cache gives right, all tasks [95 % interval]",
            ["(95 % interval over instances)"], model=model, texts=sorted(set(answered.task)), seeds=["0"],
            n=counted(named.instance.nunique(), "instance"))

    def scores(self, model: str, name: str, way: str, asked: pandas.DataFrame) -> str:
        """Scores of a benchmark, all tasks of a file together."""
        found = benchmarks.scores(asked)
        found = found[found.task == table.ALL]
        head = next(iter(Lines(self.folder.benchmarks / f"{name}-{way}.jsonl").read()), {})
        return self.table(
            found, table.best_first(found, "score"),
            lambda one: f"{one.score:.3f}" + interval(one, "{:.2f}".format),
            score_marks(found, benchmarks.score_tests(asked)),
            f"Mean score of {model} on {name}, question {way}, all questions of the file "
            f"[95 % interval over prompts]; the full cache has {found.full.max():.3f}",
            ["(paired over prompts, Holm's correction at 5 %)"],
            model=model, texts=sorted(set(asked.task)), seeds=[str(head.get("seed", 0))],
            n=f"{counted(int(found.questions.max()), 'question')} about "
              f"{counted(int(found.prompts.max()), 'prompt')}")

    def table(self, rows: pandas.DataFrame, order: list[str], cell: Callable[[Any], str],
              marked: Mapping[tuple[str, str], str], title: str, notes: list[str], *, model: str,
              **told: Any) -> str:
        """A grid with its marks explained, and with a caption on the numbers (docs/cli.md 2.3)."""
        known = self.folder.models().get(model, {})
        versions = {"kvsim": known.get("kvsim_version", ""), **known.get("libraries", {})}
        budgets = table.budgets_of(rows)
        frame = pandas.DataFrame(table.grid(rows, order, cell), columns=["policy", *budgets])
        frame.attrs["numbers"] = budgets
        return table_text(
            frame, self.form, title=title,
            notes=[f"{TEXT_MARKS if self.form == 'text' else PAPER_MARKS} {notes[0]}", *notes[1:]],
            marks={(order.index(policy), budget): mark for (policy, budget), mark in marked.items()
                   if policy in order and mark},
            provenance={"kept": budgets, "model": model, "revision": known.get("model_revision", ""),
                        "source": known.get("model_source", ""), "dtype": known.get("model_dtype", ""),
                        "versions": ", ".join(f"{one} {own}" for one, own in versions.items() if own),
                        **told})


def marks_of(rows: pandas.DataFrame, column: str, unit: str, held: Mapping[tuple, float] | None = None,
             **how: Any) -> dict[tuple[str, str], str]:
    """Of policy and budget, as the program marks them: by a column of every `unit`, a text or an instance.
    `held`: what a policy holds over what the budget gives."""
    wide = {budget: own.pivot(index="policy", columns=unit, values=column)
            for budget, own in rows.groupby("budget", sort=False)}
    shares = {budget: [held[policy, budget] if held else 1 for policy in own.index] for budget, own in wide.items()}
    ranked = ranking.rank([ranking.contest(
        own.to_numpy(float), units="traces", held=shares[budget] if held else (),
        unranked=[ranking.HINDSIGHT if is_hindsight(policy) else UNRANKED[table.off_budget(share)]
                  for policy, share in zip(own.index, shares[budget])], **how) for budget, own in wide.items()])
    return {(policy, budget): row["mark"] for (budget, own), contest in zip(wide.items(), ranked)
            for policy, row in zip(own.index, contest["rows"])}


def score_marks(scores: pandas.DataFrame, tests: pandas.DataFrame) -> dict[tuple[str, str], str]:
    """The best of each budget, and what the paired tests do not tell apart from it."""
    found = {}
    for budget, own in scores.groupby("budget", sort=False):
        rivals = own[~own.policy.map(is_hindsight)]
        if len(rivals) < 2:
            continue
        top = rivals.score.max()
        best = set(rivals[rivals.score == top].policy)
        pairs = tests[tests.budget == budget]
        apart = {other for a, b in zip(pairs[pairs.told_apart].policy, pairs[pairs.told_apart].other)
                 for one, other in ((a, b), (b, a)) if one in best}
        found |= {(policy, budget): "best" if policy in best else "" if policy in apart else "equal"
                  for policy in rivals.policy}
    return found


def ends(numbers: pandas.Series) -> list[int]:
    return [int(numbers.min()), int(numbers.max())]
