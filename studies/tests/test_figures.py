"""Tests of the figures of the pages, and of what is read off those of `kvsim plot`."""

import contextlib
import csv
import io
import json
import unittest
from pathlib import Path

import fake_results
import findings.plot  # noqa: F401  (adds the figures of studies/figures)
import numpy as np
from findings import drawn, layers, losses, merging_numbers, rehearsal
from kvsim.plots import load, looks, statistics, style
from kvsim.plots.figures import bias_index, memory_error, merging_budget, needles, periodic, span_order
from test_merging_plots import RECORDS, measured, undefined
from test_plots import THEORY, PlotTest

HERE = Path(__file__).resolve().parents[1]
MERGING = {"merging_budget", "merge_bound", "periodic", "memory_error", "decode_latency",
           "prediction_error"}


class FiguresTest(PlotTest):
    def test_panels_above_a_gap_have_numbers_and_long_titles_several_lines(self):
        path = self.file(spans=("defense", "middle", "a_span_of_a_name_that_no_panel_has_room_for",
                                "directive"), policies=("random", "snapkv"))
        figure = bias_index.draw(load.open_results(path), None)
        figure.draw_without_rendering()
        shown = [bool(ax.xaxis.get_tick_params()["labelbottom"]) for ax in figure.axes]
        self.assertEqual(len(figure.axes), 5)
        self.assertEqual(shown, [False, False, True, True, True])
        for ax in figure.axes:
            self.assertLessEqual(ax.title.get_window_extent().x1, figure.bbox.x1)
        self.assertIn("\n", figure.axes[2].get_title())

    def test_the_json_of_theory_is_drawn(self):
        path = self.folder / "theory.json"
        path.write_text(json.dumps(THEORY))
        code, out, err = self.draw(path, "-o", self.out, "--formats", "png")
        self.assertEqual((code, out, err), (0, [str(self.out / "theory.png")], []))

    def test_a_policy_keeps_its_colour_whoever_else_is_there(self):
        for several in (losses.DRAWN, layers.SHOWN, rehearsal.DRAWN):
            for policy, look in looks.of(tuple(several)).items():
                if "=" not in policy:
                    self.assertEqual(look, looks.of((policy,))[policy],
                                     f"{policy} gives way to another: choose another SALT")

    def test_the_picture_of_losses_is_drawn_from_its_table_with_a_name_at_every_line(self):
        with (HERE / "losses/losses_summary.csv").open(newline="", encoding="utf-8") as file:
            rows = list(csv.reader(file))
        figure = losses.draw(rows)
        style.save(figure, Path(self.folder, "losses.png"))   # places the names
        records = {name: record for record, name in losses.NAMES.items()}
        for ax, length in zip(figure.axes, ("short", "long"), strict=True):
            names = [records.get(text.get_text(), text.get_text()) for text in ax.texts]
            self.assertEqual(sorted(names), sorted(set(losses.DRAWN) - {losses.ONE_RULE}))
            self.assertLessEqual(len(names), 8, "few lines")
            self.assertEqual(len(ax.collections), len(losses.BANDS))
            drawn = {line.get_color(): line.get_ydata() for line in ax.lines
                     if line.get_marker() not in ("", "None")}
            for text, name in zip(ax.texts, names):
                own = [float(row[4]) for row in rows if
                       row[:2] == [length, name] and row[3] == "kl_relative"]
                self.assertEqual(list(drawn[text.get_color()]), own)
        self.assertIn("log scale", figure.subfigs[0]._supylabel.get_text())

    def test_numbers_over_traces_are_means_with_intervals(self):
        errors = (0.1, 0.2, 0.6)
        for name, error in zip("abc", errors):
            def edit(data, error=error):
                data = measured(data)
                data["output_error"][...] = error
                return data
            self.file(f"{name}.merges.nc", policies=tuple(RECORDS), edit=edit)
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            merging_numbers.main(self.folder, ["a", "b", "c"])
        _, (low, high) = statistics.over_traces(errors)
        self.assertIn(f"| `snapkv` | 0.300 [{low:.3f}, {high:.3f}] |", out.getvalue())
        self.assertIn("| `ema 0.9` |", out.getvalue())
        self.assertIn("| `snapkv` | scale |", out.getvalue())

    def test_maps_of_keep_rates_hold_every_layer_and_budget_and_end_with_all_entries(self):
        path = self.file()
        results = load.open_results(path)
        code, _, _ = self.draw(path, "-o", self.out, "--only", "keep_rate_ratios",
                               "--formats", "csv")
        self.assertEqual(code, 0)
        with open(self.out / "keep_rate_ratios.csv", encoding="utf-8", newline="") as file:
            head, *rows = csv.reader(file)
        self.assertEqual(head, ["policy", "span", "layer", "budget 0.2", "budget 0.5"])
        rates = results.variable("keep_rate", "policy", "span", "layer", "budget")
        bias = results.variable("bias_index", "policy", "span", "layer", "budget")
        spans = [str(span) for span in results.data["span"].values]
        dropping = [one for one in results.policies if one != "full"]
        self.assertEqual(len(rows), len(dropping) * (len(spans) + 1) * len(results.layers))
        for policy, span, layer, *line in rows:
            at = results.policies.index(policy), results.layers.index(int(layer))
            if span in spans:
                expected = rates[at[0], spans.index(span), at[1]]
            else:   # keep rate less bias is the layer's own share, whatever the span
                expected = (rates - bias)[at[0], 0, at[1]]
            np.testing.assert_allclose([float(one) for one in line], expected, rtol=1e-5)

    def test_several_traces_have_circles_means_and_intervals(self):
        files = [self.file(f"{name}.nc", seed=seed, spans=("a", "b", "c"))
                 for seed, name in enumerate("xyz")]
        code, _, err = self.draw(*files, "-o", self.out, "--only", "span_order_traces", "--formats",
                                 "csv,png")
        self.assertEqual((code, err), (0, []))
        several = [load.open_results(path) for path in files]
        each = [span_order.correlations(results)[0] for results in several]
        with (self.out / "span_order_traces.csv").open() as file:
            for row in csv.DictReader(file):
                at = {"policy": row["policy"], "budget": float(row["budget"])}
                values = [one.sel(at) for one in each if one.sel(at).notnull()]
                self.assertEqual(int(row["traces"]), len(values))
                if values:
                    self.assertAlmostEqual(float(row["mean"]), np.mean(values))
        self.refused(3, "fewer than 3 labelled spans", self.file("two.nc"), *files, "-o", self.out,
                     "--only", "span_order_traces")


