"""Figures of a study, in the house's style: figures/*.png and *.pdf of its folder."""

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from optuna.trial import FrozenTrial, TrialState

from ..plain import counted
from ..plots import statistics, style
from .config import Objective
from .report import LOOP_LOSS, Report, scale
from .study import Study
from .summary import counts_text, importances, shown

AXIS = 24   # characters of a name that fit beside a panel
KEYS = 8          # panels of the figure of keys
FORMATS = ("png", "pdf")
DOT = {"linestyle": "", "marker": "o", "markersize": 2.4, "markeredgewidth": 0}


def write(study: Study, report: Report | None = None) -> list[Path]:
    """Draws what the study is enough for; the files."""
    style.use()
    complete = [one for one in study.trials() if one.state == TrialState.COMPLETE]
    made = {}
    if complete:
        made["history"] = history(study, complete)
        made |= {f"keys{suffix}": fig for suffix, fig in keys_of(study, complete)}
    if len(study.config.objectives) > 1 and complete:
        made["front"] = front(study, complete)
    if report is not None:
        for variable in report.variables + ([LOOP_LOSS] if report.closed_loop else []):
            made[f"report_{variable}"] = reported(study, report, variable)
    folder = study.folder.path / "figures"
    folder.mkdir(exist_ok=True)
    files = []
    for name, fig in made.items():
        for kind in FORMATS:
            style.save(fig, folder / f"{name}.{kind}")
            files.append(folder / f"{name}.{kind}")
        style.close(fig)
    return files


def axis_label(objective: Objective) -> str:
    """Beside a subtitle that says the rest."""
    what = objective.name if len(objective.name) <= AXIS else "objective"
    return f"{what},\nrelative to {objective.reference}" if objective.reference else objective.name


def scaled(ax, objective: Objective, axis: str = "y") -> None:
    """Ratios stand on a logarithmic axis."""
    if objective.reference:
        getattr(ax, f"set_{axis}scale")("log")
        chosen = getattr(ax, f"{axis}axis")
        low, high = getattr(ax, f"get_{axis}lim")()
        ticks = ratio_ticks(low, high)
        chosen.set_ticks(ticks, [f"{one:g}" for one in ticks])
        chosen.minorticks_off()
        getattr(ax, f"set_{axis}lim")(low, high)


