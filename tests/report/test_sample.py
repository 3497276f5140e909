"""The sample's page in a real browser, its numbers against the results file.

Run: KVSIM_BIN=build/kvsim /usr/bin/python3 tests/report/test_sample.py
Needs chromium, chromium-driver, python3-selenium and python3-h5py.
"""

import json
import unittest

import h5py
import numpy as np

from page_test import ROOT, PageTest, Results, kvsim

MOST_BYTES = 8_000_000


class SampleTest(PageTest):
    """The sample's default run: everything that the page does."""

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.results = cls.folder / "sample.nc"
        cls.page = cls.folder / "page.html"
        kvsim("replay", "data/sample.h5", "-o", cls.results, "-q")
        kvsim("report", cls.results, "-o", cls.page)
        cls.masks = cls.folder / "keep.nc"
        kvsim("replay", "data/sample.h5", "-o", cls.masks, "-q", "--save-keep", "--per-head")
        cls.numbers = Results(cls.results)
        cls.kept = Results(cls.masks)

    def open(self, address="policy=snapkv&vs=h2o&budget=0.3&step=500"):
        self.browser.open(self.page, address)

    def readout(self, chart):
        """{line: number} below a chart of the steps."""
        parts = self.browser.texts(f"#{chart} .readout")[0].split(" \u00b7 ")
        return {part.rpartition(": ")[0]: self.shown(part.rpartition(": ")[2])
                for part in parts[1:]}

    def test_it_loads_without_complaint_or_request_and_is_small(self):
        self.open("")
        self.quiet(self.page)
        self.assertLess(self.page.stat().st_size, MOST_BYTES)

    def test_the_table_has_the_numbers_of_the_file_for_every_measure(self):
        self.open()
        measures = self.browser.run("return [...document.getElementById('measure').options]"
                                    ".map((one) => one.value)")
        self.assertEqual(measures[0], "stream_error_rms")
        for name, fold in (("stream_error_rms", None), ("retained_importance_mean", "mean"),
                           ("retained_importance_min", "worst"), ("outlier_count", "sum"),
                           ("output_error_max", "worst"), ("compression", None)):
            self.browser.choose("measure", f"{name}:{fold}" if fold else name)
            values = self.numbers[name]
            if fold == "worst":
                values = values.min(-1) if "min" in name else values.max(-1)
            elif fold:
                values = getattr(values, fold)(-1)
            for policy, row in zip(self.numbers.policies, values):
                cells = self.browser.run(   # without the interval below
                    f"return [...document.querySelectorAll('#verdict tr[data-policy=\"{policy}\"] td')]"
                    ".map((one) => one.firstChild.textContent)")
                for text, value in zip(cells, row, strict=True):
                    self.assertAlmostEqual(self.shown(text), value, delta=6e-4 + 1e-3 * value)

    def test_headings_sort_the_table_both_ways(self):
        self.open()
        values = dict(zip(self.numbers.policies, self.numbers["stream_error_rms"][:, 0]))
        self.browser.click('#verdict th[data-key="0.1"] button')
        rows = self.browser.run("return [...document.querySelectorAll('#verdict tbody tr')]"
                                ".map((row) => row.dataset.policy)")
        self.assertEqual(rows, sorted(values, key=values.get))
        self.browser.click('#verdict th[data-key="0.1"] button')
        rows = self.browser.run("return [...document.querySelectorAll('#verdict tbody tr')]"
                                ".map((row) => row.dataset.policy)")
        self.assertEqual(rows, sorted(values, key=values.get, reverse=True))
        self.assertEqual(self.browser.state()["sort"], "-0.1")

    def test_stars_are_those_of_the_best_policy_without_hindsight(self):
        self.open()
        values = dict(zip(self.numbers.policies, self.numbers["stream_error_rms"]))
        self.assertLess(values.pop("oracle-mean").max(), min(v[0] for v in values.values()))
        starred = self.browser.run(
            "return [...document.querySelectorAll('#verdict td.best')].map("
            "(one) => [one.cellIndex, one.parentElement.dataset.policy])")
        self.assertEqual(sorted(starred), [[b + 1, min(values, key=lambda p: values[p][b])]
                                           for b in range(len(self.numbers.budgets))])
        row = self.browser.texts('#verdict tr[data-policy="oracle-mean"] th')[0]
        self.assertIn("hindsight", row)

    def test_curves_are_the_table_and_can_be_switched_off(self):
        self.open()
        lines = "return [...document.querySelectorAll('#curves .line')].map((one) => " \
                "[one.dataset.label, one.__data__])"
        curves = dict(self.browser.run(lines))
        self.assertEqual(set(curves), set(self.numbers.policies))
        expected = self.numbers["stream_error_rms"][self.numbers.policies.index("tova")]
        np.testing.assert_allclose([y for _, y in curves["tova"]], expected, rtol=1e-5)
        self.browser.click('#verdict tr[data-policy="tova"] button')
        self.assertNotIn("tova", dict(self.browser.run(lines)))

    def test_a_number_chooses_its_policy_and_budget_everywhere(self):
        self.open()
        column = self.numbers.budgets.index("0.5")
        self.browser.click(f'#verdict tr[data-policy="tova"] td:nth-child({column + 2})')
        state = self.browser.state()
        self.assertEqual((state["policy"], state["budget"]), ("tova", "0.5"))
        self.assertIn("tova at 0.5", self.browser.texts("#pane-a-title")[0])
        value = self.numbers.at("retained_importance", "tova", "0.5")[
            :, self.numbers.steps.index(500)].mean()
        self.assertAlmostEqual(self.readout("steps1")["tova, mean over layers"], value, delta=1e-3)

    def test_steps_have_the_numbers_of_the_file_and_the_worst_are_marked(self):
        self.open()
        series = self.numbers.at("stream_error", "snapkv", "0.3")
        worst = np.argsort(-np.nan_to_num(series, nan=-1), kind="stable")[:8]
        buttons = self.browser.run("return [...document.querySelectorAll('#worst button')]"
                                   ".map((one) => Number(one.dataset.step))")
        # The page has 11 bits of each number: neighbours in the order may be equal there.
        found = [series[self.numbers.steps.index(step)] for step in buttons]
        np.testing.assert_allclose(found, series[worst], rtol=1e-3)
        self.browser.click("#worst button:nth-of-type(2)")
        self.assertEqual(self.browser.state()["step"], str(buttons[1]))
        self.assertAlmostEqual(self.readout("steps2")["snapkv"], found[1], delta=1e-3)
        importance = self.numbers.at("retained_importance", "snapkv", "0.3")
        column = importance[:, self.numbers.steps.index(buttons[1])]
        read = self.readout("steps1")
        self.assertAlmostEqual(read["snapkv, mean over layers"], column.mean(), delta=1e-3)
        self.assertAlmostEqual(read["snapkv, worst layer"], column.min(), delta=1e-3)

    def test_a_click_on_the_curve_chooses_a_step_and_a_drag_a_range(self):
        self.open()
        self.browser.drag("#steps1 .overlay", 0.25, 0.25)
        steps = self.numbers.steps
        chosen = int(self.browser.state()["step"])
        self.assertLess(abs(chosen - (steps[0] + 0.25 * (steps[-1] - steps[0]))), 2)
        self.browser.drag("#steps1 .overlay", 0.5, 0.75)
        first, last = map(int, self.browser.state()["steps"].split("-"))
        self.assertLess(abs(first - (steps[0] + 0.5 * (steps[-1] - steps[0]))), 2)
        self.assertLess(abs(last - (steps[0] + 0.75 * (steps[-1] - steps[0]))), 2)
        self.browser.choose("map-measure", "retained_importance")
        part = slice(steps.index(first), steps.index(last) + 1)
        expected = self.numbers.at("retained_importance", "snapkv", "0.3")[:, part].mean(1)
        np.testing.assert_allclose(self.cells("a", -1), expected, atol=1e-3)

    def cells(self, side, head):
        """Numbers of one column of the map, by layer."""
        return self.browser.run(
            "return [...document.querySelectorAll(`#map-${arguments[0]} .cell"
            "[data-head=\"${arguments[1]}\"]`)].map((one) => Number(one.dataset.value))",
            side, head)

    def test_the_map_shows_heads_and_a_click_filters_everything(self):
        self.open()
        heads = self.kept.at("retained_importance_head", "snapkv", "0.3").mean(-1)
        self.browser.choose("map-measure", "retained_importance_head")
        for head in (0, 4, 8):
            np.testing.assert_allclose(self.cells("a", head), heads[:, head], atol=2e-3)
        self.browser.choose("map-measure", "kept share")
        share = self.kept.at("kept", "h2o", "0.3") / 431
        np.testing.assert_allclose(self.cells("b", 1), share[:, 1], rtol=1e-5)
        self.browser.click('#map-a .cell[data-layer="15"][data-head="-1"]')
        self.assertEqual(self.browser.state()["layer"], "15")
        value = self.numbers.at("retained_importance", "snapkv", "0.3")[
            self.numbers.layers.index(15), self.numbers.steps.index(500)]
        self.assertAlmostEqual(self.readout("steps1")["snapkv"], value, delta=1e-3)
        self.assertEqual(self.struck("a"), self.gone("snapkv", "0.3", layer=15))
        self.browser.click('#map-a .cell[data-layer="15"][data-head="-1"]')
        self.assertNotIn("layer", self.browser.state())

    def gone(self, policy, budget, layer=None, head=None):
        """Prompt tokens that no head keeps."""
        mask = self.kept.at("kept_mask", policy, budget) == 1
        if layer is not None:
            mask = mask[[self.kept.layers.index(layer)]]
        if head is not None:
            mask = mask[:, [head]]
        return np.nonzero(~mask.any(axis=(0, 1)))[0].tolist()

    def struck(self, side):
        return self.browser.run("return [...document.querySelectorAll(`#pane-${arguments[0]} "
                                ".tok.gone`)].map((one) => Number(one.dataset.at))", side)

    def test_the_text_is_coloured_by_the_heads_that_keep_it(self):
        self.open()
        for side, policy in (("a", "snapkv"), ("b", "h2o")):
            self.assertEqual(self.struck(side), self.gone(policy, "0.3"))
            mask = self.kept.at("kept_mask", policy, "0.3") == 1
            depth = self.browser.run(
                "return [...document.querySelectorAll(`#pane-${arguments[0]} .tok`)].map((one) => "
                "Number(getComputedStyle(one).backgroundColor.match(/[\\d.]+/g)[3] ?? 1))", side)
            np.testing.assert_allclose(depth, 0.62 * mask.mean(axis=(0, 1)), atol=5e-3)
        self.browser.choose("layer", "20")
        self.browser.choose("head", "7")   # query head 7 reads KV head 2
        self.assertEqual(self.struck("a"), self.gone("snapkv", "0.3", 20, 2))

    def test_the_list_says_what_the_step_lost_as_explain_does(self):
        self.open("policy=snapkv&vs=none&budget=0.3&step=500&layer=18&mode=step")
        found = json.loads(kvsim("explain", self.masks, "--policy", "snapkv", "--budget", "0.3",
                                 "--layer", "18", "--step", "500", "--json").stdout)
        rows = self.browser.run("return [...document.querySelectorAll('#looked tbody tr')].map("
                                "(row) => [Number(row.dataset.at), row.cells[2].textContent, "
                                "row.cells[4].textContent])")
        self.assertGreater(len(rows), 5)
        known = {one["position"]: one for one in found["lost"]}
        self.assertEqual(rows[0][0], found["lost"][0]["position"])
        for position, importance, share in rows[:5]:
            expected = known[position]["importance"]
            self.assertAlmostEqual(self.shown(importance), expected, delta=1e-3)
            lost = known[position]["lost"] / expected
            self.assertAlmostEqual(self.shown(share.removesuffix(" %")) / 100, lost, delta=6e-3)
        marked = self.browser.run("return [...document.querySelectorAll('#pane-a .tok.lost')]"
                                  ".map((one) => Number(one.dataset.at))")
        self.assertIn(rows[0][0], marked)
        self.browser.click("#looked tbody tr")
        self.assertEqual(self.browser.run("return document.querySelector('#pane-a .chosen')"
                                          ".dataset.at"), str(rows[0][0]))

    def test_spans_show_keep_rates_and_the_unbiased_line(self):
        self.open()
        lines = dict(self.browser.run(
            "return [...document.querySelectorAll('#span-1-layer .line')].map((one) => "
            "[one.dataset.label, one.__data__.map((point) => point[1])])"))
        rate = self.numbers.at("keep_rate", "snapkv", "0.3")[:, 1]
        bias = self.numbers.at("bias_index", "snapkv", "0.3")[:, 1]
        np.testing.assert_allclose(lines["snapkv"], rate, rtol=1e-5)
        np.testing.assert_allclose(lines["snapkv unbiased"], rate - bias, rtol=1e-5)
        by_budget = dict(self.browser.run(
            "return [...document.querySelectorAll('#span-0-budget .line')].map((one) => "
            "[one.dataset.label, one.__data__.map((point) => point[1])])"))
        expected = self.numbers["keep_rate"][self.numbers.policies.index("h2o"), :, :, 0].mean(-1)
        np.testing.assert_allclose(by_budget["h2o"], expected, rtol=1e-5)

    def test_the_record_names_trace_model_command_and_parameters(self):
        self.open()
        text = self.browser.texts("#record")[0]
        for part in ("SmolLM2-135M-Instruct", "kvsim replay data/sample.h5", "sample.h5",
                     self.numbers.file.attrs["trace_digest"], "SnapKV"):
            self.assertIn(part, text)
        rows = dict(self.browser.run("return [...document.querySelectorAll("
                                     "'details[data-policy=\"snapkv\"] tr')].map((row) => "
                                     "[row.cells[0].textContent, row.cells[1].textContent])"))
        config = json.loads(self.numbers.file.attrs["config"])
        policy = next(one for one in config["policies"] if one["record"] == "snapkv")
        self.assertEqual(rows, policy["parameters"])

    def test_an_address_shows_the_same_view_again(self):
        address = "policy=h2o&vs=tova&budget=0.5&layer=20&head=3&step=520&steps=500-600&" \
                  "measure=outlier_count%3Asum&series1=output_error&series2=residual_error&" \
                  "map=kept+share&mode=step&find=lantern&sort=-policy"
        self.open(address)
        self.browser.choose("budget", "0.7")
        state = self.browser.state()
        view = self.browser.texts("main")[0]
        self.browser.open(self.page, self.browser.run("return location.hash.slice(1)"))
        self.assertEqual(self.browser.texts("main")[0], view)
        self.assertEqual((state["budget"], state["layer"], state["head"], state["steps"]),
                         ("0.7", "20", "3", "500-600"))
        self.open("policy=nosuch&budget=17&layer=x&step=-5&steps=9-1&head=99&map=%3Cb%3E")
        self.quiet(self.page)
        self.assertGreater(len(self.browser.texts("#pane-a .tok")), 400)

    def test_keys_move_through_steps_budgets_policies_and_layers(self):
        self.open()
        for key, name, value in (("ArrowRight", "step", "501"), ("ArrowLeft", "step", "500"),
                                 ("]", "budget", "0.5"), ("[", "budget", "0.3"),
                                 ("x", "policy", "h2o"), ("x", "vs", "h2o"), ("m", "mode", "step")):
            self.browser.key(key)
            self.assertEqual(self.browser.state()[name], value, key)
        self.browser.key("n")
        worst = self.browser.run("return document.querySelector('#worst button').dataset.step")
        self.assertEqual(self.browser.state()["step"], worst)
        before = self.browser.state()["policy"]
        self.browser.key("j")
        self.assertNotEqual(self.browser.state()["policy"], before)
        self.browser.key("ArrowDown", "#map-a svg")
        self.browser.key("ArrowRight", "#map-a svg")
        self.browser.key("Enter", "#map-a svg")
        state = self.browser.state()
        self.assertEqual((state["layer"], state["head"]), ("5", "0"))
        self.browser.key("0")
        self.assertNotIn("layer", self.browser.state())
        self.browser.key("?")
        self.assertFalse(self.browser.run("return document.getElementById('keys').hidden"))

    def test_finding_marks_every_place_of_the_prompt(self):
        self.open()
        words = [one.decode() for one in h5py.File(ROOT / "data/sample.h5")["tokens/text"][:431]]
        self.browser.choose("find", "The L")
        count = "".join(words).lower().count("the l")
        self.assertGreater(count, 1)
        self.assertEqual(self.browser.texts("#found")[0], f"{count} places")
        hits = self.browser.texts("#pane-a .hit")
        self.assertEqual("".join(hits).lower().count("the l"), count)

    def test_themes_and_a_phone_are_readable(self):
        for scheme, background in (("light", "rgb(252, 252, 251)"), ("dark", "rgb(16, 19, 23)")):
            self.browser.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {
                "features": [{"name": "prefers-color-scheme", "value": scheme}]})
            self.open()
            self.assertEqual(self.browser.run(
                "return getComputedStyle(document.body).backgroundColor"), background)
        self.browser.size(390, 844)
        self.addCleanup(self.browser.size, 1400, 1000)
        self.open()
        self.assertLessEqual(self.browser.run("return document.documentElement.scrollWidth"), 390)


if __name__ == "__main__":
    unittest.main()
