"""A study: candidates are asked for in groups, measured text by text, and told."""

import hashlib
import json
import os
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

import optuna
from optuna.pruners import BasePruner
from optuna.samplers import BaseSampler
from optuna.trial import FrozenTrial, Trial, TrialState

from ..errors import UsageError
from ..whole import write_text
from . import texts
from .config import SearchConfig
from .evaluate import Measured, Replayer, objective_value
from .space import Space
from .storage import NAME, Folder, Worker


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


def make_pruner(config: SearchConfig) -> BasePruner:
    own = config.pruner
    if own.kind == "median":
        return optuna.pruners.MedianPruner(n_startup_trials=own.startup)
    if own.kind == "percentile":
        return optuna.pruners.PercentilePruner(own.percentile, n_startup_trials=own.startup)
    if own.kind == "halving":
        return optuna.pruners.SuccessiveHalvingPruner(reduction_factor=2)
    return optuna.pruners.NopPruner()


class Study:
    """One search at work, or to be looked at."""

    def __init__(self, config: SearchConfig, out: str | os.PathLike, *,
                 threads: int | None = None, model: str | None = None):
        optuna.logging.set_verbosity(optuna.logging.ERROR)   # else it says every trial
        warnings.filterwarnings("ignore", category=optuna.exceptions.ExperimentalWarning)
        self.config = config
        self.folder = Folder(out)
        self.space = Space(config)
        self.searched = list(map(texts.text_of, config.search))
        self.aside = list(map(texts.text_of, config.report))
        texts.check_apart(self.searched, self.aside, config.apart)
        self.replayer = Replayer(config, threads, model)
        starts = [self.space.params_of(record) for record in config.start]
        storage = self.folder.open()
        with self.folder.turn.held():
            self.optuna = optuna.create_study(
                storage=storage, study_name=NAME, load_if_exists=True,
                pruner=make_pruner(config), sampler=Seeded(config),
                directions=[one.direction for one in config.objectives])
            self._claim(starts)
        self.reference = self._references()

    # ---- what the study is of ----

    @property
    def attributes(self) -> dict[str, Any]:
        return self.optuna.user_attrs

    def _claim(self, starts: Sequence[dict[str, Any]]) -> None:
        """Writes what the study is of, or refuses another search's folder."""
        told = self.attributes.get("search")
        if told is None:
            for params in starts:
                self.optuna.enqueue_trial(params, skip_if_exists=True)   # of a run that was cut off
            self.optuna.set_user_attr("searched", [asdict(one) for one in self.searched])
            self.optuna.set_user_attr("set_aside", [asdict(one) for one in self.aside])
            self.optuna.set_user_attr("search", self.config.identity())
            return
        before, now = json.loads(told), json.loads(self.config.identity())
        other = [name for name in now if before.get(name) != now[name]]
        if not texts.same_texts(self.attributes["searched"], self.searched):
            other.append("traces.search")
        if other:
            raise UsageError(f"{self.folder.path}: the study of another search, expected another "
                             f"folder: {', '.join(other)} differ")
        self._claim_aside()

    def _claim_aside(self) -> None:
        """Texts set aside may be named late, but not be others once they were opened."""
        before = self.attributes.get("set_aside", [])
        if texts.same_texts(before, self.aside):
            return
        if self.attributes.get("opened"):
            raise UsageError(f"{self.folder.path}: the texts set aside were opened and are "
                             "recorded; found others, expected the same")
        self.optuna.set_user_attr("set_aside", [asdict(one) for one in self.aside])

    def _references(self) -> dict[str, dict[str, Measured]]:
        """Measurements of the references on each searched text, once per study."""
        # The first base, too: what is wrong with all candidates is said before any is tried.
        records = sorted({self.config.base[0], *(
            one.reference for one in self.config.objectives if one.reference)})
        with self.folder.turn.held():
            known = dict(self.attributes.get("references", {}))
            for text in self._looks():
                key = look_key(text)
                if key not in known:
                    known[key] = measured_or_raise(self.replayer, text, records)
                    self.optuna.set_user_attr("references", known)
        return known

    def _looks(self) -> list[tuple[Any, tuple[int, ...]]]:
        """Places that a candidate is measured on, in order: a text and its layers (none: all)."""
        looks = [(one, ()) for one in self.searched]
        if self.config.pruner.layers:
            looks.insert(0, (self.searched[0], self.config.pruner.layers))
        return looks

    # ---- candidates ----

    def trials(self) -> list[FrozenTrial]:
        return self.optuna.get_trials(deepcopy=False)

    def run(self, trials: int | None = None,
            tell: Callable[["Study"], None] = lambda _: None) -> None:
        """Works until so many candidates are finished, those of other processes included."""
        wanted = trials or self.config.trials
        worker = Worker(self.folder)
        try:
            while group := self._ask(worker, wanted):
                self._finish(worker, self._evaluate(group))
                tell(self)
            self._wait_for_others(worker, wanted)
        finally:
            worker.close()

    def _wait_for_others(self, worker: Worker, wanted: int) -> None:
        """Nothing is left to ask for; what others still work on is adopted when they die."""
        while any(one.state == TrialState.RUNNING for one in self.trials()):
            if group := self._ask(worker, wanted):
                self._finish(worker, self._evaluate(group))
            else:
                time.sleep(0.5)

    def _ask(self, worker: Worker, wanted: int) -> list[tuple[Trial, str]]:
        """The next group: candidates that a dead process left, else new ones."""
        with self.folder.turn.held():
            self._tell_pending(worker)
            orphans = [one for one in self.trials() if one.state == TrialState.RUNNING and
                       not worker.is_alive(one.user_attrs.get("worker", ""))]
            asked = sum(one.state != TrialState.WAITING for one in self.trials())
            size = self.config.group
            group = orphans[:size]
            # Groups begin at multiples of their size: one that was cut off while it was asked for
            # is asked for to its end.
            new = -asked % size if orphans else size
            new = max(0, min(new, wanted - asked))
            candidates = [self._candidate(worker, one) for one in group]
            if len(group) == len(orphans):
                candidates += [self._candidate(worker, None) for _ in range(new)]
            return candidates

    def _candidate(self, worker: Worker, orphan: FrozenTrial | None) -> tuple[Trial, str]:
        if orphan is None:
            trial = self.optuna.ask()
        else:
            trial = Trial(self.optuna, orphan._trial_id)
        trial.set_user_attr("worker", worker.name)
        return trial, self.space.suggest(trial)

    # ---- what becomes of them ----

    def _evaluate(self, group: Sequence[tuple[Trial, str]]) -> list[dict[str, Any]]:
        """Measures a group text by text; candidates that are given up leave it on the way."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")   # of values reported twice, after an interruption
            return Evaluation(self, group).outcomes()

    def _finish(self, worker: Worker, outcomes: list[dict[str, Any]]) -> None:
        """Tells the study; what is measured survives the end of this process in between."""
        pending = self.folder.pending(worker.name)
        write_text(pending, json.dumps(outcomes))
        with self.folder.turn.held():
            self._tell(outcomes)
            pending.unlink()

    def _tell(self, outcomes: list[dict[str, Any]]) -> None:
        trials = {one.number: one for one in self.trials()}
        for one in outcomes:
            trial = trials[one["number"]]
            if trial.state != TrialState.RUNNING:
                continue
            told = Trial(self.optuna, trial._trial_id)
            for name, value in one["attributes"].items():
                told.set_user_attr(name, value)
            self.optuna.tell(told, one["values"], TrialState[one["state"]])

    def _tell_pending(self, worker: Worker) -> None:
        """Measurements that dead processes did not come to tell."""
        for path in sorted(self.folder.workers.glob("*.json")):
            if not worker.is_alive(path.stem):
                self._tell(json.loads(path.read_text(encoding="utf-8")))
                path.unlink()

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


def look_key(look: tuple[Any, tuple[int, ...]]) -> str:
    text, layers = look
    return text.digest + (":" + ",".join(map(str, layers)) if layers else "")


def measured_or_raise(replayer: Replayer, look: tuple[Any, tuple[int, ...]],
                      records: Sequence[str]) -> dict[str, Measured]:
    """Measures records that must work: references."""
    text, layers = look
    answers = replayer.answers(text.file, records)
    for _, fault in answers.values():
        if fault:
            raise UsageError(fault)
    measured = replayer.measure(text.file, records, layers)
    for one in measured.values():
        if isinstance(one, str):
            raise UsageError(one)
    return {record: measured[answers[record][0]] for record in records}


class Evaluation:
    """One group on its way over the texts."""

    def __init__(self, study: Study, group: Sequence[tuple[Trial, str]]):
        self.study = study
        self.objectives = study.config.objectives
        self.budgets = study.config.budgets
        self.trials = {trial.number: trial for trial, _ in group}
        self.typed = {trial.number: record for trial, record in group}
        self.measured: dict[int, list[Measured]] = {number: [] for number in self.trials}
        self.outcome: dict[int, dict[str, Any]] = {}
        self.records: dict[int, str] = {}

    def outcomes(self) -> list[dict[str, Any]]:
        self._check()
        self._known()
        for step, look in enumerate(self.study._looks()):
            self._look(step, look)
        for number in self._left():
            try:
                values = self._values(number)
            except ValueError as error:
                self._infeasible(number, f"undefined: {error}")
                continue
            self._end(number, "COMPLETE", values)
        return [self.outcome[number] for number in sorted(self.outcome)]

    def _left(self) -> list[int]:
        return [number for number in sorted(self.trials) if number not in self.outcome]

    def _check(self) -> None:
        """Records that a replay would refuse are infeasible; others get their canonical text."""
        for text in self.study.searched:
            left = sorted({self.typed[number] for number in self._left()})
            if not left:
                return
            answers = self.study.replayer.answers(text.file, left)
            for number in self._left():
                record, fault = answers[self.typed[number]]
                self.records[number] = record or self.typed[number]
                if fault:
                    self._infeasible(number, fault)

    def _known(self) -> None:
        """Records that the study has measured are not measured again."""
        known = {one.user_attrs["record"]: one for one in self.study.trials()
                 if one.state == TrialState.COMPLETE or "unranked" in one.user_attrs}
        for number in self._left():
            if one := known.get(self.records[number]):
                self.measured[number] = one.user_attrs["measured"]
                if why := one.user_attrs.get("unranked"):
                    self._given_up(number, "unranked", why)
                else:
                    self._end(number, "COMPLETE", one.values)
                self.outcome[number]["attributes"]["same_as"] = one.number

    def _look(self, step: int, look: tuple[Any, tuple[int, ...]]) -> None:
        text, layers = look
        numbers = self._left()
        records = sorted({self.records[number] for number in numbers})
        if not records:
            return
        measured = self.study.replayer.measure(text.file, records, layers)
        reference = self._reference(look)
        for number in numbers:
            one = measured[self.records[number]]
            if isinstance(one, str):
                self._infeasible(number, one)
            elif layers:
                self._report(number, step, [one], [reference])
            else:
                self.measured[number].append(one)
                base = self._reference(look)[self.study.config.base[0]]
                if why := self.study.replayer.why_unranked(one, base):
                    self._given_up(number, "unranked", f"{text.name}: {why}")
                    continue
                so_far = self.measured[number]
                looks = [item for item in self.study._looks() if not item[1]][:len(so_far)]
                self._report(number, step, so_far, [self._reference(item) for item in looks])
        self._prune(numbers)

    def _reference(self, look: tuple[Any, tuple[int, ...]]) -> dict[str, Measured]:
        return self.study.reference.get(look_key(look), {})

    def _report(self, number: int, step: int, measured: list[Measured],
                reference: list[dict[str, Measured]]) -> None:
        """Tells the pruner the objective over what has been measured so far."""
        if self.study.config.pruner.kind == "none":
            return
        try:
            value = objective_value(self.objectives[0], self.budgets, measured, reference)
        except ValueError as error:
            self._infeasible(number, f"undefined: {error}")
            return
        self.trials[number].report(value, step)

    def _prune(self, numbers: Sequence[int]) -> None:
        if self.study.config.pruner.kind == "none":
            return
        last = len(self.measured[numbers[0]]) == len(self.study.searched)
        for number in numbers:
            if number not in self.outcome and not last and self.trials[number].should_prune():
                self._end(number, "PRUNED", None)

    def _values(self, number: int) -> list[float]:
        looks = [item for item in self.study._looks() if not item[1]]
        reference = [self._reference(item) for item in looks]
        return [objective_value(one, self.budgets, self.measured[number], reference)
                for one in self.objectives]

    def _infeasible(self, number: int, reason: str) -> None:
        self._given_up(number, "infeasible", reason)

    def _given_up(self, number: int, what: str, reason: str) -> None:
        self._end(number, "PRUNED", None)
        self.outcome[number]["attributes"][what] = reason

    def _end(self, number: int, state: str, values: Sequence[float] | None) -> None:
        self.outcome[number] = {
            "number": number, "state": state, "values": None if values is None else list(values),
            "attributes": {"record": self.records.get(number, self.typed[number]),
                           "measured": self.measured[number]}}
