"""How far predicted scores are from those that come, by predictor (KeepKV, Figure 2d)."""

import numpy as np

from .. import style

TITLE = "error of predicted attention scores by predictor"
SUMMARIES = (("prediction_error_median", "median"),
             ("prediction_error_trimmed_mean", "mean without lowest and highest tenth"),
             ("prediction_error_weighted_mean", "mean weighted by attention"))
SCORES = {"exp-logit": "score exp(logit)", "attention": "score A (softmax)"}


def pages(results, options):
    results.need("prediction_error", *(name for name, _ in SUMMARIES))
    return [("prediction_error", lambda: draw(results))]


def draw(results):
    predictors = [str(name) for name in results.data["predictor"].values]
    scores = [str(name) for name in results.data["score"].values]
    fig, axes = style.frame(
        "Error of predicted scores, by predictor",
        f"{results.subtitle}\nmarker: median over layers; bar: range over layers", 1, len(scores),
        2.6, [style.key(what, {**style.line_style(k), "linestyle": ""})
              for k, (_, what) in enumerate(SUMMARIES)],
        ("|predicted / true - 1| (relative)", "predictor"), sharey=True)
    rows = np.arange(len(predictors))
    for ax, score in zip(axes[0], scores):
        for k, (name, _) in enumerate(SUMMARIES):
            values = results.variable(name, "layer", "score", "predictor").sel(score=score)
            if values.isnull().all():
                continue
            low, middle, high = values.quantile([0, 0.5, 1], "layer")
            look = style.line_style(k)
            place = rows + 0.22 * (k - 1)
            ax.hlines(place, low, high, color=look["color"], linewidth=0.8)
            ax.plot(middle, place, **{**look, "linestyle": ""})
        if not ax.lines:
            style.note_undefined(ax)
            continue
        ax.set_xscale("log")
        style.log_ticks(ax.xaxis)
        ax.set_title(SCORES.get(score, score))
    axes[0, 0].set_yticks(rows, predictors)
    axes[0, 0].invert_yaxis()
    return fig
