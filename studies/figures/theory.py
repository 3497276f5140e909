"""Mean, max and max with prior as estimates of a risk that is rarely seen (DefensiveKV, App. C).

Reads what `kvsim theory --json` prints. Lines are closed forms, markers the simulation; bars of 4
standard errors are mostly smaller than the markers."""

import numpy as np

from .. import style

TITLE = "estimates of a rarely seen risk: closed forms and simulation"
READS = "theory"
ESTIMATORS = (("mean", "E[mean]", "P(mean outranks steady)"),
              ("max", "E[max]", "P(max outranks steady)"),
              ("max with prior", "E[max(X, prior)]", "P(max with prior outranks steady)"))


def draw(document, options):
    data = document.data
    given = data["parameters"]
    chain = "independent observations" if given["dwell"] is None else \
        f"Markov chain, mean high dwell {given['dwell']:g}"
    keys = [style.key(name, style.line_style(i)) for i, (name, _, _) in enumerate(ESTIMATORS)]
    keys.append(style.key("true risk", {"color": "black", "linestyle": ":", "marker": ""}))
    fig, axes = style.frame(
        "Estimates of a rarely seen risk",
        f"high: U[{given['b']:g}, {given['c']:g}] with probability {given['epsilon']:g}; low: "
        f"U[0, {given['a']:g}]; {chain}; prior {given['prior']:g}; steady entry "
        f"{given['steady']:g}\nlines: closed form; markers: {given['samples']} samples with "
        "4 standard errors (the mean's ranking has no closed form)", 1, 3, 2.3, keys)
    estimates, distribution, ranking = axes[0]
    for i, (_, value, rank) in enumerate(ESTIMATORS):
        curve(estimates, data, value, i)
        curve(ranking, data, rank, i)
    estimates.axhline(given["c"], color="black", linestyle=":", linewidth=0.9)
    estimates.set(title="expected estimate", xlabel="window m (observations)", ylabel="importance", ylim=(0, None))
    ranking.set(title="estimate is above the steady entry's", xlabel="window m (observations)",
                ylabel="probability", ylim=(-0.03, 1.03))
    look, of_maximum = style.line_style(1), data["distribution"]
    distribution.plot(of_maximum["x"], of_maximum["closed_form"], **{**look, "marker": ""})
    distribution.plot(of_maximum["x"], of_maximum["monte_carlo"], **{**look, "linestyle": "", "markevery": 10})
    distribution.set(title=f"distribution of the maximum, m = {given['m']}", xlabel="x (importance)",
                     ylabel="P(max ≤ x)", ylim=(-0.03, 1.03))
    return fig


def curve(ax, data, quantity, index):
    sizes = [window["m"] for window in data["windows"]]
    rows = [next(row for row in window["rows"] if row["quantity"] == quantity) for window in data["windows"]]
    look = style.line_style(index)
    closed = [np.nan if row["closed_form"] is None else row["closed_form"] for row in rows]
    ax.plot(sizes, closed, **{**look, "marker": ""})
    ax.errorbar(sizes, [row["monte_carlo"] for row in rows],
                [4 * row["standard_error"] for row in rows], **{**look, "linestyle": ""}, elinewidth=0.8)
    ax.set_xscale("log", base=2)
    ax.set_xticks(sizes, [str(size) for size in sizes])
    ax.minorticks_off()
