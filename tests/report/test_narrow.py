"""The page on a narrow screen, what it says of heads and paths, and its colours."""

import json
import shutil
import subprocess
import unittest

from page_test import PYTHON, ROOT, PageTest, Results, kvsim

NARROW, WIDE = 390, 1280   # pixels: a phone, a small notebook
# Texts and controls that stand out of the box that shows them, or of the screen.
CUT = """
const cut = [], screen = document.documentElement.clientWidth;
for (const one of document.querySelectorAll('button, select, input, label, h1, h2, h3, p, td, th, svg text')) {
  const box = one.getBoundingClientRect();
  if (!box.width || one.closest('.tokens, #looked, .skip')) continue;
  const frame = one.closest('svg, .scroll, section, form, header')?.getBoundingClientRect();
  const right = Math.min(screen, frame ? frame.right : screen), left = Math.max(0, frame ? frame.left : 0);
  if (box.right > right + 1 || box.left < left - 1) cut.push(`${one.id || one.textContent.slice(0, 40)}: ${box.left} to ${box.right}`);
}
return cut;
"""


class NarrowTest(PageTest):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.trace = cls.folder / "deep" / "private" / "sample.h5"
        cls.trace.parent.mkdir(parents=True)
        shutil.copy(ROOT / "data" / "sample.h5", cls.trace)
        cls.results, cls.page = cls.folder / "sample.nc", cls.folder / "page.html"
        kvsim("replay", cls.trace, "-o", cls.results, "-q")
        kvsim("report", cls.results, "-o", cls.page, "--trace", cls.trace)
        cls.numbers = Results(cls.results)

    def open(self, width, address="policy=snapkv&vs=h2o&budget=0.3&step=500"):
        self.browser.size(width, 844)
        self.browser.open(self.page, address)
        self.browser.settle()

    def test_nothing_is_cut_on_a_phone_or_a_notebook(self):
        measures = ("stream_error_rms", "span_retained_importance:mean", "output_error_max:worst")
        for width in (NARROW, WIDE):
            for measure in measures:
                self.open(width, f"policy=snapkv&vs=h2o&budget=0.3&step=500&measure={measure}")
                self.assertEqual(self.browser.run(CUT), [], f"{width} pixels, {measure}")
                self.assertLessEqual(
                    self.browser.run("return document.documentElement.scrollWidth"), width)

    def test_every_policy_of_a_default_run_is_in_its_box(self):
        for width in (NARROW, WIDE):
            self.open(width)
            box, rows = self.browser.run(
                "return [document.getElementById('verdict-box').getBoundingClientRect().bottom, "
                "[...document.querySelectorAll('#verdict tbody tr')].map((row) => "
                "[row.dataset.policy, row.getBoundingClientRect().bottom])]")
            self.assertEqual({name for name, bottom in rows if bottom <= box + 1},
                             set(self.numbers.policies), width)

    def test_columns_of_heads_say_which_heads_they_are(self):
        self.open(WIDE)
        for measure, said in (("retained_importance_head", "query head"),
                              ("kept share", "KV head (each serves 3 query heads)")):
            self.browser.choose("map-measure", measure)
            self.assertEqual(self.browser.texts("#map-a .heads"), [said], measure)

    def test_no_folder_of_the_machine_is_told(self):
        self.assertNotIn("deep/private", self.page.read_text(encoding="utf-8"))
        self.open(WIDE)
        record = self.browser.texts("#record")[0]
        self.assertIn("kvsim replay sample.h5 -o sample.nc -q", record)

    def test_policies_have_the_colours_that_they_have_in_figures(self):
        script = "import json, sys; from kvsim.plots import load, style; " \
                 "found = style.policy_looks(load.open_results(sys.argv[1]).policies); " \
                 "print(json.dumps({name: look['color'] for name, look in found.items()}))"
        colours = json.loads(subprocess.run(
            [str(PYTHON), "-c", script, str(self.results)], check=True, text=True,
            capture_output=True, env={"PYTHONPATH": str(ROOT / "python")}).stdout)
        self.assertEqual(len(set(colours.values())), len(self.numbers.policies))
        self.open(WIDE)
        drawn = dict(self.browser.run(
            "return [...document.querySelectorAll('#curves .line')].map((one) => "
            "[one.dataset.label, getComputedStyle(one).stroke])"))
        drawn["A"], drawn["B"] = self.browser.run(
            "return ['a', 'b'].map((side) => getComputedStyle("
            "document.querySelector(`.badge.${side}`)).backgroundColor)")
        parts = {name: tuple(int(one[k:k + 2], 16) for k in (1, 3, 5))
                 for name, one in colours.items()}
        expected = {name: "rgb({}, {}, {})".format(*one) for name, one in parts.items()}
        self.assertEqual(drawn, {**expected, "A": expected["snapkv"], "B": expected["h2o"]})

    def test_a_log_scale_is_said(self):
        self.open(WIDE, "policy=snapkv&vs=h2o&budget=0.3&measure=stream_error_rms")
        self.assertIn("log scale", self.browser.texts("#curves .title")[0])
        self.browser.choose("measure", "retained_importance_mean:mean")
        self.assertNotIn("log scale", self.browser.texts("#curves .title")[0])


if __name__ == "__main__":
    unittest.main()