def ratio_ticks(low: float, high: float) -> list[float]:
    """A few round numbers between two ratios."""
    steps = [(1,), (1, 3), (1, 2, 5), (1, 1.5, 2, 3, 5, 7),
             (1, 1.1, 1.2, 1.3, 1.4, 1.5, 1.6, 1.7, 1.8, 1.9, 2, 2.5, 3, 4, 5, 6, 7, 8, 9, 9.5)]
    found: list[float] = []
    for choice in steps:
        powers = range(math.floor(math.log10(low)) - 1, math.ceil(math.log10(high)) + 1)
        found = [round(m * 10.0 ** p, 12) for p in powers for m in choice
                 if low <= m * 10.0 ** p <= high]
        if len(found) >= 3:
            break
    return found[::max(1, len(found) // 6)]


def history(study: Study, complete: Sequence[FrozenTrial]):
    """Values by candidate and the best so far, a panel per objective."""
    objectives = study.config.objectives
    keys = [style.key("a candidate", {**DOT, "color": "0.65"}),
            style.key("the best so far", {"color": style.COLOURS[1], "linestyle": "-"})]
    fig, axes = style.frame(
        "What the search found", f"{counts_text(study)}. Mean over "
        f"{counted(len(study.searched), 'text')} that were searched and over budgets", 1,
        len(objectives), 2.3, keys, ("candidate", ""))
    for number, (ax, objective) in enumerate(zip(axes.flat, objectives)):
        at = [one.number for one in complete]
        values = shown(objective, np.array([one.values[number] for one in complete]))
        best = best_so_far(values, objective)
        ax.plot(at, values, **DOT, color="0.65")
        ax.step(at, best, where="post", color=style.COLOURS[1])
        if objective.reference:
            ax.axhline(1, color=style.REFERENCE, linewidth=0.7)
        ax.set_ylim(*window(values, best, objective))
        scaled(ax, objective)
        ax.set_ylabel(style.wrapped(objective.label, 44))
    return fig


def best_so_far(values: np.ndarray, objective: Objective) -> np.ndarray:
    return (np.minimum if objective.direction == "minimize" else np.maximum).accumulate(values)


def window(values: np.ndarray, best: np.ndarray, objective: Objective) -> tuple[float, float]:
    """Limits that show the best well: the worst tenth of the candidates may lie outside."""
    down = objective.direction == "minimize"
    far = np.quantile(values, 0.9 if down else 0.1)
    low, high = sorted((float(best[-1]), float(max(far, best[0]) if down else min(far, best[0]))))
    if objective.reference:
        low, high = min(low, 1.0), max(high, 1.0)
        margin = max(1.03, (high / low) ** 0.05)
        return low / margin, high * margin
    margin = 0.05 * (high - low) or 0.05 * abs(high) or 1.0
    return low - margin, high + margin


def keys_of(study: Study, complete: Sequence[FrozenTrial]):
    """Values by what a key was set to, the keys that matter most first."""
    for number, objective in enumerate(study.config.objectives):
        weights = list(importances(study, number).items())[:KEYS]
        if not weights:
            continue
        rows, columns = style.panel_grid(len(weights), 4)
        fig, axes = style.frame(
            "What the keys do", f"{objective.label}, by the value of a key; in the titles "
            "its share of importance (PED-ANOVA, times the share of candidates that "
            "have the key)", rows, columns, 1.45,
            [], ("", axis_label(objective)))
        values = shown(objective, np.array([one.values[number] for one in complete]))
        limits = window(values, best_so_far(values, objective), objective)
        for ax, (key, weight) in zip(axes.flat, weights):
            slice_of(ax, key, complete, values)
            ax.set_ylim(*limits)
            scaled(ax, objective)
            ax.set_title(f"{key} ({weight:.2f})")
        style.hide_unused(axes, len(weights))
        yield ("" if len(study.config.objectives) == 1 else f"_{number}"), fig


def slice_of(ax, key: str, complete: Sequence[FrozenTrial], values: np.ndarray) -> None:
    having = [(one.params[key], value) for one, value in zip(complete, values) if key in one.params]
    if all(isinstance(x, str) for x, _ in having):
        distribution = next(one.distributions[key] for one in complete if key in one.distributions)
        words = list(distribution.choices)
        spread = np.linspace(-0.25, 0.25, 7)
        ax.plot([words.index(x) + spread[i % 7] for i, (x, _) in enumerate(having)],
                [value for _, value in having], **DOT, color=style.COLOURS[0], alpha=0.6)
        crowded = max(map(len, words)) * len(words) > 30
        ax.set_xticks(range(len(words)), words, rotation=30 if crowded else 0,
                      ha="right" if crowded else "center", rotation_mode="anchor")
        ax.set_xlim(-0.6, len(words) - 0.4)
        return
    ax.plot([x for x, _ in having], [value for _, value in having], **DOT,
            color=style.COLOURS[0], alpha=0.6)
    if any(getattr(one.distributions.get(key), "log", False) for one in complete):
        ax.set_xscale("log")
        style.log_ticks(ax.xaxis)


def front(study: Study, complete: Sequence[FrozenTrial]):
    """Pairs of objectives: all candidates, and those that no other beats in every objective."""
    objectives = study.config.objectives
    pairs = [(0, other) for other in range(1, len(objectives))]
    keys = [style.key("a candidate", {**DOT, "color": "0.65"}),
            style.key("no other is better in every objective",
                      {**DOT, "color": style.COLOURS[1], "markersize": 3.6})]
    rows, columns = style.panel_grid(len(pairs), 3)
    fig, axes = style.frame("What one objective costs in another", counts_text(study), rows,
                            columns, 2.5, keys)
    best = study.best()
    for ax, pair in zip(axes.flat, pairs):
        for ones, look in ((complete, {"color": "0.65"}),
                           (best, {"color": style.COLOURS[1], "markersize": 3.6})):
            points = [shown(objectives[k], np.array([one.values[k] for one in ones])) for k in pair]
            ax.plot(*points, **{**DOT, **look})
        for k, axis in zip(pair, "xy"):
            scaled(ax, objectives[k], axis)
            text = objectives[k].label
            if objectives[k].budgets:
                text += f", at {', '.join(objectives[k].budgets)}"
            getattr(ax, f"set_{axis}label")(style.wrapped(text, 44))
    style.hide_unused(axes, len(pairs))
    return fig


def reported(study: Study, report: Report, variable: str):
    """Policies by budget over the texts set aside, the best of the search first."""
    objective = report.objective(variable)
    table = report.table(variable, objective)
    budgets = list(study.config.budgets)
    records = list(table)[:style.MOST_LINES]
    looks = {record: style.line_style(i) for i, record in enumerate(records)}
    keys = [style.key(("found: " if record in report.best else "") + record, looks[record])
            for record in records]
    fig, axes = style.frame(
        "On texts set aside", f"{objective.label}; mean over {counted(len(report.measured), 'text')} "
        f"not searched, band: 95 % interval over texts. {counts_text(study)}", 1, 1, 2.7,
        keys, ("budget", axis_label(objective)))
    at = range(len(budgets))
    for record in records:
        mean, interval = statistics.over_traces(table[record].T, scale(objective))
        axes[0, 0].plot(at, shown(objective, mean), **looks[record])
        if len(report.measured) > 1:
            style.band(axes[0, 0], at, shown(objective, interval), looks[record])
    scaled(axes[0, 0], objective)
    axes[0, 0].set_xticks(at, budgets)
    return fig
