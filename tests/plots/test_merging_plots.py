"""Tests of the figures about merging, on a small made-up results file.
Run: python3 tests/plots/test_merging_plots.py"""

import json
import sys
import unittest
from types import SimpleNamespace
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

from test_plots import PlotTest  # (skips when matplotlib is missing)

import numpy as np
from kvsim.plots import load
from kvsim.plots.figures import attention_sag

RECORDS = {"snapkv": {}, "snapkv,merge=convex": {"merge": "convex"},
           "snapkv,schedule=periodic,period=4": {"schedule": "periodic", "period": "4"},
           "snapkv,quantize=kivi": {"quantize": "kivi"}}
DEFAULTS = {"merge": "drop", "schedule": "prefill", "period": "64", "quantize": "none",
            "quant_bits": "4"}
FIGURES = {"attention_sag"}


def measured(data):
    """Adds what a run of these records measures, in the shapes of docs/results.md."""
    cell, layer = ("policy", "budget"), ("policy", "budget", "layer")
    sizes = dict(data.sizes)
    data = data.assign_coords(bound=np.array(["paper", "scale", "bias"], object),
                              delay=[0, 1, 8, 64, 512], score=np.array(["attention"], object),
                              predictor=np.array(["ema 0.9", "last"], object))

    def filled(*dims):
        shape = [sizes.get(dim, data.sizes[dim]) for dim in dims]
        return dims, np.linspace(0.1, 0.9, int(np.prod(shape))).reshape(shape)
    for name in ("attention_sag", "attention_shift", "dropped_attention", "log_mass_defect"):
        data[name] = filled(*layer, "step")
    for name in ("bound_pairs", "bound_share_applicable", "bound_share_violated", "bound_median",
                 "bound_perturbation"):
        data[name] = filled(*layer, "bound", "delay")
    for name in ("median", "trimmed_mean", "weighted_mean"):
        data[f"prediction_error_{name}"] = filled("layer", "score", "predictor")
    for name in ("compression", "decode_time", "decode_speedup"):
        data[name] = filled(*cell)
    data["compression"] = 1 + 9 * data["compression"]
    data.attrs["config"] = json.dumps({"policies": [
        {"record": record, "parameters": {**DEFAULTS, **keys}} for record, keys in
        RECORDS.items()]})
    return data


def undefined(data):
    """The same with NaN everywhere."""
    data = measured(data)
    for name in data.data_vars:
        if data[name].dtype.kind == "f":
            data[name][...] = np.nan
    return data


class MergingFiguresTest(PlotTest):
    def results(self, **options):
        return self.file(policies=tuple(RECORDS), edit=measured, **options)

    def test_every_figure_is_drawn_from_what_it_needs(self):
        code, out, err = self.draw(self.results(), "-o", self.out, "--formats", "png", "--only",
                                   ",".join(sorted(FIGURES)))
        self.assertEqual((code, err), (0, []))
        self.assertEqual({Path(path).stem for path in out}, FIGURES)

    def test_a_file_without_merging_has_none_of_them(self):
        _, out, err = self.planned(self.file(), "-o", self.out, "--formats", "png")
        self.assertFalse({Path(path).stem for path in out} & FIGURES)
        self.assertFalse([line for line in err if any(name in line for name in FIGURES)])
        for name in sorted(FIGURES):
            self.refused(3, name, self.file(), "-o", self.out, "--only", name)

    def test_the_sag_of_records_without_merged_slots_is_drawn_and_explained(self):
        def moves_values(data):
            data = measured(data)
            data.attrs["config"] = data.attrs["config"].replace('"convex"', '"cam"')
            cam = list(RECORDS).index("snapkv,merge=convex")
            data["attention_sag"][cam] = data["attention_shift"][cam] = 0
            data["log_mass_defect"][cam] = np.nan
            return data
        results = load.open_results(self.file(policies=tuple(RECORDS), edit=moves_values))
        self.assertEqual(attention_sag.find(results, None), ["snapkv,merge=convex"])
        label = attention_sag.legend(results, results.budgets[0], "snapkv,merge=convex").get_label()
        self.assertIn("(no merged slot: sag is 0)", label.replace("\n", " "))
        fig = attention_sag.draw(results, SimpleNamespace(budget="0.2"), ["snapkv,merge=convex"])
        sag, dropped = ([line.get_ydata() for line in ax.lines[1:]] for ax in fig.axes[:2])
        self.assertTrue(all((line == 0).all() for line in sag))
        self.assertTrue(all((line > 0).all() for line in dropped))


if __name__ == "__main__":
    unittest.main()
