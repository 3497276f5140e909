"""A study: candidates are asked for in groups, measured text by text, and told."""

import hashlib
import json
import os
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import optuna
from optuna.pruners import BasePruner
from optuna.samplers import BaseSampler
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend
from optuna.trial import FrozenTrial, Trial, TrialState

from ..errors import UsageError
from ..units import Folder, Lines, Lock, Tell, Unit, Worker, check_same, work_off
from .config import Objective, SearchConfig, Text, check_apart, text_of
from .evaluate import Measured, Replayer, best_of, objective_value
from .space import Space

NAME = "search"   # of the study in Optuna's storage


class Journal(JournalFileBackend):
    """Optuna's storage as a file of whole lines."""

    def __init__(self, path: Path):
        super().__init__(str(path))
        self.lines = Lines(path)

    def append_logs(self, logs: list[dict[str, Any]]) -> None:
        self.lines.add(*logs)


class Seeded(BaseSampler):
    """Optuna's samplers with a seed for each draw: of the study, the candidate's number and what is
    drawn. A candidate whose asking was cut off, and a study that was stopped, go on alike."""

    def __init__(self, config: SearchConfig):
        self.config = config

    def drawing(self, number: int, what: str) -> BaseSampler:
        told = f"{self.config.seed}/{number}/{what}".encode()
        seed = int.from_bytes(hashlib.blake2b(told, digest_size=4).digest(), "little")
        own = self.config.sampler
        if own.kind == "random":
            return optuna.samplers.RandomSampler(seed=seed)
        if own.kind == "nsga2":
            size = max(2, own.population or self.config.group)
            return optuna.samplers.NSGAIISampler(population_size=size, seed=seed)
        return optuna.samplers.TPESampler(n_startup_trials=own.startup, seed=seed,
                                          multivariate=True, group=True, constant_liar=True)

    def infer_relative_search_space(self, study, trial):
        # The parts of a space that is drawn in parts are found by the sampler that then draws.
        self.relative = self.drawing(trial.number, "all keys")
        return self.relative.infer_relative_search_space(study, trial)

    def sample_relative(self, study, trial, search_space):
        return self.relative.sample_relative(study, trial, search_space)

    def sample_independent(self, study, trial, param_name, param_distribution):
        sampler = self.drawing(trial.number, param_name)
        return sampler.sample_independent(study, trial, param_name, param_distribution)


PRUNERS: dict[str, Callable[[Any], BasePruner]] = {
    "none": lambda own: optuna.pruners.NopPruner(),
    "median": lambda own: optuna.pruners.MedianPruner(n_startup_trials=own.startup),
    "percentile": lambda own: optuna.pruners.PercentilePruner(own.percentile, n_startup_trials=own.startup),
    "halving": lambda own: optuna.pruners.SuccessiveHalvingPruner(reduction_factor=2),
}


class Look(NamedTuple):
    """A place that candidates are measured on: a text, and its layers (none: all)."""

    text: Text
    layers: tuple[int, ...] = ()

    @property
    def key(self) -> str:
        return self.text.digest + (":" + ",".join(map(str, self.layers)) if self.layers else "")


@dataclass
class Candidate:
    """A record on its way over the texts, which ends in a state."""

    trial: Trial
    typed: str
    record: str = ""   # canonical
    measured: list[Measured] = field(default_factory=list)
    outcome: dict[str, Any] = field(default_factory=dict)   # when it is known

    def end(self, state: str, values: list[float] | None = None, **more: Any) -> None:
        """`more`: attributes of the trial."""
        self.outcome = {"number": self.trial.number, "state": state, "values": values, "attributes": {
            "record": self.record or self.typed, "measured": self.measured, **more}}


def at_work(group: Sequence[Candidate]) -> list[Candidate]:
    return [one for one in group if not one.outcome]


