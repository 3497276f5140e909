"""How far predicted scores are from those that come, by predictor (KeepKV, Figure 2d)."""

import numpy as np

from .. import style

TITLE = "error of predicted attention scores by predictor"
SUMMARIES = {"prediction_error_median": "median",
             "prediction_error_trimmed_mean": "mean without lowest and highest tenth",
             "prediction_error_weighted_mean": "mean weighted by attention"}
NEEDS = tuple(SUMMARIES)
LACKING = "no prediction_error; kvsim replay --metric prediction_error measures it"
SCORES = {"exp-logit": "score exp(logit)", "attention": "score A (softmax)"}


def draw(results, options):
    predictors, scores = (list(map(str, results.data[name].values)) for name in ("predictor", "score"))
    looks = {name: {**style.line_style(k), "linestyle": ""} for k, name in enumerate(SUMMARIES)}
    fig, axes = style.frame(
        "Error of predicted scores, by predictor",
        f"{results.subtitle}\nmarker: median over layers; bar: range over layers", 1, len(scores),
        2.6, [style.key(SUMMARIES[name], look) for name, look in looks.items()],
        ("|predicted / true - 1| (relative)", "predictor"), sharey=True)
    for ax, score in zip(axes[0], scores):
        for k, (name, look) in enumerate(looks.items()):
            values = results.variable(name, "layer", "score", "predictor").sel(score=score)
            if values.notnull().any():
                low, middle, high = values.quantile([0, 0.5, 1], "layer")
                place = np.arange(len(predictors)) + 0.22 * (k - 1)
                ax.hlines(place, low, high, color=look["color"], linewidth=0.8)
                ax.plot(middle, place, **look)
        if ax.lines:
            ax.set_xscale("log")
            style.log_ticks(ax.xaxis)
            ax.set_title(SCORES.get(score, score))
        else:
            style.note_undefined(ax)
    axes[0, 0].set_yticks(range(len(predictors)), predictors)
    axes[0, 0].invert_yaxis()
    return fig
