"""Tests of the figures of risk, dynamics and key norms; see test_plots.py."""

import csv
import unittest
from pathlib import Path

import matplotlib.colors
import numpy as np

import fake_results
from test_plots import PlotTest  # says so, and stops, where modules are missing
from kvsim.plots import load
from kvsim.plots.figures import attention_cdf


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
        figure = attention_cdf.draw(load.open_results(path))
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

    def traces(self, *files):
        code, out, err = self.draw(*files, "-o", self.out, "--formats", "png,csv", "--overwrite",
                                   "--only", "attention_traces", "--budget", "0.2")
        self.assertEqual((code, err), (0, []))
        self.assertEqual([Path(path).name for path in out],
                         ["risk_traces.png", "risk_traces.csv",
                          "attention_traces.png", "attention_traces.csv"])
        rows = {}
        for page in ("risk_traces.csv", "attention_traces.csv"):
            with (self.out / page).open() as file:
                rows.update({(row["measure"], row["row"]): row for row in csv.DictReader(file)})
        return rows

    def of_trace(self, name, part, drop=()):
        def edit(data):
            data = fake_results.add_attention(data, seed=ord(name))
            return data.drop_vars(drop).assign_attrs(trace=f"/data/{name}.h5")
        return self.file(f"{name}.{part}.nc", edit=edit)

    def test_several_traces_are_summed_up_from_one_or_more_files_each(self):
        risks = [name for name in fake_results.add_attention(
            load.open_results(self.file()).data.load()).data_vars if name.startswith("risk")]
        first = self.of_trace("a", "attention", risks), self.of_trace("a", "risk", ["late_share"])
        rows = self.traces(*first, self.of_trace("b", "both"))
        one, two = (load.open_results(self.folder / name).data
                    for name in ("a.attention.nc", "b.both.nc"))
        late = [data["late_share"].values[1, 0].mean() for data in (one, two)]
        row = rows["evicted share of a query's top 20 %", "random"]
        for name, value in zip("ab", late):
            self.assertAlmostEqual(float(row[name]), value)
        self.assertAlmostEqual(float(row["mean"]), np.mean(late))
        self.assertTrue(float(row["low"]) <= np.mean(late) <= float(row["high"]))
        chance = [data["late_share_chance"].values[1, 0].mean() for data in (one, two)]
        self.assertAlmostEqual(np.mean(np.divide(late, chance)), float(
            rows["evicted share of the top 20 % over chance", "random"]["mean"]))
        row = rows["Spearman with true risk", "defensivekv"]
        self.assertAlmostEqual(float(row["b"]), two["risk_spearman"].values[:, 2].mean())
        drift = two["drift"].values[1, 0]
        row = rows["drift of the best entries, either way", "attention: median head"]
        self.assertAlmostEqual(float(row["b"]), np.median(np.abs(drift)))
        row = rows["locality in time (0: white noise)", "heads above 0.05"]
        self.assertAlmostEqual(float(row["b"]), (two["locality"].values > 0.05).mean())
        self.assertNotIn(("prior above true risk", "one query"), rows)  # it has no prior

    def test_a_single_trace_has_no_interval_and_a_file_without_measures_is_refused(self):
        self.traces(self.of_trace("a", "both"))
        self.refused(3, "cannot draw attention_traces: .*--metric", self.of_trace("a", "both"),
                     self.file("plain.nc"), "-o", self.out, "--only", "attention_traces")


if __name__ == "__main__":
    unittest.main()
