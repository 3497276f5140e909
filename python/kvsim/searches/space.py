"""The space of records: keys, their ranges and conditions, as the program declares them."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from optuna.distributions import (BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution)
from optuna.trial import Trial

from ..errors import UsageError
from ..plain import near
from ..policy import described
from ..program import run
from .config import SearchConfig, of_type, show, table

ANY = "any"         # every value that the key declares
DIGITS = 4          # significant ones of a real number in a record
BASE = "base"       # the parameter of a search over several bases
NUMBERS = ("count", "real", "share")
RANGE = {**dict.fromkeys(("low", "high", "step"), (None, lambda found, _: found)),
         "log": of_type(False, bool, "true or false")}


@dataclass(frozen=True)
class Declarations:
    """Keys and kinds by `kvsim policies --json`."""

    keys: Mapping[str, Mapping[str, Any]]    # in canonical order
    kinds: Mapping[tuple[str, str], Mapping[str, Any]]

    @classmethod
    def load(cls) -> "Declarations":
        told = json.loads(run(["policies", "--json"]))
        return cls({one["key"]: one for one in told["keys"]},
                   {(one["stage"], kind["kind"]): kind
                    for one in told["stages"] for kind in one["kinds"]})

    def used(self, settings: Mapping[str, str]) -> set[str]:
        """Keys that a record with these settings of its stages uses."""
        def holds(key: str) -> bool:
            return all(self.setting(settings, stage) in kinds for stage, kinds in self.keys[key]["only_with"].items())

        found = {key for key, one in self.keys.items() if one["always"]}
        for stage, one in self.keys.items():
            if one["type"] == "kind" and holds(stage):
                found |= {stage, *self.kinds[stage, self.setting(settings, stage)]["keys"]}
        return {key for key in found if holds(key)}

    def setting(self, settings: Mapping[str, str], key: str) -> str:
        return settings.get(key, self.keys[key]["default"])


def settings_of(record: str) -> dict[str, str]:
    """Values of the keys that a record uses; a mistake is the program's own error."""
    return described(record)["cells"]


def decimal_text(value: float, point: bool) -> str:
    """A number as records write it: a few digits, no exponent."""
    text = np.format_float_positional(value, precision=DIGITS, fractional=False, trim="-")
    return text + ".0" if point and "." not in text else text


@dataclass(frozen=True)
class Axis:
    """One key and what it may be."""

    key: str
    distribution: BaseDistribution
    share: bool = False

    def text(self, value: Any) -> str:
        if isinstance(value, str):
            return value
        return str(value) if isinstance(value, int) else decimal_text(value, self.share)

    def value(self, text: str) -> Any:
        """The value of the distribution for a record's text; raises where it has none."""
        one = self.distribution
        kind = {CategoricalDistribution: str, IntDistribution: int, FloatDistribution: float}[type(one)]
        value = kind(text)
        if not (value in one.choices if kind is str else one.low <= value <= one.high):
            raise ValueError(text)
        return value

    def suggest(self, trial: Trial) -> str:
        one = self.distribution
        if isinstance(one, CategoricalDistribution):
            return self.text(trial.suggest_categorical(self.key, one.choices))
        ask = trial.suggest_int if isinstance(one, IntDistribution) else trial.suggest_float
        return self.text(ask(self.key, one.low, one.high, step=one.step, log=one.log))


