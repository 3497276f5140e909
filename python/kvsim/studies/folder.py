"""The folder of a study: its settings, what is finished of each text, and the numbers of all.

    DIR/study.json               settings that every text shares
    DIR/models.json              where each model was found, its revision, type and libraries
    DIR/texts/NAME.json          of a text: category, digest, lengths, its later tokens
    DIR/texts/NAME.K.nc          part K: kept sets and measures of some policies (kvsim replay)
    DIR/texts/NAME.K.loop.nc     what the model loses with them (kvsim closed-loop)
    DIR/tasks/NAME.jsonl         of a task, a line for each instance (tasks.py)
    DIR/benchmarks/NAME.jsonl    of a benchmark, a line for each question (benchmarks.py)
    DIR/traces/NAME.h5           as long as the text is worked on"""

import contextlib
import itertools
import json
import os
import re
import shutil
import tomllib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas
import xarray

from .. import units
from ..errors import DataError
from ..hdf5_file import open_hdf5
from ..program import version
from ..whole import whole_file, write_text

WORST_SHARE = 5   # of 100 steps: the loss's own worst case
#: Column -> what it is, of each table.
TABLES = tomllib.loads(Path(__file__).with_name("columns.toml").read_text(encoding="utf-8"))
COLUMNS, TEXT_COLUMNS = TABLES["losses.csv"], TABLES["texts.csv"]


@dataclass(frozen=True)
class Part:
    """Results of one replay of a text and what the model lost with them."""

    results: Path

    @property
    def loop(self) -> Path:
        return self.results.with_suffix(".loop.nc")

    @property
    def finished(self) -> bool:
        return self.loop.is_file()

    def policies(self) -> list[str]:
        with open_hdf5(self.results) as file:
            return [str(one) for one in file["policy"].asstr()[:]]


class Folder(units.Folder):
    """A study on disk."""

    advice = " and join them with kvsim study merge"

    def __init__(self, path: str | os.PathLike):
        super().__init__(path)
        self.texts, self.tasks, self.benchmarks, self.traces = (
            self.path / name for name in ("texts", "tasks", "benchmarks", "traces"))

    @contextlib.contextmanager
    def at_work(self, shard: units.Shard | None = None) -> Iterator[None]:
        """What a run of the whole that was killed left half-written is removed, too."""
        with super().at_work(shard):
            self.make(self.texts)
            if not shard:
                for left in [*self.texts.glob(".*.partial"), *self.traces.glob(".*.partial"),
                             *self.path.glob(".lock-*")]:
                    left.unlink(missing_ok=True)
            yield

    def settle(self, settings: dict) -> None:
        """Writes the settings, or compares them with those of the study that is here."""
        target = self.path / "study.json"
        if target.is_file():
            units.check_same(target, self.settings(), settings)
            return
        self.make(self.texts)
        write_text(target, json.dumps(settings, indent=1) + "\n")

    def settings(self) -> dict:
        target = self.path / "study.json"
        if not target.is_file():
            raise DataError(f"{self.path}: no study.json: not the folder of a study")
        return _document(target)

    def parts(self, name: str) -> list[Part]:
        """Of a text, those that have results, in the order of their numbers."""
        pattern = re.compile(re.escape(name) + r"\.(\d+)\.nc")
        found = [(int(match[1]), path) for path in self.texts.glob("*.nc") if (match := pattern.fullmatch(path.name))]
        return [Part(path) for _, path in sorted(found)]

    def next_part(self, name: str) -> Part:
        number = 1 + max([int(one.results.name.split(".")[-2]) for one in self.parts(name)], default=0)
        return Part(self.texts / f"{name}.{number}.nc")

    def facts_file(self, name: str) -> Path:
        """Of a text; written when its trace is there."""
        return self.texts / f"{name}.json"

    def facts(self) -> dict[str, dict]:
        """Knowledge of every text that has been begun, by name."""
        return {path.stem: _document(path) for path in sorted(self.texts.glob("*.json"))}

    def unserved(self, name: str) -> dict[str, str]:
        """Records that the trace of a text cannot serve, and why."""
        return _document(self.facts_file(name)).get("unserved", {})

    def leave_out(self, name: str, refused: dict[str, str]) -> None:
        """Notes further records that the trace of a text cannot serve."""
        facts = _document(self.facts_file(name))
        facts["unserved"] = facts.get("unserved", {}) | refused
        write_text(self.facts_file(name), json.dumps(facts))

    def note_model(self, loaded) -> None:
        """Notes where the model was found and what it ran with, for captions."""
        told = self.models() | {loaded.name: loaded.record() | {"kvsim_version": version()}}
        write_text(self.path / "models.json", json.dumps(told, indent=1) + "\n")

    def models(self) -> dict[str, dict]:
        """Knowledge of the models, by name."""
        return _document(self.path / "models.json")

    def finished(self) -> Iterator[tuple[Part, str, dict]]:
        """Parts with their texts and what is known of them."""
        for name, facts in self.facts().items():
            yield from ((part, name, facts) for part in self.parts(name) if part.finished)

    def losses(self) -> pandas.DataFrame:
        """A row for every text, policy and budget that has been run (COLUMNS)."""
        rows = [_rows(*one) for one in self.finished()]
        table = pandas.concat(rows, ignore_index=True) if rows else pandas.DataFrame(columns=list(COLUMNS))
        return table[list(COLUMNS)].drop_duplicates(["model", "text", "policy", "budget"], keep="last")

    def listed(self) -> pandas.DataFrame:
        """A row for every text that has been begun (TEXT_COLUMNS)."""
        return pandas.DataFrame([
            [one["model"], name, one["category"], one["prompt_len"], one["total_len"] - one["prompt_len"],
             one.get("origin", one.get("file", "")), one["digest"]]
            for name, one in self.facts().items()], columns=list(TEXT_COLUMNS))

    def worst_steps(self, count: int) -> Iterator[dict]:
        """Of every text and policy the `count` steps of largest loss at the smallest budget."""
        for part, name, facts in self.finished():
            later = facts["later_text"]
            with xarray.open_dataset(part.loop, engine="h5netcdf", decode_times=False) as loop:
                b = int(loop.budget.values.argmin())
                for policy, kl in zip(loop.policy.values, loop.kl_divergence.values[:, b]):
                    for t in kl.argsort()[::-1][:count]:
                        yield {"model": facts["model"], "text": name, "policy": str(policy),
                               "budget": str(loop.budget_label.values[b]), "kl": float(kl[t]),
                               "before": "".join(later[max(0, t - 12) : t]), "token": later[t],
                               "next": later[t + 1] if t + 1 < len(later) else ""}


