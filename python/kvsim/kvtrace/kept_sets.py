"""Kept sets of a results file (`kvsim replay --save-keep`), checked to be ones a model can run with.

A set says, per layer and head, which of the n prompt entries later queries may still see. Only
policies that compress once, after the prompt, and change no keys or values are described by their
sets; the others' caches are live (live_cache.py)."""

import hashlib
import json
import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import xarray

from ..budgets import find_budget
from ..errors import DataError, UsageError
from ..hdf5_file import reads_file
from ..plots import load

# Kinds that a record must have of these stages; anything else is not a set of untouched entries.
PLAIN_STAGES = {"schedule": "prefill", "merge": "drop", "quantize": "none", "positions": "absolute"}
REPLAY = "a results file of kvsim replay"
# Variables over policy and budget that a ranking of losses needs, too (docs/metrics.md 6).
HELD = ("held_share", "budget_share", "held_of_budget", "unranked")


@dataclass
class KeptSets:
    """One (policy, budget): `masks` maps a layer to bool [Hkv, n], or [Hq, n] per query head.

    Layers that are not in `masks` keep everything."""

    policy: str
    budget: str
    masks: dict[int, np.ndarray]

    def digest(self) -> str:
        """Equal for equal sets, whatever they are called."""
        state = hashlib.sha256()
        for layer in sorted(self.masks):
            mask = self.masks[layer]
            state.update(f"{layer} {mask.shape}".encode())
            state.update(np.packbits(mask).tobytes())
        return state.hexdigest()


def changed_stages(parameters: dict) -> str:
    """Stages for which a cache with these parameters is not what its kept sets say, at every step."""
    return ", ".join(f"{stage}={parameters[stage]}" for stage, plain in PLAIN_STAGES.items()
                     if parameters.get(stage, plain) != plain)


def check_static(record: str, parameters: dict, why: str) -> None:
    """Refuses a record whose kept sets do not say all of its cache."""
    if found := changed_stages(parameters):
        raise UsageError(f"{record}: found {found}, expected a policy that compresses once after the prompt and "
                         f"changes no entry{why}")


class ResultsFile:
    """The parts of a results file that a closed loop needs. Raises DataError for anything odd."""

    @reads_file(REPLAY)
    def __init__(self, path: Path):
        self.path = path
        opened = load.open_results(self.path)
        if isinstance(opened, load.Loop):
            raise DataError(f"{self.path}: losses of a closed loop, expected {REPLAY} (with --save-keep)")
        self.data, told = opened.data, opened.data.attrs
        self.policies, self.layers, self.budgets = opened.policies, opened.layers, opened.budgets
        self.budget_labels = opened.budget_labels()
        self.prompt_len, self.seed = int(told["prompt_len"]), int(told.get("seed", 0))
        self.trace_digest, self.config, self.history = (
            str(told[name]) for name in ("trace_digest", "config", "history"))
        self.later = str(told.get("later", ""))
        self.importance = str(json.loads(self.config).get("importance", "l1"))
        self.parameters = {entry["record"]: entry["parameters"] for entry in json.loads(self.config)["policies"]}

    def __enter__(self) -> "ResultsFile":
        return self

    def __exit__(self, *_) -> None:
        self.data.close()

    @reads_file(REPLAY)
    def what_is_held(self, policies: list[int], budgets: list[int]) -> xarray.Dataset:
        """Shares that policies hold, and why they are not ranked, as the results have it; nothing of files
        that do not say."""
        names = [name for name in HELD if name in self.data and self.data[name].dims == ("policy", "budget")]
        held = self.data[names].isel(policy=policies, budget=budgets, missing_dims="ignore")
        return held.drop_vars(held.coords)

    @property
    @reads_file(REPLAY)
    def trace(self) -> Path:
        """Where the trace is, seen from this file."""
        named = str(self.data.attrs.get("trace_path", ""))
        path = Path(os.path.normpath(self.path.resolve().parent / named))
        if not path.is_file():
            raise UsageError(f"{self.path}: the trace {self.data.attrs.get('trace', '')} is not "
                             "where the results say: give its path before them")
        return path

    def choose(self, wanted: list[str] | None, known: list[str], what: str) -> list[int]:
        """Indices of the wanted names, all of them without a choice."""
        if what == "budget":
            wanted = [known[at] if (at := find_budget(one, known)) is not None else one
                      for typed in wanted or [] for one in typed.split(",")]
        for name in wanted or []:
            if name not in known:
                raise UsageError(f"{self.path}: no {what} {name}; there are {', '.join(known)}")
        return [i for i, name in enumerate(known) if not wanted or name in wanted]

    @reads_file(REPLAY)
    def is_static(self, policy: int) -> bool:
        """Do the kept sets say all there is to say of this policy's cache?"""
        return not changed_stages(self.parameters.get(self.policies[policy], {}))

    def check_sets(self) -> None:
        if not {"kept_mask", "kept_mask_query"} & set(self.data):
            raise DataError(f"{self.path}: holds no kept sets; replay with --save-keep")

    @reads_file(REPLAY)
    def sets(self, policy: int, budget: int) -> KeptSets:
        for variable in ("kept_mask", "kept_mask_query"):
            if variable not in self.data:
                continue
            values = self.data[variable][policy, budget].values
            # Undefined of policies whose sets belong to the other kind of head.
            if values.ndim != 3 or values.shape[::2] != (len(self.layers), self.prompt_len):
                raise DataError(f"{self.path}: {variable} has shape {values.shape}")
            if np.isnan(values).all():
                continue
            if not np.isin(values, (0, 1)).all():
                raise DataError(f"{self.path}: {variable} holds merged or undefined entries")
            masks = {layer: values[i] == 1 for i, layer in enumerate(self.layers)}
            return KeptSets(self.policies[policy], self.budget_labels[budget], masks)
        raise DataError(f"{self.path}: no kept sets of {self.policies[policy]}")