class Space:
    """All axes of a search, and how a record follows from them."""

    def __init__(self, config: SearchConfig):
        self.where = f"{config.path}: vary"
        self.declared = Declarations.load()
        self.bases = {base: settings_of(base) for base in config.base}
        self.vary = config.vary
        for key in config.vary:
            if key not in self.declared.keys:
                raise UsageError(f"{self.where}: unknown key {key}{near(key, self.declared.keys)}")
        # Kinds first: they decide which other keys take effect.
        self.axes = {key: self._axis(key, config.vary[key]) for key in sorted(
            filter(config.vary.__contains__, self.declared.keys),
            key=lambda key: self.declared.keys[key]["type"] != "kind")}

    def suggest(self, trial: Trial) -> str:
        """Asks a trial of Optuna for every key that takes effect; the record as typed."""
        base = next(iter(self.bases))
        if len(self.bases) > 1:
            base = trial.suggest_categorical(BASE, list(self.bases))
        settings, typed = dict(self.bases[base]), {}
        for key, axis in self.axes.items():
            if key in self.declared.used(settings):
                typed[key] = settings[key] = axis.suggest(trial)
        used = self.declared.used(settings)   # a kind that was chosen later may rule a key out
        preset, *changes = base.split(",")
        settings = dict(one.split("=", 1) for one in changes) | typed
        # A key that the base changes may be ruled out, too.
        return preset + "".join(f",{key}={settings[key]}" for key in self.declared.keys
                                if key in settings and key in used)

    def params_of(self, record: str) -> dict[str, Any]:
        """The parameters that give a record, for a search to start from."""
        settings = settings_of(record)
        found: dict[str, Any] = {}
        if len(self.bases) > 1:
            found[BASE] = next((base for base in self.bases if record == base), next(
                (base for base in self.bases if record.startswith(base + ",")), None))
            if found[BASE] is None:
                raise UsageError(f"start: {record}: expected one of base, with changed keys")
        base = found.get(BASE, next(iter(self.bases)))
        for key, value in settings.items():
            if key not in self.axes:
                if value != self.declared.setting(self.bases[base], key):
                    raise UsageError(f"start: {record}: {key}={value} is not varied")
                continue
            try:
                found[key] = self.axes[key].value(value)
            except ValueError:
                raise UsageError(f"start: {record}: {key}={value} is not in the space") from None
        return found

    # ---- what a key may be ----

    def _wrong(self, key: str, found: Any, expected: str, more: str = "") -> UsageError:
        return UsageError(f"{self.where}: {key}: found {found}, expected {expected}{more}")

    def _axis(self, key: str, given: Any) -> Axis:
        told = self.declared.keys[key]
        is_number = told["type"] in NUMBERS
        if isinstance(given, Mapping) or given == ANY and is_number:
            if not is_number:
                raise self._wrong(key, show(given), "a list of values")
            return self._range(key, told, {} if given == ANY else given)
        if given == ANY:
            given = self._declared_words(key, told)
        if not isinstance(given, list) or not given:
            raise self._wrong(key, show(given), f'"{ANY}", a list of values or {{low, high}}')
        words = [self._word(key, told, one) for one in given]
        for word in words:
            if words.count(word) > 1:
                raise UsageError(f"{self.where}: {key}: {word} stands there twice")
        return Axis(key, CategoricalDistribution(words))

    def _word(self, key: str, told: Mapping[str, Any], given: Any) -> str:
        if not isinstance(given, (bool, int, float, str)):
            raise self._wrong(key, show(given), told["range"])
        return self._checked(key, {True: "yes", False: "no"}[given] if isinstance(given, bool) else
                             decimal_text(given, told["type"] == "share") if isinstance(given, float) else str(given))

    def _checked(self, key: str, text: str) -> str:
        """A value as records write it, which the program takes."""
        try:
            settings_of(f"{next(iter(self.bases))},{key}={text}")
        except UsageError as error:   # another mistake is one of the whole record, not of this value
            if (told := str(error).partition(f"bad value of {key}: "))[1]:
                raise UsageError(f"{self.where}: {key}: {told[2]}") from None
        return text

    def _declared_words(self, key: str, told: Mapping[str, Any]) -> list[str]:
        """Every word but those that only a preset may have, or that need a file of their own."""
        if "values" not in told:
            raise UsageError(f"{self.where}: {key}: any text would do, expected a list of values")
        if told["type"] != "kind":
            return list(told["values"])

        def free(name: str) -> bool:
            kind = self.declared.kinds[key, name]
            files = [one for one in kind["keys"] if self.declared.keys[one]["type"] == "text" and
                     self.declared.keys[one]["default"] == "none" and one not in self.vary and
                     all(base.get(one, "none") == "none" for base in self.bases.values())]
            return not kind["only_in_presets"] and not files

        return list(filter(free, told["values"]))

    def _range(self, key: str, told: Mapping[str, Any], given: Mapping[str, Any]) -> Axis:
        own = table(given, RANGE, f"{self.where}: {key}")
        share = told["type"] == "share"
        whole = told["type"] == "count" or share and type(own.low) is type(own.high) is int
        low, high = self._open_ends(key, told, own.low, own.high, whole)
        number = int if whole else (int, float)
        for one in (low, high, *([] if own.step is None else [own.step])):
            if isinstance(one, bool) or not isinstance(one, number):
                raise self._wrong(key, show(one), "whole numbers" if whole else "numbers")
        for end in (low, high):
            self._checked(key, str(end) if whole else decimal_text(end, share))
        step = 2 if told["odd"] and own.step is None else own.step
        if low >= high or own.log and (low <= 0 or step is not None) or step is not None and step <= 0:
            raise self._wrong(key, show(given), "low < high, step > 0, and with log low > 0 and no step")
        if told["odd"]:
            return Axis(key, IntDistribution(low, high, step=step + step % 2))
        if whole:
            return Axis(key, IntDistribution(low, high, log=own.log, step=step or 1))
        return Axis(key, FloatDistribution(float(low), float(high), log=own.log, step=step), share)

    def _open_ends(self, key: str, told: Mapping[str, Any], low: Any, high: Any, whole: bool) -> list:
        """Ends that are not given are the declared ones; a share, count or fraction, has none."""
        if high is None or (low is None and told["type"] == "share"):
            if told["high"] is None:
                raise UsageError(f"{self.where}: {key}: not both ends are declared, expected "
                                 f"{{low, high}} ({told['range']})")
            high = told["high"]
            span = high - (told["low"] if low is None else low)
            high -= 1e-3 * span if told["high_open"] else 0
        if low is None:
            low = told["low"] + (1e-3 * (high - told["low"]) if told["low_open"] else 0)
        return [int(low), int(high)] if whole and all(float(end).is_integer() for end in (low, high)) else [low, high]
