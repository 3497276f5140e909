"""Figures in the widths of a paper of two columns. Run: python3 tests/plots/test_widths.py"""

import re
import unittest
import unittest.mock
from pathlib import Path

from test_plots import ALL, THREE, PlotTest, pdf_objects   # first: it finds the package

import matplotlib.text

from kvsim.plots import style


class WidthTest(PlotTest):
    FIGURES = ALL
    LONG = {"policies": ("full", "layer-defensivekv:code", "snapkv,window=16,kernel=7", "h2o"),
            "budgets": (0.1, 0.2, 0.5), "layers": range(6), "spans": THREE}

    def test_a_pdf_is_as_wide_as_asked_with_its_fonts_embedded(self):
        for width, points in (("column", 234), ("page", 486)):
            code, out, err = self.draw(self.file(spans=THREE), "-o", self.out / width, "--width", width,
                                       "--formats", "pdf")
            self.assertEqual((code, err), (0, []))
            self.assertEqual({Path(one).stem for one in out}, self.FIGURES)
            for path in map(Path, out):
                text = pdf_objects(path)
                box = re.search(rb"/MediaBox \[ ?0 0 ([0-9.]+) ", text)
                self.assertAlmostEqual(float(box[1]), points, msg=path)
                self.assertIn(b"/FontFile2", text, path)
                self.assertNotIn(b"/Type3", text, path)

    def test_nothing_leaves_the_figure_and_no_text_is_too_small_to_read(self):
        """As small as a footnote of a figure is: 5 points."""
        seen = []

        def check(figure, path):
            style.settle(figure)
            figure.draw_without_rendering()
            box = figure.get_tightbbox()
            self.assertTrue(-0.01 < box.x0 and box.x1 < style.width() + 0.01, (path, box))
            for text in figure.findobj(matplotlib.text.Text):
                self.assertGreaterEqual(text.get_fontsize(), 5, (path, text))
                seen.append(text)
            return True

        with unittest.mock.patch("kvsim.plots.style.save", check):
            code, _, err = self.draw(self.file(**self.LONG), "-o", self.out, "--width", "column",
                                     "--formats", "pdf")
        self.assertEqual((code, err), (0, []))
        self.assertGreater(len(seen), 200)

    def test_panels_of_one_row_stand_in_several_where_there_is_no_room(self):
        style.use("column")
        self.addCleanup(style.use)
        for columns, across in ((2, 1), (3, 1), (4, 2)):
            figure, axes = style.frame("title", "subtitle", 1, columns, 2.0)
            self.assertEqual(axes.shape, (1, columns))
            self.assertEqual(axes[0, 0].get_subplotspec().get_gridspec().ncols, across)
            style.plt.close(figure)

    def test_lines_above_the_panels_break_before_they_leave_the_figure(self):
        style.use("column")
        self.addCleanup(style.use)
        for words in ("WWW MMM " * 20, "iii lll " * 20):
            figure, _ = style.frame(words, f"{words}\nLower is better.", 1, 1, 2.0)
            figure.draw_without_rendering()
            box = figure.get_tightbbox()
            self.assertTrue(0 <= box.x0 and box.x1 <= style.width(), (words[:3], box))
            style.plt.close(figure)

    def test_another_width_is_named(self):
        self.refused(2, "--width.*column.*page", self.file(), "-o", self.out, "--width", "poster")


if __name__ == "__main__":
    unittest.main()
