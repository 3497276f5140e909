"""Tests of how policies are drawn: the same everywhere, and told apart. See test_plots.py."""

import csv
import unittest
import unittest.mock

from test_plots import ROOT, PlotTest

import matplotlib.colors

from kvsim.plots import draw, load, looks, style
from kvsim.plots.study import layers, losses, rehearsal

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

    def test_a_policy_keeps_its_colour_whoever_else_is_there(self):
        for several in (losses.DRAWN, layers.SHOWN, rehearsal.DRAWN):
            for policy, look in looks.of(tuple(several)).items():
                if "=" not in policy:
                    self.assertEqual(look, looks.of((policy,))[policy],
                                     f"{policy} gives way to another: choose another SALT")

    def test_a_setting_of_a_preset_gives_way_to_the_presets(self):
        for count in range(40):
            found = looks.of(("snapkv", "h2o", *(f"snapkv,window={w}" for w in range(count))))
            self.assertEqual(found["snapkv"], looks.of(("snapkv",))["snapkv"])
            self.assertEqual(len(set(found.values())), count + 2)
            few = [look.colour for look in list(found.values())[:len(looks.COLOURS)]]
            self.assertEqual(len(set(few)), len(few))

    def test_choosing_policies_changes_no_colour(self):
        path = self.file(policies=POLICIES)
        whole = load.open_results(path)
        part = load.open_results(path, policies=["snapkv,merge=convex", "h2o"])
        for policy in part.policies:
            self.assertEqual(style.policy_style(part, policy), style.policy_style(whole, policy))

    def test_a_policy_has_one_colour_in_all_figures_of_a_run(self):
        path, seen = self.file(policies=POLICIES, budgets=(0.1, 0.2, 0.4, 0.8)), {}

        def look_at(figure, target):
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
            return True
        with unittest.mock.patch("kvsim.plots.style.save", look_at):
            self.assertEqual(draw.main([str(path), "-o", str(self.out), "--formats", "png"]), 0)
        expected = style.policy_looks(load.open_results(path).policies)
        figures = set()
        for policy in POLICIES[1:]:
            self.assertEqual(list(seen[policy]), [expected[policy]["color"]], seen[policy])
            figures |= set().union(*seen[policy].values())
        self.assertGreaterEqual(len(figures), 4, "figures with keys or labels of policies")

    def test_the_picture_of_losses_is_drawn_from_its_table_with_a_name_at_every_line(self):
        with (ROOT / "docs/losses/losses_summary.csv").open(newline="", encoding="utf-8") as file:
            rows = list(csv.reader(file))
        figure = losses.draw(rows)
        style.say_log(figure)
        for ax, length in zip(figure.axes, ("short", "long"), strict=True):
            names = [text.get_text() for text in ax.texts]
            self.assertEqual(sorted(names), sorted(losses.DRAWN))
            self.assertLessEqual(len(names), 8, "few lines")
            self.assertEqual(len(ax.collections), len(losses.BANDS))
            drawn = {line.get_color(): line.get_ydata() for line in ax.lines
                     if line.get_marker() not in ("", "None")}
            for text in ax.texts:
                own = [float(row[4]) for row in rows if
                       row[:2] == [length, text.get_text()] and row[3] == "kl_relative"]
                self.assertEqual(list(drawn[text.get_color()]), own)
        self.assertIn("log scale", figure.subfigs[0]._supylabel.get_text())

    def test_names_at_lines_do_not_overlap_and_stay_in_order(self):
        for places in ([0.5], [0.1, 0.1, 0.1, 0.9], [0, 0.01, 0.5, 0.51, 0.52, 1]):
            found = style.apart(places, 0.05)
            self.assertTrue(all(b - a > 0.05 - 1e-9 for a, b in zip(found, found[1:])), found)
            self.assertAlmostEqual(sum(found), sum(places))


if __name__ == "__main__":
    unittest.main()
