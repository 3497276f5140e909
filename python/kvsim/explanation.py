"""`explain`: which evicted tokens carried the importance that was missed."""

import json
from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path
from typing import Any

import pandas
import xarray

from .errors import UsageError
from .figures import Figures, plot
from .program import exchange, options, run
from .results_file import as_file, records, trace_of
from .scoring import SCHEME, ScoreFunction, known_functions, score_files
from .trace import Trace


@dataclass
class Explanation:
    """One step of one layer: the tokens that were missed most."""

    policy: str
    budget: str
    layer: int
    step: int  #: position of the query
    step_text: str
    retained_importance: float
    lost: pandas.DataFrame  #: by position: text, lost, importance, span, kept heads, score, rank
    document: dict[str, Any] = field(repr=False)  #: all that the command says

    def plot(self, out: str | PathLike | None = None, **given: Any) -> Figures:
        """The prompt, coloured by what was lost."""
        with exchange() as folder:
            file = Path(folder) / "explain.json"
            file.write_text(json.dumps(self.document), encoding="utf-8")
            return plot(file, out, **given)

    def _repr_html_(self) -> str:
        import html

        said = (f"{self.policy} at budget {self.budget}, layer {self.layer}, step {self.step} "
                f"({self.step_text!r}): retained importance {self.retained_importance:.4f}")
        return f"<div>{html.escape(said)}{self.lost.to_html()}</div>"


def explain(results: xarray.Dataset | str | PathLike, trace: str | PathLike | Trace | None = None,
            *, policy: str | None = None, budget: str | float | None = None,
            layer: int | None = None, step: int | None = None, top: int = 20) -> Explanation:
    """Why did it fail there? The prompt tokens whose importance was lost, most first.

    Without `policy`, `budget`, `layer` or `step` it takes those of the largest stream error,
    as `replay` names them, in the layer that retained the least importance there.

    Args:
        results: of ``replay(..., save_keep=True)``, or a path of such a file.
        trace: that the results were made from; not needed where it is still there.
        policy: as the results name it.
        budget: as it was given to `replay`.
        layer: the model's number of it.
        step: position of the later query.
        top: tokens to list."""
    with exchange() as folder:
        words = ["explain", as_file(results, folder), "--json", *options(
            policy=policy or None, budget=budget, layer=layer, step=step, top=top)]
        if isinstance(results, xarray.Dataset):
            trace = trace_of(results, trace)
            if _score_functions(results, Path(trace), Path(folder), policy):
                words.append(f"--scores={folder}")
        if trace is not None:
            words.append(f"--trace={Path(trace)}")
        found = json.loads(run(words))
    lost = pandas.DataFrame(found["lost"])
    return Explanation(lost=lost.set_index("position") if found["lost"] else lost, document=found, **{
        name: found[name] for name in ("policy", "budget", "layer", "step", "step_text", "retained_importance")})


def _score_functions(results: xarray.Dataset, trace: Path, folder: Path, chosen: str | None) -> bool:
    """Scores the functions of this process among the policies, or the chosen one, again; true if
    there are any. The program itself calls functions of files, by name."""
    own: dict[str, ScoreFunction] = {}
    for record, keys in records(results).items():
        told = keys.get("function")
        if not told or record not in results["policy"].values or chosen not in (None, record):
            continue
        title = record.partition(",")[0]
        function = known_functions.get((title, told["sha256"]))
        if function is None and title.count(":") > 1:
            continue
        if function is None:
            raise UsageError(f"{record}: its function is not known to this process; replay it "
                             "here, or choose other policies with results.sel(policy=...)")
        if title == SCHEME + told["name"]:
            own[title] = function
    if own:
        with Trace(trace) as opened:
            score_files(own, opened, folder, [int(one) for one in results["layer"].values.reshape(-1)])
    return bool(own)
