"""Tests of how policies are drawn: the same everywhere, and told apart. See test_plots.py."""

import os
import signal
import subprocess
import sys
import unittest
import unittest.mock

from test_plots import DRAW, ROOT, SMALL, PlotTest

sys.path.append(str(ROOT / "tests" / "support"))

import fake_results
import loop_file
import matplotlib.colors
import matplotlib.figure
import numpy as np

from contributing import example
from kvsim.plots import draw, load, looks, style
from kvsim.plots.figures import retained_importance

POLICIES = ("full", "random", "streaming", "knorm", "snapkv", "snapkv,window=16",
            "snapkv,merge=convex", "h2o", "oracle-mean")


def contrast(colour, ground):
    """Of two colours, 1 to 21 (WCAG 2.2)."""
    def light(one):
        parts = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4
                 for c in matplotlib.colors.to_rgb(one)]
        return 0.2126 * parts[0] + 0.7152 * parts[1] + 0.0722 * parts[2]
    high, low = sorted((light(colour), light(ground)), reverse=True)
    return (high + 0.05) / (low + 0.05)


class LooksTest(PlotTest):
    def test_every_colour_is_seen_on_its_ground(self):
        for light, dark in looks.COLOURS:
            self.assertGreaterEqual(contrast(light, "white"), 3, light)
            self.assertGreaterEqual(contrast(dark, "#171b20"), 3, dark)
        self.assertEqual(len(set(looks.COLOURS)), len(looks.COLOURS))

    def test_a_setting_of_a_preset_gives_way_to_the_presets(self):
        for count in range(40):
            found = looks.of(("snapkv", "h2o", *(f"snapkv,window={w}" for w in range(count))))
            self.assertEqual(found["snapkv"], looks.of(("snapkv",))["snapkv"])
            self.assertEqual(len(set(found.values())), count + 2)
            few = [look.colour for look in list(found.values())[:len(looks.COLOURS)]]
            self.assertEqual(len(set(few)), len(few))

    def test_the_presets_of_a_default_run_differ_in_colour(self):
        default = ("random", "streaming", "knorm", "tova", "h2o", "snapkv", "defensivekv", "restkv",
                   "kvzip", "rehearsal:recent", "rehearsal:reread", "oracle-mean")
        for several in (default, ("rehearsal:recent", "h2o", "snapkv", "defensivekv", "oracle-stream")):
            self.assertEqual(len({looks.own_place(one) for one in several}), len(several),
                             "choose another SALT")

    def test_a_preset_has_its_colour_in_every_run(self):
        for others in (("adakv", "cake", "duo"), tuple(f"p{i}" for i in range(60))):
            for one in ("snapkv", "h2o", "rehearsal:recent", "kvzip", *others):
                self.assertEqual(looks.of((one, *others))[one].colour, looks.own_place(one))

    def test_many_policies_are_one_figure_with_one_scale(self):
        results = self.file(policies=("full", *(f"p{i}" for i in range(14))), layers=(0, 1),
                            budgets=(0.2, 0.5))
        code, _, err = self.draw(results, "-o", self.out, "--formats", "png")
        self.assertEqual(code, 0, err)
        names = [one.stem for one in self.out.rglob("*.png")]
        self.assertIn("stream_error", names)
        # Maps have a colour for a number, the same on every page.
        self.assertLessEqual({one.rstrip("-123456789") for one in names if one[-1].isdigit()},
                             {"keep_rate_ratios"})

    def test_a_measure_has_one_axis_in_all_figures_and_files_of_a_call(self):
        def louder(data):
            errors = [name for name in data if "error" in str(name)]
            return data.assign({name: 30 * data[name] for name in errors})
        names = [self.folder / name for name in ("soft.nc", "loud.nc")]
        for path, edit in zip(names, (lambda data: data, louder)):
            self.file(path.name, policies=POLICIES, budgets=(0.1, 0.2, 0.4, 0.8), edit=edit)
        figures = self.drawn(*names, "--only", "budget,stream_error",
                             name=lambda target: f"{target.parent.name}/{target.stem}")
        self.assertEqual(len(figures), 4)
        limits = {}
        for name, figure in figures.items():
            for ax in figure.axes:
                measured = getattr(ax, "kvsim_measures", {}).get("y")
                limits.setdefault(measured, set()).add((ax.get_ylim(), ax.get_yscale()))
        self.assertLessEqual({"stream_error_rms", "output_error_max"}, set(limits))
        for measured in limits.keys() - {None}:
            (limit, scale), = limits[measured]
            self.assertEqual(scale, "log")
        # Alone each has the axis that its own numbers need.
        alone = self.drawn(names[0], "--only", "stream_error", "--overwrite")["stream_error"]
        self.assertNotIn((alone.axes[0].get_ylim(), "log"), limits["stream_error_rms"])

    def drawn(self, *arguments, name=lambda target: target.stem):
        """Every figure that is drawn, complete, by its name."""
        found, save = {}, style.save

        def look_at(figure, target):
            done = save(figure, target)
            found[name(target)] = figure
            return done
        with unittest.mock.patch("kvsim.plots.style.save", look_at):
            code, _, err = self.draw(*arguments, "-o", self.out, "--formats", "png")
        self.assertEqual((code, err), (0, []))
        return found

    def run_of_two_traces(self):
        """Results with three spans and constraints, a sweep's metrics, and a closed loop."""
        def name(data):
            return fake_results.add_attention(data).assign_attrs(trace_digest="one")
        path = self.file(policies=POLICIES, budgets=(0.1, 0.2, 0.4, 0.8), edit=name,
                         spans=("defense", "middle", "directive"))
        losses_of = {"snapkv": [[0.5, 0.5], [0.01, 0.02]], "h2o": [[0.25, 0.35], [0.1, 0.1]]}
        loop = loop_file.write(self.folder / "loop.nc", losses_of, (400, 401), "one",
                               budgets=(0.1, 0.4))
        return path, loop

    def test_every_logarithmic_axis_says_so_and_budgets_are_budgets_everywhere(self):
        path, loop = self.run_of_two_traces()
        figures, logarithmic = self.drawn(path, loop), set()
        for name, figure in figures.items():
            for ax in figure.axes:
                for axis, shared in ((ax.xaxis, "_supxlabel"), (ax.yaxis, "_supylabel")):
                    label = axis.label.get_text()
                    above = getattr(ax.figure, shared, None)
                    said = label or (above.get_text() if above else "")
                    self.assertNotIn("1 − budget", said, name)
                    self.assertNotIn("compression ratio", said, name)
                    place = ax.get_subplotspec()
                    if axis.get_scale() == "log" and (
                            axis is ax.yaxis or place is None or place.is_last_row()):
                        self.assertIn("log scale", said, name)
                        logarithmic.add(name)
        self.assertGreaterEqual(logarithmic, {"budget", "loss", "stream_error"})

    def test_the_loss_of_one_text_is_that_of_its_closed_loop(self):
        path, loop = self.run_of_two_traces()
        figure = self.drawn(path, loop, "--only", "loss")["loss"]
        lost, foretold = figure.axes
        lines = {line.get_color(): line for line in lost.lines}
        looks_of = style.policy_looks(POLICIES)
        for policy, values in (("snapkv", [0.5, 0.015]), ("h2o", [0.3, 0.1])):
            line = lines[looks_of[policy]["color"]]
            self.assertEqual(list(line.get_xdata()), [0.1, 0.4])
            for drawn, value in zip(line.get_ydata(), values, strict=True):
                self.assertAlmostEqual(drawn, value)
        for ax in (lost, foretold):
            self.assertEqual({text.get_text() for text in ax.texts}, {"snapkv", "h2o"})
        self.assertEqual(lost.get_yscale(), "log")
        self.refused(3, "cannot draw loss: .* no closed loop", path, "-o", self.out, "--only",
                     "loss")

    def test_numbers_of_figures_that_are_no_tables_are_refused(self):
        self.refused(2, "--formats: found csv, but no figure drawn is a table", self.file(), "-o",
                     self.out, "--formats", "csv", "--only", "retained_importance")

    def test_ten_policies_are_rows_and_three_are_lines(self):
        path, _ = self.run_of_two_traces()
        figure = self.drawn(path, "--only", "retained_importance")["retained_importance"]
        panels = [ax for ax in figure.axes if ax.get_title().startswith("layer")]
        self.assertEqual(len(panels), 2)
        data = load.open_results(path)
        values = data.variable("retained_importance", "policy", "budget", "layer", "step")
        values = values.sel(budget=0.4, policy=list(POLICIES[1:]))
        order = values.mean(["layer", "step"]).to_series().sort_values(ascending=False).index
        rows = [text.get_text().replace("\n", "") for text in panels[0].get_yticklabels()]
        self.assertEqual(rows, list(order))
        cells = panels[1].images[0].get_array()
        self.assertTrue((cells == values.isel(layer=1).sel(policy=order).values).all())
        few = self.drawn(path, "--only", "retained_importance", "--policy", "snapkv", "--policy",
                         "h2o", "--overwrite")["retained_importance"]
        self.assertEqual([ax for ax in few.axes if ax.images], [])

    def test_a_number_has_one_shade_in_all_maps(self):
        shades = style.error_shades(np.array([0, 1e-3, 10**-1.5, 1, 7, np.nan]))
        np.testing.assert_allclose(shades, [0, 0, 0.5, 1, 1, np.nan], atol=1e-12)

    def test_a_map_of_many_steps_shows_the_worst_of_each_part(self):
        steps = np.linspace(1, 0.9, 1000)
        steps[[17, 503]] = (0.1, np.nan)
        found = retained_importance.in_parts(np.array([steps, np.full(1000, np.nan)]))
        self.assertEqual(found.shape, (2, retained_importance.PARTS))
        self.assertEqual((found[0].min(), found[0].argmin()), (0.1, 4))
        self.assertTrue(np.isnan(found[1]).all())
        self.assertFalse(np.isnan(found[0]).any())

    def test_choosing_policies_changes_no_colour(self):
        path = self.file(policies=POLICIES)
        whole = load.open_results(path)
        part = load.open_results(path, policies=["snapkv,merge=convex", "h2o"])
        for policy in part.policies:
            self.assertEqual(style.policy_style(part, policy), style.policy_style(whole, policy))

    def test_a_policy_has_one_colour_in_all_figures_of_a_run(self):
        path, seen = self.file(policies=POLICIES, budgets=(0.1, 0.2, 0.4, 0.8)), {}
        save = style.save

        def look_at(figure, target):
            done = save(figure, target)
            for shown in (figure, *figure.subfigs):
                keys = [key for legend in shown.legends for key in legend.legend_handles]
                for key in keys:
                    seen.setdefault(key.get_label(), {}).setdefault(
                        key.get_color(), set()).add(target.stem)
            for ax in figure.axes:
                for text in (*ax.texts, *ax.get_yticklabels()):
                    if text.get_text() in POLICIES and text.get_color() != "black":
                        seen.setdefault(text.get_text(), {}).setdefault(
                            text.get_color(), set()).add(target.stem)
            return done
        with unittest.mock.patch("kvsim.plots.style.save", look_at):
            self.assertEqual(draw.main([str(path), "-o", str(self.out), "--formats", "png"]), 0)
        expected = style.policy_looks(load.open_results(path).policies)
        figures = set()
        for policy in POLICIES[1:]:
            self.assertEqual(list(seen[policy]), [expected[policy]["color"]], seen[policy])
            figures |= set().union(*seen[policy].values())
        self.assertGreaterEqual(len(figures), 3, "figures with keys or labels of policies")

    def test_the_figure_of_contributing_is_drawn(self):
        figure = example("figure", "kvsim.plots.figures.example")
        path = fake_results.write(self.folder / "results.nc", **SMALL)
        with unittest.mock.patch.object(draw, "load_figures", lambda titles: {"example": figure}):
            code = draw.main([str(path), "-o", str(self.out), "--formats", "png"])
        self.assertEqual(code, 0)
        self.assertGreater((self.out / "example.png").stat().st_size, 2000)

    def test_names_at_lines_do_not_overlap_and_stay_in_order(self):
        for places in ([0.5], [0.1, 0.1, 0.1, 0.9], [0, 0.01, 0.5, 0.51, 0.52, 1]):
            found = style.apart(places, 0.05)
            self.assertTrue(all(b - a > 0.05 - 1e-9 for a, b in zip(found, found[1:])), found)
            self.assertAlmostEqual(sum(found), sum(places))
        found = style.apart([0.1, 0.1, 0.1], [0.05, 0.1, 0.05])   # a name of two lines
        self.assertAlmostEqual(found[1] - found[0], 0.075)
        self.assertAlmostEqual(found[2] - found[1], 0.075)

    def test_ticks_at_budgets_do_not_touch(self):
        for budgets, shown in (([0.1, 0.297, 0.3], [0, 1]), ([0.1, 0.2, 0.3], [0, 1, 2]),
                               (np.arange(0.1, 0.95, 0.1), [0, 2, 4, 6, 8]), ([0.2], [0])):
            self.assertEqual(style.legible(np.array(budgets)), shown)

    def test_thirty_spans_differ(self):
        drawn = [str(sorted(style.line_style(index).items(), key=str)) for index in range(30)]
        self.assertEqual(len(set(drawn)), 30)

    def test_a_log_axis_of_less_than_a_decade_has_ticks(self):
        for low, high, shown in ((0.14, 0.99, {0.2, 0.5}), (0.01, 100, {0.01, 1, 100})):
            figure = matplotlib.figure.Figure()
            ax = figure.subplots()
            ax.plot([1, 2], [low, high])
            ax.set_yscale("log")
            style.log_ticks(ax.yaxis, 9)
            self.assertLessEqual(shown, {float(f"{tick:.3g}") for tick in ax.get_yticks()})

    def test_an_interrupt_is_one_line_and_130(self):
        code = ("import os, signal, sys\nfrom kvsim.plots import draw\n"
                "draw.run = lambda *_: os.kill(os.getpid(), signal.SIGINT)\n"
                f"sys.exit(draw.main([{str(self.file())!r}, '-o', {str(self.out)!r}]))")
        ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True,
                               env={**os.environ, "PYTHONPATH": str(ROOT / "python")})
        self.assertEqual((ended.returncode, ended.stderr), (130, "kvsim plot: interrupted\n"))

    @unittest.skipUnless(os.path.exists("/dev/full"), "no /dev/full")
    def test_names_that_cannot_be_printed_are_one_line(self):
        with open("/dev/full", "wb") as full:
            ended = subprocess.run([sys.executable, DRAW, self.file(), "-o", self.out,
                                    "--only", "keep_rate", "--formats", "png"], stdout=full,
                                   stderr=subprocess.PIPE, text=True)
        self.assertEqual(ended.returncode, 1)
        self.assertRegex(ended.stderr, "^kvsim plot: standard output: cannot be written: [^\n]*\n$")

    def test_a_file_where_a_folder_should_be_is_refused_before_any_work(self):
        taken = self.folder / "taken"
        taken.write_text("mine")
        for out in (taken, taken / "inside"):
            ended = subprocess.run([sys.executable, DRAW, self.file(), "-o", out],
                                   capture_output=True, text=True)
            self.assertEqual(ended.returncode, 2, ended.stderr)
            self.assertIn(f"{taken}: a file stands where a folder", ended.stderr)
        self.assertEqual(taken.read_text(), "mine")

    def test_a_reader_of_the_names_that_leaves_ends_it_in_silence(self):
        reading, writing = os.pipe()
        os.close(reading)
        ended = subprocess.run([sys.executable, DRAW, self.file(), "-o", self.out, "--only",
                                "keep_rate", "--formats", "png"], stdout=writing, stderr=subprocess.PIPE)
        os.close(writing)
        self.assertEqual((ended.returncode, ended.stderr), (128 + signal.SIGPIPE, b""))
        self.assertEqual([path.name for path in self.out.iterdir()], ["keep_rate.png"])


if __name__ == "__main__":
    unittest.main()
