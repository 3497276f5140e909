"""Why outliers and losses disagree, by layer: studies/make.sh layers DIR -o figs/

DIR holds the runs that studies/losses.sh makes. Draws, by layer, the entries kept, the share of
steps with retained importance below 0.5, and the output error against the residual stream that
enters the last layer, for some policies at one budget; writes their numbers beside it.
"""

import argparse
from pathlib import Path

import numpy as np
import xarray

from kvsim.plots import style
from . import plan, runs

BUDGET = 0.35
SHOWN = ("snapkv", "defensivekv", "layer-defensivekv", "layer-defensivekv:code", "oracle-mean")
PANELS = (
    ("entries kept", "entries kept, share\nof the prompt"),
    ("outliers", "retained importance\nbelow 0.5, share of steps"),
    ("output error", "output error, relative\nto the residual stream"),
)


def by_layer(folder, text):
    """[panel, policy, layer] of one text."""
    part = next(one for one in runs.parts(folder, text) if {*SHOWN} <= {*one.policies()})
    with xarray.open_dataset(part.results, engine="h5netcdf") as every:
        at = every.sel(policy=list(SHOWN)).isel(
            budget=int(np.argmin(np.abs(every.budget.values - BUDGET))))
        kept = at.kept.mean("kv_head").values / int(every.prompt_len)
        outliers = (at.retained_importance < 0.5).mean("step").values
        absolute = at.output_error_absolute.values           # [policy, layer, step]
        stream = np.sqrt((absolute ** 2).sum(1)) / at.stream_error.values   # [policy, step]
        error = np.sqrt(((absolute / stream[:, None]) ** 2).mean(-1))
    return every.layer.values, np.array([kept, outliers, error])


def main():
    parser = argparse.ArgumentParser(prog="layers.py", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", metavar="DIR", type=Path)
    parser.add_argument("-o", "--out", required=True, type=Path, metavar="FIGS")
    options = parser.parse_args()
    texts = [text for text in plan.SHORT if runs.parts(options.folder, text)]
    found = [by_layer(options.folder, text) for text in texts]
    layers, values = found[0][0], np.mean([one for _, one in found], axis=0)
    style.use()
    keys = [style.key(policy, look) for policy, look in style.policy_looks(SHOWN).items()]
    fig, axes = style.frame(
        "Outliers by layer are not where the error is",
        f"{len(texts)} texts of about 700 tokens, budget {BUDGET:g}, means over texts. {plan.MODEL}.",
        len(PANELS), 1, 1.35, keys, ("layer", ""), sharex=True)
    rows = []
    for ax, (name, label), panel in zip(axes[:, 0], PANELS, values):
        for i, (policy, look) in enumerate(style.policy_looks(SHOWN).items()):
            ax.plot(layers, panel[i], **look)
            rows += [[name, policy, int(layer), f"{value:.4g}"]
                     for layer, value in zip(layers, panel[i])]
        ax.set_ylabel(label)
        ax.set_ylim(0, None)
    style.numbers(fig, ["panel", "policy", "layer", "value"], rows)
    options.out.mkdir(parents=True, exist_ok=True)
    for ending in ("png", "pdf", "csv"):
        style.save(fig, options.out / f"losses_layers.{ending}")
        print(options.out / f"losses_layers.{ending}")


if __name__ == "__main__":
    main()