class AttentionTest(PlotTest):
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


class OrdersTest(PlotTest):
    """Keep rates of traces whose spans come in one order stand together."""

    def test_rows_are_orders_and_lines_are_means(self):
        orders = ("defense", "directive"), ("directive", "defense"), ("defense", "directive")
        files = [self.file(f"{seed}.nc", seed=seed, spans=spans, policies=("full", "random", "h2o"))
                 for seed, spans in enumerate(orders)]
        code, _, err = self.draw(*files, "-o", self.out, "--only", "keep_rate_traces,bias_traces",
                                 "--formats", "csv,png", "--budget", "0.2")
        self.assertEqual((code, err), (0, []))
        with (self.out / "keep_rate_traces.csv").open() as file:
            rows = [row for row in csv.DictReader(file)
                    if (row["policy"], row["budget"], row["span"]) == ("random", "0.2", "defense")]
        self.assertEqual([row["count"] for row in rows], ["2", "1"])
        data = [load.open_results(path).data for path in files]
        rates = [one.keep_rate.values[1, 0, :, list(one.span.values).index("defense")].mean()
                 for one in data]
        self.assertAlmostEqual(float(rows[0]["keep_rate"]), (rates[0] + rates[2]) / 2)
        self.assertAlmostEqual(float(rows[1]["keep_rate"]), rates[1])
        bias = [one.bias_index.values[1, 0, :, 0].mean() for one in data]
        self.assertAlmostEqual(float(rows[0]["bias_index"]), (bias[0] + bias[2]) / 2)
        with (self.out / "bias_traces.csv").open() as file:
            first = next(row for row in csv.DictReader(file) if row["policy"] == "random")
        self.assertAlmostEqual(float(first["mean"]), (bias[0] + bias[2]) / 2)


