"""Figures of a study, in the house's style: figures/*.png and *.pdf of its folder. Those of keys and of fronts
are Optuna's own, which read the study's journal (docs/cli.md 7.3)."""

from collections.abc import Sequence

import numpy as np
from optuna.trial import FrozenTrial, TrialState

from ..plain import counted
from ..plots import statistics, style
from .config import Objective
from .evaluate import shown
from .study import Study
from .summary import Report, counts_text, scale

AXIS = 24   # characters of a name that fit beside a panel
RATIOS = (1, 1.5, 2, 3, 5, 7)   # ticks of ratios, times powers of ten
CANDIDATE = {"linestyle": "", "marker": "o", "markersize": 2.4, "markeredgewidth": 0, "color": "0.65"}


def write(study: Study, report: Report | None = None) -> None:
    """Draws what the study is enough for."""
    style.use()
    complete = [one for one in study.trials() if one.state == TrialState.COMPLETE]
    made = {"history": history(study, complete)} if complete else {}
    for variable in report.variables if report else ():
        made[f"report_{variable}"] = reported(study, report, variable)
    folder = study.folder.path / "figures"
    folder.mkdir(exist_ok=True)
    for name, fig in made.items():
        for kind in ("png", "pdf"):
            style.save(fig, folder / f"{name}.{kind}")
        style.plt.close(fig)


def scaled(ax, objective: Objective) -> None:
    """Ratios stand on a logarithmic axis."""
    if objective.reference:
        ax.set_yscale("log")
        style.log_ticks(ax.yaxis, every=RATIOS)


def history(study: Study, complete: Sequence[FrozenTrial]):
    """Values by candidate and the best so far, a panel per objective. The best shows well: the worst tenth of
    the candidates may lie outside, but not the first, with which the search began."""
    objectives = study.config.objectives
    keys = [style.key("a candidate", CANDIDATE),
            style.key("the best so far", {"color": style.COLOURS[1], "linestyle": "-"})]
    fig, axes = style.frame(
        "What the search found", f"{counts_text(study)}. Mean over "
        f"{counted(len(study.searched), 'text')} searched, and over budgets", 1,
        len(objectives), 2.3, keys, ("candidate", ""))
    at = [one.number for one in complete]
    for number, (ax, objective) in enumerate(zip(axes.flat, objectives)):
        values = shown(objective, np.array([one.values[number] for one in complete]))
        less = objective.better is min
        ax.plot(at, values, **CANDIDATE)
        ax.step(at, (np.minimum if less else np.maximum).accumulate(values), where="post", color=style.COLOURS[1])
        seen = [*np.quantile(values, (0, 0.9) if less else (0.1, 1)), values[0]]
        if objective.reference:
            ax.axhline(1, color=style.REFERENCE, linewidth=0.7)
            seen.append(1.0)
        low, high = min(seen), max(seen)
        ax.set_ylim(*((low * 0.97, high * 1.03) if objective.reference else
                      (low - 0.05 * (high - low), high + 0.05 * (high - low))))
        scaled(ax, objective)
        ax.set_ylabel(style.wrapped(objective.label, 44))
    return fig


def reported(study: Study, report: Report, variable: str):
    """Policies by budget over the texts set aside, the best of the search first."""
    objective = report.objective(variable)
    what = objective.name if len(objective.name) <= AXIS else "objective"   # the subtitle says the rest
    table = report.table(objective)
    budgets = list(study.config.budgets)
    looks = {record: style.line_style(i) for i, record in enumerate(list(table)[:style.MOST_LINES])}
    keys = [style.key(("found: " if record in report.best else "") + record, look) for record, look in looks.items()]
    fig, axes = style.frame(
        "On texts set aside", f"{objective.label}; mean over {counted(len(report.measured), 'text')} "
        f"not searched, band: 95 % interval over texts. {counts_text(study)}", 1, 1, 2.7,
        keys, ("budget", f"{what},\nrelative to {objective.reference}" if objective.reference else objective.name))
    at = range(len(budgets))
    for record, look in looks.items():
        mean, interval = statistics.over_traces(table[record].T, scale(objective))
        axes[0, 0].plot(at, shown(objective, mean), **look)
        style.band(axes[0, 0], at, shown(objective, interval), look, len(report.measured) > 1)
    scaled(axes[0, 0], objective)
    axes[0, 0].set_xticks(at, budgets)
    return fig
