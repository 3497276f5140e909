"""The best setting of each preset at each budget with its 95 % interval, beside the
preset as it is: the table that `kvsim sweep --json` prints, by the measures of `--metric`.
"""

import functools

import numpy as np

from .. import load, measures, style

TITLE = "best settings of a sweep with intervals (kvsim sweep --json)"
READS = "sweep"
LOOKS = ({"color": style.COLOURS[0], "marker": "o", "linestyle": ""},
         {"color": style.COLOURS[1], "marker": "s", "linestyle": "", "fillstyle": "none",
          "markersize": 5.5})


def pages(document, options):
    # Without those at which no setting holds what the budget gives.
    rows = [row for row in document.data.get("rows", []) if row["value"] is not None]
    if not rows:
        raise load.Missing(f"{document.path}: no preset with several settings")
    shown = measures.chosen(options.metric, {row["measure"] for row in rows})
    rows = [row for row in rows if row["measure"] in shown]
    if not rows:
        raise load.Missing(f"{document.path}: no settings that {', '.join(shown)} tells apart")
    rows.sort(key=lambda row: shown.index(row["measure"]))
    presets = list(dict.fromkeys(row["preset"] for row in rows))
    return style.pages("best_settings", [[row for row in rows if row["preset"] == preset]
                                         for preset in presets],
                       functools.partial(draw, document.data))


FOLDS = {"mean": "mean over steps and layers", "worst": "worst step and layer",
         "rms": "rms over steps"}


def measure(row):
    return measures.words(row["measure"]), FOLDS[row["over"]]


def draw(data, rows, note):
    panels = list(dict.fromkeys((row["measure"], row["over"]) for row in rows))
    over = f"{data['traces']} traces" if data["traces"] > 1 else "circular blocks of steps of one trace"
    across, columns = style.panel_grid(len(panels), 2)
    deepest = max(sum((row["measure"], row["over"]) == panel for row in rows) for panel in panels)
    keys = [style.key(text, look)
            for text, look in zip(("best setting (named)", "preset as it is"),
                                  LOOKS)]
    fig, axes = style.frame(
        f"Best of {rows[0]['settings']} settings of {rows[0]['preset']}{note}",
        f"95 % intervals over {over}; % of the resamples in which the setting is best",
        across, columns, 0.55 + 0.3 * deepest, keys)
    for ax, panel in zip(axes.flat, panels):
        dots(ax, [row for row in rows if (row["measure"], row["over"]) == panel])
    style.hide_unused(axes, len(panels))
    return fig


def dots(ax, rows):
    for y, row in enumerate(rows):
        ax.plot([row["low"], row["high"]], [y, y], color=LOOKS[0]["color"], linewidth=1.2)
        ax.plot(row["value"], y, **LOOKS[0])
        if row["default"] is not None:
            ax.plot(row["default"], y, **LOOKS[1])
        changes = row["best"].removeprefix(row["preset"]).removeprefix(",") or "as it is"
        ax.text(0.01, y - 0.22, f"{changes}  ({100 * row['chosen']:.0f} %)", fontsize=5,
                transform=ax.get_yaxis_transform())
    ax.set_title(", ".join(measure(rows[0])))
    ax.set_yticks(range(len(rows)), [row["budget"] for row in rows])
    ax.set_ylim(len(rows) - 0.5, -0.8)
    ax.set_ylabel("budget")
    share = rows[0]["measure"].startswith("retained")
    ax.set_xlabel("fraction" if share else "relative")
    if not share:
        style.error_axis(ax, np.array([row["value"] for row in rows]), "x")
