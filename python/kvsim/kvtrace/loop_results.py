"""Findings of a closed loop: a journal while it runs, one netCDF-4 file when it is done."""

import datetime
import json
from pathlib import Path

import numpy as np
import xarray

from ..errors import DataError, Error
from ..results_file import write_results
from ..units import Lines
from .writer import check_room

NOTE = (
    "Closed loop: every query after the prompt met the compressed cache, so that errors feed into "
    "later layers and steps; the tokens are those of the trace.")
_DECLARED = json.loads((Path(__file__).parents[1] / "losses.json").read_text(encoding="utf-8"))
# name -> (dimensions, unit, long name); the first three hold a number per step.
VARIABLES = {one["name"]: (tuple(one["dimensions"]), one["units"], one["long_name"]) for one in _DECLARED}

COORDINATES = {
    "policy": {"long_name": "canonical policy record"},
    "budget": {"units": "1", "long_name": "share of the prompt's entries kept"},
    "step": {"units": "1", "long_name": "position of the query whose next token is predicted"},
}


class Journal:
    """Finished (policy, budget) pairs, one JSON line each behind a line that names the run.

    An interrupted run goes on from it."""

    def __init__(self, target: Path, identity: dict, fresh: bool):
        self.lines = Lines(target.with_name(f"{target.name}.unfinished"))
        if fresh:
            self.remove()
        begun, *lines = self.lines.read() or [None]
        if begun is None:
            self.lines.add(identity)
        elif begun != identity:
            raise DataError(
                f"{self.lines.path}: left by a run with another trace, results or options; "
                "--overwrite starts anew")
        self.pairs: dict[tuple[str, str], dict] = {(one["policy"], one["budget"]): one for one in lines}

    def add(self, pairs: list[tuple[str, str]], found: dict) -> None:
        """Notes what was found for pairs that share their sets; those it has already stay."""
        new = {pair: {**found, "policy": pair[0], "budget": pair[1]} for pair in pairs if pair not in self.pairs}
        self.lines.add(*new.values())
        self.pairs |= new

    def remove(self) -> None:
        self.lines.path.unlink(missing_ok=True)


def write_loop(target: Path, coordinates: dict, pairs: dict, attributes: dict,
               held: xarray.Dataset | None = None) -> None:
    """Writes the netCDF-4 file under a temporary name first.

    `coordinates`: policy, budget_label (texts), budget, step (numbers). `pairs` as in a Journal.
    `held`: what the policies hold, as the results say it.
    Of `attributes`, answer_begin is the position of the answer's first token, if it is known, and
    trace_path the trace's own path."""
    arrays = _arrays(coordinates, pairs, attributes.get("answer_begin"))
    check_room(target, sum(values.nbytes for values in arrays.values()))
    now = datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
    variables = {name: (dimensions, arrays[name], {"units": units, "long_name": called})
                 for name, (dimensions, units, called) in VARIABLES.items() if name in arrays}
    data = xarray.Dataset(
        variables | {"budget_label": ("budget", coordinates["budget_label"],
                                      {"long_name": "budget as a text"})},
        {name: (name, coordinates[name], about) for name, about in COORDINATES.items()},
        {"Conventions": "CF-1.11", "title": "What a model loses that runs with a compressed KV cache",
         **attributes, "history": f"{now} {attributes['history']}", "closed_loop_note": NOTE})
    data["budget"].encoding["_FillValue"] = None
    data = data.assign(held or {})
    try:
        write_results(data, target)
    except OSError as error:
        raise Error(f"{target}: cannot write: {error}") from None


def _arrays(coordinates: dict, pairs: dict, answer_begin: int | None) -> dict[str, np.ndarray]:
    """The variables of VARIABLES from the journal's lines."""
    lines = [[pairs[policy, budget] for budget in coordinates["budget_label"]] for policy in coordinates["policy"]]

    def numbers(name: str) -> np.ndarray:
        return np.array([[one.get(name, np.nan) for one in row] for row in lines], np.float64)

    kl, nll, agrees = series = [numbers(name) for name in list(VARIABLES)[:3]]
    # The last query has no next token in the trace.
    nll_mean = nll[..., :-1].mean(-1) if nll.shape[2] > 1 else np.full(nll.shape[:2], np.nan)
    arrays = dict(zip(VARIABLES, series)) | {
        "kl_divergence_mean": kl.mean(-1), "kl_divergence_max": kl.max(-1),
        "nll_difference_mean": nll_mean, "top1_agreement_mean": agrees.mean(-1)}
    if answer_begin is not None:   # the query before a token predicts it
        answer = np.asarray(coordinates["step"]) >= answer_begin - 1
        if answer.any():
            arrays["kl_divergence_answer"] = kl[..., answer].mean(-1)
    generated = numbers("generated_agreement")
    return arrays if np.isnan(generated).all() else arrays | {"generated_agreement": generated}
