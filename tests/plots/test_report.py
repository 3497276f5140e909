"""Tests of what `kvsim report` puts into its page, without a browser: the table, closed loops,
bounds. Run: python3 tests/plots/test_report.py"""

import base64
import contextlib
import gzip
import hashlib
import io
import json
import re
import sys
import tempfile
import unittest
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
sys.path[:0] = [str(ROOT / "python"), str(HERE)]

import h5netcdf  # noqa: F401
import numpy as np
import xarray

import fake_results
import loop_file
from kvsim.plots import statistics
from kvsim.plots.report import detail, write

SMALL = {"policies": ("full", "snapkv,window=16", "h2o"), "budgets": (0.2, 0.5), "layers": (0, 5),
         "steps": 20}


class ReportTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)

    def file(self, name, digest="", **options):
        def edit(data):
            return data.assign_attrs(trace_digest=digest or name, trace=f"{name}.h5")
        return fake_results.write(self.folder / f"{name}.nc", **{**SMALL, "edit": edit, **options})

    def loop(self, name, digest, seed=0):
        generator = np.random.default_rng(seed)
        values = generator.random((2, 2, 20))
        losses = dict(zip(("h2o", "snapkv,window=16"), values))
        return loop_file.write(self.folder / name, losses, range(400, 420), digest), values

    def content(self, *paths, **options):
        page = write.build(list(paths), **options)
        found = re.search(r'id="content">(.*?)</script>', page, re.S)
        return json.loads(found.group(1)), page

    def block(self, page, name):
        found = re.search(rf'id="block-{re.escape(name)}" data-kind="(\w+)">([^<]*)<', page)
        data = gzip.decompress(base64.b64decode(found.group(2)))
        kinds = {"float16": np.float16, "float32": np.float32, "uint8": np.uint8, "int32": np.int32}
        return json.loads(data) if found.group(1) == "json" else \
            np.frombuffer(data, kinds[found.group(1)])

    def refused(self, code, pattern, *arguments):
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            try:
                got = write.main(["--no-trace", *map(str, arguments)])
            except SystemExit as stop:
                got = stop.code
        self.assertEqual((got, out.getvalue(), len(err.getvalue().splitlines())), (code, "", 1),
                         err.getvalue())
        self.assertRegex(err.getvalue(), pattern)

    def test_stream_error_leads_and_the_table_has_the_numbers_of_the_file(self):
        content, _ = self.content(self.file("one"))
        measures = content["verdict"]["measures"]
        self.assertEqual(measures[0]["id"], "stream_error_rms")
        data = xarray.open_dataset(self.folder / "one.nc", engine="h5netcdf")
        np.testing.assert_allclose(measures[0]["values"], data.stream_error_rms, rtol=1e-6)
        low, high = np.array(measures[0]["low"]), np.array(measures[0]["high"])
        self.assertTrue(((low <= measures[0]["values"]) & (measures[0]["values"] <= high)).all())
        worst = next(one for one in measures if one["id"] == "retained_importance_min:worst")
        np.testing.assert_allclose(worst["values"], data.retained_importance_min.min("layer"),
                                   rtol=1e-6)
        self.assertEqual(worst["better"], "high")

    def test_what_a_closed_loop_found_leads_and_stands_at_its_policies(self):
        path, values = self.loop("one.loop.nc", "one")
        content, page = self.content(self.file("one"), path)
        first = content["verdict"]["measures"][0]
        self.assertEqual(first["id"], "kl_divergence_mean")
        self.assertEqual(first["values"][0], [None, None])     # `full` was not run
        np.testing.assert_allclose(first["values"][2], values[0].mean(-1), rtol=1e-6)
        np.testing.assert_allclose(first["values"][1], values[1].mean(-1), rtol=1e-6)
        series = content["traces"][0]["series"][0]
        self.assertEqual(series["id"], "kl_divergence")
        steps = self.block(page, f"{series['mean']}-2").reshape(2, 20)
        np.testing.assert_allclose(steps, values[0], rtol=1e-3)

    def test_a_closed_loop_of_another_trace_is_refused(self):
        path, _ = self.loop("one.loop.nc", "another")
        target = self.folder / "page.html"
        self.refused(3, "none of the results files is of", self.file("one"), path,
                     "-o", target)
        self.refused(3, "losses of a closed loop alone", path, "-o", target)
        self.assertFalse(target.exists())

    def test_intervals_over_traces_are_those_of_the_figures(self):
        paths = [self.file(f"trace{k}", seed=k) for k in range(5)]
        content, _ = self.content(*paths)
        first = content["verdict"]["measures"][0]
        values = np.stack([xarray.open_dataset(path, engine="h5netcdf").stream_error_rms.values
                           for path in paths], axis=-1)
        mean, (low, high) = statistics.over_traces(values, "log")
        np.testing.assert_allclose(first["values"], mean, rtol=1e-6)
        np.testing.assert_allclose(first["low"], low, rtol=1e-6)
        np.testing.assert_allclose(first["high"], high, rtol=1e-6)

    def test_two_files_of_one_trace_are_one_trace(self):
        first = self.file("one", digest="same", policies=("h2o",))
        second = self.file("two", digest="same", policies=("snapkv",), seed=1)
        content, _ = self.content(first, second)
        self.assertEqual(len(content["verdict"]["traces"]), 1)
        self.assertEqual(content["verdict"]["policies"], ["h2o", "snapkv"])
        self.assertNotIn(None, sum(content["verdict"]["measures"][0]["values"], []))

    def test_steps_of_layers_are_averaged_beyond_the_bound(self):
        before, detail.LAYER_VALUES = detail.LAYER_VALUES, 1
        self.addCleanup(setattr, detail, "LAYER_VALUES", before)
        path = self.file("one", steps=100)
        content, page = self.content(path)
        series = next(one for one in content["traces"][0]["series"]
                      if one["id"] == "retained_importance")
        self.assertEqual(len(series["layerBounds"]), 17)
        self.assertFalse(series["layerExact"])
        data = xarray.open_dataset(path, engine="h5netcdf").retained_importance.values
        a, b = series["layerBounds"][3:5]
        mean = self.block(page, f"{series['mean']}-layer-1").reshape(2, 2, 16)
        np.testing.assert_allclose(mean[1, 0, 3], data[1, 1, 0, a:b].mean(), rtol=2e-3)
        worst = self.block(page, f"{series['worst']}-layer-1").reshape(2, 2, 16)
        np.testing.assert_allclose(worst[1, 0, 3], data[1, 1, 0, a:b].min(), rtol=2e-3)
        self.assertTrue(any("single layers" in line for line in content["traces"][0]["leftOut"]))

    def test_the_policy_of_the_page_allows_its_own_scripts_and_nothing_else(self):
        _, page = self.content(self.file("one"), title="</script><b>")
        policy = re.search(r'Content-Security-Policy" content="([^"]*)"', page).group(1)
        policy = policy.replace("&#x27;", "'")
        self.assertIn("default-src 'none'", policy)
        self.assertNotIn("unsafe", policy)
        for tag, count in (("script", 2), ("style", 1)):
            texts = re.findall(rf"<{tag}>(.*?)</{tag}>", page, re.S)
            self.assertEqual(len(texts), count)
            for text in texts:
                digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
                self.assertIn(f"'sha256-{digest}'", policy)
        self.assertNotIn("<b>", page.replace("<b><", ""))

    def test_the_chart_library_is_the_released_file(self):
        library = ROOT / "python" / "kvsim" / "plots" / "report" / "vendor" / "d3.min.js"
        digest = hashlib.sha256(library.read_bytes()).hexdigest()
        self.assertIn(digest, library.with_name("README.md").read_text())
        released = Path("/usr/share/nodejs/d3/dist/d3.min.js")
        if released.is_file() and b"v5.16.0" in released.read_bytes()[:100]:
            self.assertEqual(released.read_bytes(), library.read_bytes())


if __name__ == "__main__":
    unittest.main()
