"""How well each labelled span survives: its class score, the retained importance of its own
entries, by budget (Pitfalls, Figures 2 and 3).
"""

import functools

from .. import load, losses, style

TITLE = "class score per span by budget"


def pages(results, options):
    results.need_spans(losses.SCORE)
    groups = [load.competitors(results.policies)]
    return style.pages("span_scores", groups, functools.partial(draw, results))


def draw(results, policies, note):
    scores = losses.scores(results).sortby("budget")
    looks = {span: style.line_style(i) for i, span in enumerate(results.spans)}
    keys = [style.key(span, look, scores.sel(span=span)) for span, look in looks.items()]
    rows, columns = style.panel_grid(len(policies), 5 if len(policies) > 4 else 4)
    titles, lines = style.titles(policies, 26)
    fig, axes = style.frame(
        f"Class score of each span, mean over layers and steps{note}",
        f"{results.subtitle}\nclass score: retained importance of the span's own entries, a proxy",
        rows, columns, (1.35 if rows > 1 else 1.8) + 0.1 * lines, keys,
        (style.budget_label(results), "retained importance of the span"),
        sharex=True, sharey=True)
    for ax, policy, title in zip(axes.flat, policies, titles):
        for span, look in looks.items():
            ax.plot(scores.budget, scores.sel(policy=policy, span=span), **look)
        ax.set_title(title, fontsize=6)
        ax.set_ylim(-0.03, 1.03)
    style.hide_unused(axes, len(policies))
    return fig
