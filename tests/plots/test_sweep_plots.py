"""Tests of the figures of sweeps. Run: python3 tests/plots/test_sweep_plots.py"""

import json
import unittest
from types import SimpleNamespace

from test_plots import PlotTest  # says so, and stops, where modules are missing

import numpy as np

from kvsim.plots import grid, load
from kvsim.plots.figures import tornado


class SweepFiguresTest(PlotTest):
    FIGURES = "sensitivity,sensitivity_map,tornado"
    # Two crossed axes, a key that another decides (votes), and one that needs another (prior_value).
    KEYS = {"window": "32", "kernel": "5", "prior": "none", "prior_value": "0.1", "votes": "a"}
    CHANGES = [{}, {"window": "8"}, {"window": "128"}, {"kernel": "7"},
               {"window": "8", "kernel": "7"}, {"window": "128", "kernel": "7"},
               {"prior": "constant", "votes": "b"},
               {"prior": "constant", "prior_value": "0.2", "votes": "b"}]

    # As the program writes them, values in the order of the records.
    AXES = [{"keys": keys, "values": values, "default": default} for keys, values, default in (
        (["window"], [["32"], ["8"], ["128"]], ["32"]), (["kernel"], [["5"], ["7"]], ["5"]),
        (["prior", "votes"], [["none", "a"], ["constant", "b"]], ["none", "a"]),
        (["prior_value"], [["0.1"], ["0.2"]], ["0.1"]))]

    def sweep(self, name="results.nc", sweep=True, edit=None, **options):
        records, policies = [], []
        for changes in self.CHANGES:
            records.append("snapkv:x" + "".join(f",{k}={v}" for k, v in changes.items()))
            policies.append({"record": records[-1], "preset": "snapkv", "variant": "x",
                             "parameters": {**self.KEYS, **changes}})
        attributes = {"config": json.dumps({"policies": policies}), "trace_digest": name,
                      "axes": json.dumps({"snapkv:x": self.AXES})}
        if sweep:
            attributes["sweep"] = "{}"

        def complete(data):
            data = data.assign_attrs(attributes)
            return edit(data) if edit else data
        return self.file(name, policies=records, edit=complete, **options)

    def grid(self, *paths, metric=None):
        options = SimpleNamespace(only=None, metric=metric)
        [found] = grid.grids("tornado", [load.open_results(path) for path in paths], options).values()
        return found

    @staticmethod
    def metric(variable):
        return next(one for one in grid.METRICS if one.variable == variable)

    def test_axes_are_the_keys_that_vary_in_numeric_order_with_their_defaults(self):
        one = self.grid(self.sweep())
        self.assertEqual([(axis.keys, axis.base) for axis in one.axes],
                         [(("window",), ("32",)), (("kernel",), ("5",)),
                          (("prior", "votes"), ("none", "a")), (("prior_value",), ("0.1",))])
        self.assertEqual(one.axes[0].values, [("8",), ("32",), ("128",)])
        self.assertEqual(one.base, "snapkv:x")

    def test_a_line_has_the_other_axes_at_their_defaults(self):
        def records(line):
            return {",".join(value): record.removeprefix("snapkv:x")
                    for value, record in line.records.items()}
        window, kernel, prior, value = self.grid(self.sweep()).lines()
        self.assertEqual(list(records(window).items()),
                         [("8", ",window=8"), ("32", ""), ("128", ",window=128")])
        self.assertEqual(records(kernel), {"5": "", "7": ",kernel=7"})
        self.assertEqual(records(prior), {"none,a": "", "constant,b": ",prior=constant,votes=b"})
        self.assertEqual(list(records(value)), ["0.1", "0.2"])
        self.assertEqual((window.fixed, value.fixed), ("", "prior=constant, votes=b"))

    def test_only_axes_that_are_crossed_make_a_map(self):
        [(rows, columns, table)] = self.grid(self.sweep()).planes()
        self.assertEqual((rows.name, columns.name), ("window", "kernel"))
        records = np.reshape([record.removeprefix("snapkv:x") for record in table.flat], (3, 2))
        np.testing.assert_array_equal(records, [
            [",window=8", ",window=8,kernel=7"], ["", ",kernel=7"],
            [",window=128", ",window=128,kernel=7"]])

    def test_where_the_default_was_not_run_the_middle_value_stands_for_it(self):
        def without(data):
            axes = json.loads(data.attrs["axes"])
            axes["snapkv:x"][0]["default"] = ["64"]
            return data.assign_attrs(axes=json.dumps(axes))
        self.assertEqual(self.grid(self.sweep(edit=without)).axes[0].base, ("32",))

    def test_files_of_an_older_program_are_refused_in_one_line(self):
        def edited(axes):
            return lambda data: data.assign_attrs(axes=axes) if axes else \
                data.drop_attrs().assign_attrs({key: value for key, value in data.attrs.items()
                                                if key != "axes"})
        for k, (axes, pattern) in enumerate((
                (None, "no attribute axes, so an older kvsim wrote it; run the sweep again"),
                ("[]", "attribute axes is not"), ('{"snapkv:x": [{"keys": ["a", "b"]}]}', "axes"),
                ('{"snapkv:x": [{"keys": ["window"], "values": [], "default": ["1"]}]}', "axes"),
                ('{"snapkv:x": [{"keys": ["window"], "values": [["7"]], "default": ["7"]}]}',
                 "attributes axes and config do not fit together: window"))):
            self.refused(3, pattern, self.sweep(f"{k}.nc", edit=edited(axes)), "-o", self.out,
                         "--only", "sensitivity")

    def test_effects_are_differences_from_the_default_and_the_widest_comes_first(self):
        def edit(data):
            mean = data["output_error_mean"]
            mean[...] = np.array([.5, .4, .8, .45, 1, 1, .5, .5])[:, None, None]
            return data
        one = self.grid(self.sweep(edit=edit))
        rows = tornado.effects(one, self.metric("output_error_mean"), "0.5")
        self.assertEqual([line.axis.name for line, _, _ in rows[:2]], ["window", "kernel"])
        (low, low_at), (high, high_at) = rows[0][1:]
        np.testing.assert_allclose((low, high), (-0.1, 0.3))
        self.assertEqual((low_at, high_at), ("8", "128"))

    def test_traces_of_one_sweep_make_one_figure(self):
        files = [self.sweep("a.nc"), self.sweep("b.nc", seed=1)]
        self.assertEqual(self.grid(*files).values(self.metric("stream_error_rms")).trace.size, 2)
        code, out, err = self.draw(*files, "-o", self.out, "--formats", "png", "--only",
                                   self.FIGURES)
        self.assertEqual((code, err), (0, []))
        self.assertEqual(out, [str(self.out / f"{name}-snapkv-x.png")
                               for name in self.FIGURES.split(",")])

    def test_seeds_of_a_trace_are_averaged(self):
        same = {"edit": lambda data: data.assign_attrs(trace_digest="one")}
        files = [self.sweep("a.nc", **same), self.sweep("b.nc", seed=1, **same)]
        for name in ("retained_importance_mean", "stream_error_rms"):
            power = 2 if name.startswith("stream") else 1
            values = self.grid(*files).values(self.metric(name))
            single = [self.grid(path).values(self.metric(name)).isel(trace=0) for path in files]
            expected = np.mean([one ** power for one in single], axis=0) ** (1 / power)
            np.testing.assert_allclose(values.isel(trace=0), expected)

    def test_stream_error_leads_and_the_papers_measure_is_beside_it(self):
        def shown(*paths, **options):
            return [one.variable for one in self.grid(*paths, **options).metrics()]
        whole, plain = self.sweep(), self.sweep("plain.nc", residual=False)
        retained = ["retained_importance_mean", "retained_importance_min"]
        self.assertEqual(shown(whole), ["stream_error_rms", *retained])
        self.assertEqual(shown(plain), ["output_error_mean", *retained])
        self.assertEqual(shown(whole, metric=["residual_error", "stream_error"]),
                         ["residual_error_max", "stream_error_rms"])
        self.refused(3, "cannot draw tornado: .*no variable stream_error_rms", plain, "-o",
                     self.out, "--only", "tornado", "--metric", "stream_error")

    def test_settings_that_a_measure_does_not_tell_apart_are_refused_with_its_name(self):
        def same(data):
            data["residual_error_max"][...] = 0.5
            return data
        self.refused(3, "all settings are equal by residual error", self.sweep(edit=same), "-o",
                     self.out, "--only", "sensitivity", "--metric", "residual_error")

    def test_figures_say_when_stream_error_is_of_some_layers(self):
        some = self.sweep(edit=lambda data: data.assign_attrs(num_layers=30))
        self.assertIn("stream error: of 2 of 30 layers", self.grid(some).subtitle)
        self.assertNotIn("stream error", self.grid(some, metric=["output_error"]).subtitle)
        self.assertNotIn("stream error", self.grid(self.sweep("all.nc")).subtitle)
        old = self.sweep("old.nc", edit=lambda data: data.drop_attrs().assign_attrs(
            {key: value for key, value in data.attrs.items() if key != "num_layers"}))
        self.assertIn("of the 2 captured layers", self.grid(old).subtitle)
        cut = load.open_results(some, layers=[5])
        self.assertEqual(cut.stream_layers, "2 of 30 layers")

    def test_a_file_that_no_sweep_wrote_is_drawn_only_when_asked(self):
        results = self.sweep(sweep=False)
        _, out, _ = self.planned(results, "-o", self.out, "--formats", "png")
        self.assertFalse([path for path in out if "sensitivity" in path or "tornado" in path])
        self.assertEqual(self.draw(results, "-o", self.out, "--formats", "png", "--only",
                                   "tornado")[0], 0)

    def test_a_file_without_a_grid_is_refused_in_one_line(self):
        self.refused(3, "cannot draw sensitivity: .*no preset with several settings", self.file(),
                     "-o", self.out, "--only", "sensitivity")


if __name__ == "__main__":
    unittest.main()
