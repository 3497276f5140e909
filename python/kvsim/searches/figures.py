"""Figures of a study, in the house's style: figures/*.png and *.pdf of its folder."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from optuna.trial import FrozenTrial, TrialState

from ..plain import counted
from ..plots import statistics, style
from .config import Objective
from .evaluate import shown
from .study import Study
from .summary import Report, counts_text, importances, scale

AXIS = 24   # characters of a name that fit beside a panel
KEYS = 8    # panels of the figure of keys
RATIOS = (1, 1.5, 2, 3, 5, 7)   # ticks of ratios, times powers of ten
FORMATS = ("png", "pdf")
DOT = {"linestyle": "", "marker": "o", "markersize": 2.4, "markeredgewidth": 0}
CANDIDATE, BEST = {**DOT, "color": "0.65"}, {**DOT, "color": style.COLOURS[1], "markersize": 3.6}


def write(study: Study, report: Report | None = None) -> list[Path]:
    """Draws what the study is enough for; the files."""
    style.use()
    objectives = study.config.objectives
    complete = [one for one in study.trials() if one.state == TrialState.COMPLETE]
    made = {}
    if complete:
        made["history"] = history(study, complete)
        for number, objective in enumerate(objectives):
            weights = list(importances(study, number).items())[:KEYS]
            if weights:
                made["keys" if len(objectives) == 1 else f"keys_{number}"] = keys_of(
                    objective, values_of(objective, number, complete), weights, complete)
        if len(objectives) > 1:
            made["front"] = front(study, complete)
    for variable in report.variables if report else ():
        made[f"report_{variable}"] = reported(study, report, variable)
    folder = study.folder.path / "figures"
    folder.mkdir(exist_ok=True)
    for name, fig in made.items():
        for kind in FORMATS:
            style.save(fig, folder / f"{name}.{kind}")
        style.plt.close(fig)
    return [folder / f"{name}.{kind}" for name in made for kind in FORMATS]


def values_of(objective: Objective, number: int, trials: Sequence[FrozenTrial]) -> np.ndarray:
    return shown(objective, np.array([one.values[number] for one in trials]))


def axis_label(objective: Objective) -> str:
    """Beside a subtitle that says the rest."""
    what = objective.name if len(objective.name) <= AXIS else "objective"
    return f"{what},\nrelative to {objective.reference}" if objective.reference else objective.name


def scaled(ax, objective: Objective, axis: str = "y") -> None:
    """Ratios stand on a logarithmic axis."""
    if objective.reference:
        ax.set(**{f"{axis}scale": "log"})
        style.log_ticks(getattr(ax, f"{axis}axis"), every=RATIOS)


def best_so_far(values: np.ndarray, objective: Objective) -> np.ndarray:
    return (np.minimum if objective.direction == "minimize" else np.maximum).accumulate(values)


def show_best(ax, values: np.ndarray, objective: Objective) -> None:
    """Scales the axis so that the best shows well: the worst tenth of the candidates may lie outside,
    but not the first, with which the search began."""
    ends = np.quantile(values, (0, 0.9) if objective.direction == "minimize" else (0.1, 1))
    shown_too = [values[0], *([1.0] if objective.reference else [])]
    low, high = min(*ends, *shown_too), max(*ends, *shown_too)
    ax.set_ylim(*((low * 0.97, high * 1.03) if objective.reference else
                  (low - 0.05 * (high - low), high + 0.05 * (high - low))))
    scaled(ax, objective)


def history(study: Study, complete: Sequence[FrozenTrial]):
    """Values by candidate and the best so far, a panel per objective."""
    objectives = study.config.objectives
    keys = [style.key("a candidate", CANDIDATE),
            style.key("the best so far", {"color": style.COLOURS[1], "linestyle": "-"})]
    fig, axes = style.frame(
        "What the search found", f"{counts_text(study)}. Mean over "
        f"{counted(len(study.searched), 'text')} that were searched and over budgets", 1,
        len(objectives), 2.3, keys, ("candidate", ""))
    at = [one.number for one in complete]
    for number, (ax, objective) in enumerate(zip(axes.flat, objectives)):
        values = values_of(objective, number, complete)
        ax.plot(at, values, **CANDIDATE)
        ax.step(at, best_so_far(values, objective), where="post", color=style.COLOURS[1])
        if objective.reference:
            ax.axhline(1, color=style.REFERENCE, linewidth=0.7)
        show_best(ax, values, objective)
        ax.set_ylabel(style.wrapped(objective.label, 44))
    return fig


def keys_of(objective: Objective, values: np.ndarray, weights: Sequence[tuple[str, float]],
            complete: Sequence[FrozenTrial]):
    """Values by what a key was set to, the keys that matter most first."""
    rows, columns = style.panel_grid(len(weights), 4)
    fig, axes = style.frame(
        "What the keys do", f"{objective.label}, by the value of a key; in the titles "
        "its share of importance (PED-ANOVA, times the share of candidates that "
        "have the key)", rows, columns, 1.45, [], ("", axis_label(objective)))
    for ax, (key, weight) in zip(axes.flat, weights):
        having = [(one.params[key], value, one.distributions[key])
                  for one, value in zip(complete, values) if key in one.params]
        at, heights, distributions = zip(*having)
        if words := getattr(distributions[0], "choices", None):
            spread = np.linspace(-0.25, 0.25, 7)   # points of one word beside each other
            at = [words.index(x) + spread[i % 7] for i, x in enumerate(at)]
            crowded = max(map(len, words)) * len(words) > 30
            ax.set_xticks(range(len(words)), words, rotation=30 if crowded else 0,
                          ha="right" if crowded else "center", rotation_mode="anchor")
            ax.set_xlim(-0.6, len(words) - 0.4)
        elif distributions[0].log:
            ax.set_xscale("log")
            style.log_ticks(ax.xaxis)
        ax.plot(at, heights, **DOT, color=style.COLOURS[0], alpha=0.6)
        show_best(ax, values, objective)
        ax.set_title(f"{key} ({weight:.2f})")
    style.hide_unused(axes, len(weights))
    return fig


def front(study: Study, complete: Sequence[FrozenTrial]):
    """Pairs of objectives: all candidates, and those that no other beats in every objective."""
    objectives = study.config.objectives
    rows, columns = style.panel_grid(len(objectives) - 1, 3)
    fig, axes = style.frame(
        "What one objective costs in another", counts_text(study), rows, columns, 2.5,
        [style.key("a candidate", CANDIDATE), style.key("no other is better in every objective", BEST)])
    for ax, pair in zip(axes.flat, ((0, other) for other in range(1, len(objectives)))):
        for ones, look in ((complete, CANDIDATE), (study.best(), BEST)):
            ax.plot(*(values_of(objectives[k], k, ones) for k in pair), **look)
        for k, axis in zip(pair, "xy"):
            scaled(ax, objectives[k], axis)
            text = objectives[k].label
            if objectives[k].budgets:
                text += f", at {', '.join(objectives[k].budgets)}"
            ax.set(**{f"{axis}label": style.wrapped(text, 44)})
    style.hide_unused(axes, len(objectives) - 1)
    return fig


def reported(study: Study, report: Report, variable: str):
    """Policies by budget over the texts set aside, the best of the search first."""
    objective = report.objective(variable)
    table = report.table(objective)
    budgets = list(study.config.budgets)
    looks = {record: style.line_style(i) for i, record in enumerate(list(table)[:style.MOST_LINES])}
    keys = [style.key(("found: " if record in report.best else "") + record, look)
            for record, look in looks.items()]
    fig, axes = style.frame(
        "On texts set aside", f"{objective.label}; mean over {counted(len(report.measured), 'text')} "
        f"not searched, band: 95 % interval over texts. {counts_text(study)}", 1, 1, 2.7,
        keys, ("budget", axis_label(objective)))
    at = range(len(budgets))
    for record, look in looks.items():
        mean, interval = statistics.over_traces(table[record].T, scale(objective))
        axes[0, 0].plot(at, shown(objective, mean), **look)
        style.band(axes[0, 0], at, shown(objective, interval), look, len(report.measured) > 1)
    scaled(axes[0, 0], objective)
    axes[0, 0].set_xticks(at, budgets)
    return fig
