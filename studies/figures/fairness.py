"""Gain of a whitelist, fair eviction or debiasing over the policy that it constrains
(Pitfalls, Table 1), half the sum of what the losses of two spans lose; and what it costs.

From one results file, or two per text: that of the request that needs the directive, and that of
the request to leak it. See losses.py. Below the gains stand the stream error and, where the
closed loop of a trace was given, the divergence of the model's predictions, with those of the
policy itself and of `random`; crosses mark budgets at which a constraint wrecks the cache.
"""

import functools

from .. import load, statistics, style
from . import losses

TITLE = "gain of whitelist, fair and debiased eviction over the policy itself"
READS = "several"
PAGE = 4
PLAIN = {"color": "black", "linestyle": "-", "marker": ""}


def pages(several, options):
    lost = losses.of(several)
    bases = losses.variants(several[0], lost)
    if not bases:
        raise load.NotMeasured(f"{several[0].path}: no policy with and without a constraint")
    return style.pages("fairness", style.groups(list(bases), PAGE),
                       functools.partial(draw, several[0].model, lost, bases))


def draw(model, lost, bases, group, note):
    changes = list(dict.fromkeys(losses.change(one, base) for base in group for one in bases[base]))
    looks = {text: style.line_style(i) for i, text in enumerate(changes)}
    beside = {"the policy itself": PLAIN} | ({"random": losses.RANDOM} if lost.random else {})
    rows = 1 + len(lost.damage)
    lines = 1 + max(len(bases[base]) for base in group)
    fig, axes = style.frame(
        f"Gain over the unconstrained policy, and its cost{note}",
        f"{model}; {lost.described}\ngain: mean fall of {' and '.join(lost.labels)}; "
        "numbers: mean ± standard deviation over budgets below 1"
        + (", [95 % interval over texts (t)]" if len(lost.texts) > 1 else "")
        + f", budgets wrecked\n{lost.wreck_rule}", rows, len(group),
        1.35 + 0.1 * lines / rows,
        [style.key(*one) for one in (looks | (beside if lost.damage else {})).items()],
        (style.BUDGET, ""), sharex=True, sharey="row")
    table = []
    for column, base in zip(axes.T, group):
        table += draw_gains(column[0], lost, base, bases[base], looks)
        losses.draw_damage(column[1:], lost, base, {base: PLAIN},
                           {one: looks[losses.change(one, base)] for one in bases[base]})
    losses.name_rows(axes, lost, "gain (fraction of importance)")
    style.numbers(fig, ["policy", "variant", "mean", "deviation", "low", "high", "wrecked",
                        *(f"{what}budget {budget:g}" for what in ("", *(
                            f"{measure}, " for measure in lost.damage), "texts wrecked, ")
                          for budget in lost.budgets)], table)
    return fig


def draw_gains(ax, lost, base, variants, looks):
    """Gains of the variants of one policy, half of what both losses fall by at budgets that drop
    something, and their rows of the table."""
    at, table = lost.budgets, []
    texts = len(lost.texts) > 1
    title = [style.wrapped(base, 36)]
    for variant in variants:
        gain = (lost.points(base) - lost.points(variant)).mean("loss", skipna=False)
        gain = gain.where(gain.budget < 1)
        text, wrecked = losses.change(variant, base), lost.wrecked(variant, base)
        line, band = statistics.over_traces(gain.transpose("budget", "text"))
        ax.plot(at, line, **looks[text])
        style.band(ax, at, band, looks[text], texts)
        bad = (wrecked.mean("text") >= 0.5).values   # of half of the texts
        ax.plot(at[bad], line[bad], **losses.CROSS)
        mean, (low, high) = statistics.over_traces(gain.mean("budget"))
        spread = float(gain.mean("text").std("budget"))
        name = f"{text}:\n" if len(text) > 24 else f"{text}: "   # the panel is not wider
        title.append(f"{name}{mean:+.3f} ± {spread:.3f}"
                     + (f" [{low:+.3f}, {high:+.3f}]" if texts else "")
                     + (f", {bad.sum()} wrecked" if bad.any() else ""))
        table.append([base, text, mean, spread, low, high, bad.sum(), *line,
                      *(value for damage in lost.damage.values()
                        for value in losses.over_texts(damage, variant).values),
                      *wrecked.sum("text").values])
    ax.axhline(0, **style.DOTTED)
    ax.set_title("\n".join(title), fontsize=5.5)
    return table