def _document(path: Path) -> dict:
    """Content of a JSON file; nothing where it is not there."""
    try:
        return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    except ValueError as error:
        raise DataError(f"{path}: not JSON: {error}") from None


def shares_held(replay: xarray.Dataset, prompt_tokens: int, later_tokens: int) -> tuple:
    """`bytes` and `peak` of COLUMNS from a results file, [policy, budget] each."""
    share = 1 / replay.compression.values
    grows = replay.bytes_peak.values / replay.bytes_flattened.values
    return share, share * grows * prompt_tokens / (prompt_tokens + later_tokens)


def _rows(part: Part, name: str, facts: dict) -> pandas.DataFrame:
    n, later = facts["prompt_len"], facts["total_len"] - facts["prompt_len"]
    with xarray.open_dataset(part.loop, engine="h5netcdf", decode_times=False) as loop, \
            xarray.open_dataset(part.results, engine="h5netcdf", decode_times=False) as results:
        replay = results.sel(policy=loop.policy.values)
        kl = loop.kl_divergence
        worst = np.sort(kl.values, axis=-1)[..., -max(1, -(-kl.shape[-1] * WORST_SHARE // 100)):].mean(-1)
        share, peak = shares_held(replay, n, later)
        columns = {
            "bytes": share, "peak": peak, "kl": kl.values.mean(-1),
            "kl_answer": loop.get("kl_divergence_answer", loop.kl_divergence_mean).values, "kl_worst": worst,
            "nll": loop.nll_difference_mean.values, "top1": loop.top1_agreement_mean.values,
            "stream_error": replay.stream_error_rms.values if "stream_error_rms" in replay else np.nan}
        policies, labels = (list(map(str, loop[one].values)) for one in ("policy", "budget_label"))
    cells = itertools.product(policies, labels)
    return pandas.DataFrame(cells, columns=["policy", "budget"]).assign(
        model=facts["model"], text=name, category=facts["category"], prompt_tokens=n, later_tokens=later,
        **{one: np.broadcast_to(values, share.shape).reshape(-1) for one, values in columns.items()})


def merge(folders: Iterable[str | os.PathLike], target: Folder) -> None:
    """One study of several: of other texts, other policies or other models, the same budgets.

    Files are linked where the disk can, else copied."""
    studies = [Folder(one) for one in folders]
    first, *others = settings = [one.settings() for one in studies]
    for one, other in zip(studies[1:], others):
        for name in ("budgets", "steps", "prompt_tokens"):
            if other.get(name) != first.get(name):
                raise DataError(f"{one.path}: {name} {other.get(name)}: found, expected "
                                f"{first.get(name)} as in {studies[0].path}")
    models = {str(one.get("model")) for one in settings}
    joined = first | {"model": ", ".join(sorted(models))}
    target.settle(joined)
    known_models = {name: told for one in [*studies, target] for name, told in one.models().items()}
    write_text(target.path / "models.json", json.dumps(known_models, indent=1) + "\n")
    for one, own in zip(studies, settings):
        for name, facts in one.facts().items():
            named = name if len(models) == 1 else f"{_plain(own['model'])}--{name}"
            known = target.facts_file(named)
            if known.is_file() and _document(known)["digest"] != facts["digest"]:
                raise DataError(f"{one.path}: text {name}: another text has this name in {target.path}")
            have = {policy for part in target.parts(named) for policy in part.policies()}
            for part in one.parts(name):
                if part.finished and not have.issuperset(part.policies()):
                    free = target.next_part(named)
                    _link(part.loop, free.loop)
                    _link(part.results, free.results)
            write_text(known, json.dumps(facts))
        for sheet in sorted([*one.tasks.glob("*.jsonl"), *one.benchmarks.glob("*.jsonl")]):
            joined_sheet = units.Lines(target.path / sheet.parent.name / sheet.name)
            known, own = joined_sheet.read(), units.Lines(sheet).read()
            if sheet.parent.name == "benchmarks" and known and known[:1] != own[:1]:
                raise DataError(f"{sheet}: another file, scorer or sample than in {joined_sheet.path}")
            seen = set(map(json.dumps, known))
            joined_sheet.add(*(line for line in own if json.dumps(line) not in seen))


def _plain(model: str) -> str:
    return re.sub(r"[^\w.-]+", "-", Path(str(model)).name)


def _link(source: Path, target: Path) -> None:
    try:
        os.link(source, target)
    except OSError:
        with whole_file(target) as temporary:
            shutil.copyfile(source, temporary)
