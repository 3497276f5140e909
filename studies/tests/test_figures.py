"""Tests of the figures of the pages, and of what is read off those of `kvsim plot`."""

import contextlib
import csv
import io
import unittest
from pathlib import Path

from findings import drawn, layers, losses, merging_numbers, rehearsal
from kvsim.plots import looks, statistics, style
from test_merging_plots import RECORDS, measured
from test_plots import PlotTest

HERE = Path(__file__).resolve().parents[1]


class FiguresTest(PlotTest):
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
        style.say_log(figure)
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


class NeedlesTest(PlotTest):
    def test_means_with_intervals_are_read_off_the_tables_of_the_maps(self):
        files = [self.file(f"{length}.nc", prompt_len=length, spans=("needle",)) for length in (400, 800)]
        code, _, err = self.draw(*files, "-o", self.out, "--only", "needles", "--formats", "png,csv")
        self.assertEqual((code, err), (0, []))
        header, table = drawn.needles(self.out)
        self.assertEqual(header, ["policy", "one fact: kept", "its importance kept"])
        for row in table:
            self.assertRegex(row[1], r"^\d\.\d\d \[−?\d+\.\d\d, \d+\.\d\d\]$")


if __name__ == "__main__":
    unittest.main()
