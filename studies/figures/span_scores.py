"""How well each labelled span survives: its class score, the retained importance of its own
entries, by budget (Pitfalls, Figures 2 and 3).
"""

from .. import load
from . import losses
from .keep_rate import span_lines

TITLE = "class score per span by budget"
NEEDS = ("span", losses.SCORE)
LACKING = "no labelled spans"


def draw(results, options):
    fig, _ = span_lines(results, load.competitors(results.policies), losses.scores(results).sortby("budget"),
                        "Class score of each span, mean over layers and steps",
                        "\nclass score: retained importance of the span's own entries, a proxy",
                        "retained importance of the span")
    return fig
