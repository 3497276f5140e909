"""Tests of the figures of risk, dynamics and key norms; see tests/plots/test_plots.py."""

import csv
import unittest
from pathlib import Path

import fake_results
import findings.plot  # noqa: F401  (adds the figures of studies/figures)
import matplotlib.colors
import numpy as np
from kvsim.plots import load
from kvsim.plots.figures import attention_cdf
from test_plots import PlotTest


class AttentionTest(PlotTest):
    """Figures of what is measured of the attention itself."""

    PAGES = {"risk": ["risk", "risk-layers"], "attention_cdf": ["attention_cdf"],
             "late_importance": ["late_importance"], "locality": ["locality"],
             "drift": ["drift", "drift-layers"], "key_norm": ["key_norm"],
             "importance_correlation": ["importance_correlation"]}

    def drawn(self, **options):
        code, out, err = self.draw(self.file(**options), "-o", self.out, "--formats", "png",
                                   "--overwrite", "--only", ",".join(self.PAGES))
        self.assertEqual((code, err), (0, []))
        return [Path(path).stem for path in out]

    def test_every_measure_has_its_figure(self):
        self.assertEqual(self.drawn(edit=fake_results.add_attention),
                         [page for pages in self.PAGES.values() for page in pages])

    def test_one_layer_and_undefined_values_can_be_drawn(self):
        def blank(data):
            data = fake_results.add_attention(data)
            for name in data.data_vars:
                if data[name].dtype.kind == "f":
                    data[name][...] = np.nan
            return data
        self.drawn(layers=(3,), edit=fake_results.add_attention)
        self.drawn(edit=blank)

    def test_each_layer_has_its_field_of_the_colour_bar(self):
        layers = (0, 5, 29)
        path = self.file(layers=layers, edit=fake_results.add_attention)
        figure = attention_cdf.draw(load.open_results(path), None)
        bar = figure.axes[-1]
        self.assertEqual([text.get_text() for text in bar.get_yticklabels()], ["0", "5", "29"])
        norm = bar._colorbar.norm
        for line, at in zip(figure.axes[0].lines, bar.get_yticks()):
            self.assertEqual(matplotlib.colors.to_rgba(line.get_color()),
                             bar._colorbar.cmap(norm(at)))

    def test_without_the_measure_each_names_the_metric_to_ask_for(self):
        for name in self.PAGES:
            self.refused(3, f"cannot draw {name}: .*--metric", self.file(), "-o", self.out,
                         "--only", name)

    def test_the_table_of_estimators_holds_means_over_layers(self):
        path = self.file(edit=fake_results.add_attention)
        self.draw(path, "-o", self.out, "--formats", "csv", "--only", "risk")
        with (self.out / "risk-layers.csv").open() as file:
            rows = {row["estimator"]: row for row in csv.DictReader(file)}
        wanted = load.open_results(path).data["risk_spearman"].values.mean(axis=0)
        for name, value in zip(("single", "max_prior", "defensivekv"), wanted):
            self.assertAlmostEqual(float(rows[name]["risk_spearman"]), value)

if __name__ == "__main__":
    unittest.main()