class NeedlesTest(PlotTest):
    def needle(self, name, length, spans=("needle",)):
        return self.file(name, prompt_len=length, spans=spans)

    def test_needles_stand_at_their_depth_and_length(self):
        files = [self.needle("a.nc", 400), self.needle("b.nc", 410),
                 self.needle("c.nc", 800, ("needle1", "x", "needle2"))]
        several = [load.open_results(path) for path in files]
        found = needles.needles(several)
        self.assertEqual(list(found), [1, 2])
        self.assertEqual([(f, s, length) for f, s, _, length in found[1][1]],
                         [(0, "needle", 400), (1, "needle", 410)])
        self.assertEqual([(f, s, length) for f, s, _, length in found[2][1]],
                         [(0, "needle1", 800), (0, "needle2", 800)])

        class Options:
            budget = "0.2"
        one, two = (needles.cells(files, Options, places, "keep_rate", ["random"])
                    for files, places in found.values())
        self.assertEqual((one[2], one[3], two[2], two[3]), ([405], [10], [800], [10, 90]))
        rates = [results.data.keep_rate.values[1, 0].mean(axis=0) for results in several]
        np.testing.assert_allclose(one[0][0], [[(rates[0][0] + rates[1][0]) / 2]])
        np.testing.assert_allclose(two[0][0], [[rates[2][0], rates[2][2]]])
        self.assertEqual((one[1].tolist(), two[1].tolist()), ([[2]], [[1, 1]]))
        np.testing.assert_allclose(one[4][0], [rates[0][0], rates[1][0]])
        np.testing.assert_allclose(two[4][0], [(rates[2][0] + rates[2][2]) / 2])

    def test_both_maps_are_drawn(self):
        files = [self.needle("a.nc", 400), self.needle("b.nc", 800)]
        code, out, err = self.draw(*files, "-o", self.out, "--only", "needles", "--formats", "png,csv")
        self.assertEqual((code, err), (0, []))
        self.assertEqual([Path(path).name for path in out[::2]],
                         ["needles1-kept.png", "needles1-importance.png"])

    def test_traces_without_needles_have_none(self):
        self.refused(3, "no span whose name begins with needle", self.file(), "-o", self.out,
                     "--only", "needles")

    def test_means_with_intervals_are_read_off_the_tables_of_the_maps(self):
        files = [self.file(f"{length}.nc", prompt_len=length, spans=("needle",)) for length in (400, 800)]
        code, _, err = self.draw(*files, "-o", self.out, "--only", "needles", "--formats", "png,csv")
        self.assertEqual((code, err), (0, []))
        header, table = drawn.needles(self.out)
        self.assertEqual(header, ["policy", "one fact: kept", "its importance kept"])
        for row in table:
            self.assertRegex(row[1], r"^\d\.\d\d \[−?\d+\.\d\d, \d+\.\d\d\]$")


class MergingFiguresTest(PlotTest):
    def results(self):
        return self.file(policies=tuple(RECORDS), edit=measured)

    def test_every_figure_is_drawn_from_what_it_needs(self):
        code, out, err = self.draw(self.results(), "-o", self.out, "--formats", "png", "--only", ",".join(sorted(MERGING)))
        self.assertEqual((code, err), (0, []))
        self.assertEqual({Path(path).stem for path in out}, MERGING)
        for name in sorted(MERGING):
            self.refused(3, name, self.file(), "-o", self.out, "--only", name)

    def test_records_are_grouped_by_what_they_share(self):
        results = load.open_results(self.results())
        self.assertEqual(merging_budget.find(results, None), [{"snapkv": "drop", "snapkv,merge=convex": "convex"}])
        self.assertEqual(periodic.find(results, None),
                         [{0: "snapkv", 4: "snapkv,schedule=periodic,period=4"}])
        self.assertEqual(memory_error.find(results, None),
                         [{"not quantised": "snapkv", "kivi, 4 bits": "snapkv,quantize=kivi"}])
        form = {"quantize": "formats", "quant_bits": "4", "quant_keys": "q8_0", "quant_values": "nvfp4"}
        self.assertEqual([memory_error.form_of({**form, "quant_keys_turn": turn}) for turn in ("none", "random")],
                         ["q8_0/nvfp4", "q8_0/nvfp4, random"])

    def test_undefined_values_do_not_stop_a_figure(self):
        results = self.file(policies=tuple(RECORDS), edit=undefined)
        for name in ("merging_budget", "periodic", "prediction_error"):
            code, _, err = self.draw(results, "-o", self.out, "--formats", "png", "--only", name)
            self.assertEqual((code, err), (0, []), name)


if __name__ == "__main__":
    unittest.main()