class Study:
    """One search at work, or to be looked at."""

    def __init__(self, config: SearchConfig, out: str | os.PathLike, *,
                 threads: int | None = None, model: str | None = None):
        optuna.logging.set_verbosity(optuna.logging.ERROR)   # else it says every trial
        warnings.filterwarnings("ignore", category=optuna.exceptions.ExperimentalWarning)
        self.config = config
        self.folder = Folder(out)
        self.workers = self.folder.path / "workers"
        self.turn = Lock(self.folder.path / "turn.lock")   # who asks for candidates, one at a time
        self.units = Lines(self.folder.path / "units.jsonl")
        self.space = Space(config)
        self.searched = list(map(text_of, config.search))
        self.aside = list(map(text_of, config.report))
        check_apart(self.searched, self.aside, config.apart)
        self.whole = list(map(Look, self.searched))
        self.looks = [*([Look(self.searched[0], config.pruner.layers)] if config.pruner.layers else []), *self.whole]
        self.replayer = Replayer(config, threads, model)
        starts = [self.space.params_of(record) for record in config.start]
        self.folder.make(self.workers)
        with self.turn.held():
            self.optuna = optuna.create_study(
                storage=JournalStorage(Journal(self.folder.path / "study.journal")), study_name=NAME,
                load_if_exists=True,
                pruner=PRUNERS[config.pruner.kind](config.pruner), sampler=Seeded(config),
                directions=[one.direction for one in config.objectives])
            self._claim(starts)
            self.reference = self._references()

    # ---- what the study is of ----

    @property
    def attributes(self) -> dict[str, Any]:
        return self.optuna.user_attrs

    def _claim(self, starts: Sequence[dict[str, Any]]) -> None:
        """Writes what the study is of, or refuses another search's folder."""
        note = self.optuna.set_user_attr
        told = self.attributes   # files may have moved, contents may not
        if "search" not in told:
            for params in starts:
                self.optuna.enqueue_trial(params, skip_if_exists=True)   # of a run that was cut off
            note("searched", [asdict(one) for one in self.searched])
            note("set_aside", [asdict(one) for one in self.aside])
            note("search", self.config.identity())
            return
        check_same(self.folder.path, json.loads(told["search"]), json.loads(self.config.identity()))
        if [one["digest"] for one in told["searched"]] != [one.digest for one in self.searched]:
            raise UsageError(f"{self.folder.path}: made with other texts than those of traces.search; expected "
                             "the same, or another folder")
        # Texts set aside may be named late, but not be others once they were opened.
        if [one["digest"] for one in told.get("set_aside", [])] != [one.digest for one in self.aside]:
            if told.get("opened"):
                raise UsageError(f"{self.folder.path}: the texts set aside were opened and are "
                                 "recorded; found others, expected the same")
            note("set_aside", [asdict(one) for one in self.aside])

    def _references(self) -> dict[str, dict[str, Measured]]:
        """Measurements of the references at each look, once per study."""
        # The first base, too: what is wrong with all candidates is said before any is tried.
        records = sorted({self.config.base[0], *(
            record for one in self.config.objectives for record in one.references)})
        known = {}
        for look in self.looks:
            answers = self.replayer.answers(look.text.file, records)
            faults = [fault for _, fault in answers.values() if fault]
            measured = {} if faults else self.measured(look, {name for name, _ in answers.values()})
            for fault in [*faults, *measured.values()]:
                if isinstance(fault, str):
                    raise UsageError(fault)
            own = {one: measured[answers[one][0]] for one in records}
            known[look.key] = own | {one.reference: best_of(one, [own[record] for record in one.references])
                                           for one in self.config.objectives if len(one.references) > 1}
        return known

    def measured(self, look: Look, records: Iterable[str]) -> dict[str, Measured | str]:
        """Measurements of records at a look, or in words why there are none. What the study has is not measured
        again, whoever measured it."""
        found = {one["record"]: one["measured"] for one in self.units.read() if one.get("look") == look.key}
        if lacks := sorted(set(records) - found.keys()):
            new = self.replayer.measure(look.text.file, lacks, look.layers)
            self.units.add(*({"look": look.key, "record": record, "measured": one} for record, one in new.items()
                             if not isinstance(one, str)))
            found |= new
        return found

    # ---- candidates ----

    def trials(self) -> list[FrozenTrial]:
        return self.optuna.get_trials(deepcopy=False)

    def run(self, trials: int | None = None, tell: Tell = lambda what, share: None,
            said: Callable[["Study"], str] = lambda study: "") -> None:
        """Works until so many candidates are finished, those of other processes included. `said`: what to tell after
        every group."""
        worker = Worker(self.workers)
        try:
            work_off([self._groups(worker, trials or self.config.trials, said)], tell)
        finally:
            worker.close()

    def _groups(self, worker: Worker, wanted: int, said: Callable[["Study"], str]) -> Iterator[Unit]:
        """The units of this process: a group of candidates each, until none is left to ask for or to adopt."""
        while (group := self._ask(worker, wanted)) or any(one.state == TrialState.RUNNING for one in self.trials()):
            if not group:
                time.sleep(0.5)   # what others still work on is adopted when they die
                continue

            def work(tell: Tell, group: list[Candidate] = group) -> None:
                self._evaluate(group)
                with self.turn.held():
                    self._tell()
                finished = sum(one.state.is_finished() for one in self.trials())
                tell(said(self), min(1.0, finished / wanted))

            yield work

    def _ask(self, worker: Worker, wanted: int) -> list[Candidate]:
        """The next group: candidates that a dead process left, else new ones."""
        with self.turn.held():
            self._tell()
            orphans = [one for one in self.trials() if one.state == TrialState.RUNNING and
                       not worker.is_alive(one.user_attrs.get("worker", ""))]
            asked = sum(one.state != TrialState.WAITING for one in self.trials())
            size = self.config.group
            candidates = [self._candidate(worker, one) for one in orphans[:size]]
            if len(orphans) <= size:
                # Groups begin at multiples of their size: one that was cut off while it was asked for
                # is asked for to its end.
                new = -asked % size if orphans else size
                candidates += [self._candidate(worker) for _ in range(min(new, wanted - asked))]
            return candidates

    def _candidate(self, worker: Worker, orphan: FrozenTrial | None = None) -> Candidate:
        trial = Trial(self.optuna, orphan._trial_id) if orphan else self.optuna.ask()
        trial.set_user_attr("worker", worker.name)
        return Candidate(trial, self.space.suggest(trial))

    # ---- measured text by text; candidates that are given up leave their group on the way ----

    def _evaluate(self, group: Sequence[Candidate]) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")   # of values reported twice, after an interruption
            self._check(group)
            self._recall(at_work(group))
            for step in range(len(self.looks)):
                self._look(step, at_work(group))
            for one in at_work(group):
                if values := self._values(one, self.config.objectives, one.measured, self.whole):
                    one.end("COMPLETE", values)
        self.units.add({"group": [one.outcome for one in sorted(group, key=lambda one: one.trial.number)]})

    def _check(self, group: Sequence[Candidate]) -> None:
        """Records that a replay would refuse are infeasible; others get their canonical text."""
        for text in self.searched:
            if left := at_work(group):
                answers = self.replayer.answers(text.file, sorted({one.typed for one in left}))
                for one in left:
                    record, fault = answers[one.typed]
                    one.record = record or one.typed
                    if fault:
                        one.end("PRUNED", infeasible=fault)

    def _recall(self, group: Sequence[Candidate]) -> None:
        """Records that the study has measured are not measured again."""
        known = {one.user_attrs["record"]: one for one in self.trials()
                 if one.state == TrialState.COMPLETE or "unranked" in one.user_attrs}
        for one in group:
            if before := known.get(one.record):
                why = before.user_attrs.get("unranked")
                one.measured = before.user_attrs["measured"]
                one.end("PRUNED" if why else "COMPLETE", None if why else before.values,
                        same_as=before.number, **({"unranked": why} if why else {}))

    def _look(self, step: int, group: Sequence[Candidate]) -> None:
        """Measures a group at one place; the pruner sees the objective over what has been measured so far."""
        if not group:
            return
        look = self.looks[step]
        measured = self.measured(look, [one.record for one in group])
        base = self.reference[look.key][self.config.base[0]]
        prunes = self.config.pruner.kind != "none"
        for one in group:
            found = measured[one.record]
            if isinstance(found, str):
                one.end("PRUNED", infeasible=found)
                continue
            if not look.layers:
                one.measured.append(found)
                if why := self.replayer.why_unranked(found, base):
                    one.end("PRUNED", unranked=f"{look.text.name}: {why}")
                    continue
            if prunes:
                so_far = ([found], [look]) if look.layers else (one.measured, self.whole)
                if values := self._values(one, self.config.objectives[:1], *so_far):
                    one.trial.report(values[0], step)
        if prunes and step < len(self.looks) - 1:
            for one in at_work(group):
                if one.trial.should_prune():
                    one.end("PRUNED")

    def _values(self, one: Candidate, objectives: Sequence[Objective], measured: Sequence[Measured],
                looks: Sequence[Look]) -> list[float]:
        """Values of the objectives over the first of these looks; none where they leave one undefined."""
        reference = [self.reference[look.key] for look, _ in zip(looks, measured)]
        try:
            return [objective_value(objective, self.config.budgets, measured, reference, [text for text, _ in looks])
                    for objective in objectives]
        except ValueError as error:
            one.end("PRUNED", infeasible=f"undefined: {error}")
            return []

    # ---- what becomes of them ----

    def _tell(self) -> None:
        """Tells Optuna what became of candidates, also of those of a process that was killed before it came to
        that. All of a group at once: who prunes, and whose record was measured before, hangs on who is told."""
        running = {one.number: one for one in self.trials() if one.state == TrialState.RUNNING}
        for outcome in [one for unit in self.units.read() for one in unit.get("group", ())]:
            if outcome["number"] in running:
                trial = Trial(self.optuna, running[outcome["number"]]._trial_id)
                for name, value in outcome["attributes"].items():
                    trial.set_user_attr(name, value)
                self.optuna.tell(trial, outcome["values"], TrialState[outcome["state"]])

    # ---- what was found ----

    def best(self) -> list[FrozenTrial]:
        """The best candidate, or those that no other beats in every objective."""
        complete = [one for one in self.trials() if one.state == TrialState.COMPLETE]
        if not complete:
            return []
        found = self.optuna.best_trials
        if len(self.config.objectives) == 1:
            return sorted(found, key=lambda one: one.number)[:1]
        fronts: dict[str, FrozenTrial] = {}
        for one in sorted(found, key=lambda one: (one.values, one.number)):
            fronts.setdefault(one.user_attrs["record"], one)
        return list(fronts.values())
