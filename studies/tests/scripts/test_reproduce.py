"""studies/reproduce.sh on tiny traces: killed in the middle and started again, without PyTorch; and
the tables that pages make of the numbers of its figures.
Run: tests/group.sh studies_scripts
"""

import os
import signal
import subprocess
import tempfile
import time
import unittest
from pathlib import Path

from findings import drawn

ROOT = Path(__file__).resolve().parents[3]

KVSIM = os.environ["KVSIM_BIN"]
TRACES = {
    "needle_d000_512_0": "needle:20-30",
    "needle_d050_512_0": "needle:90-99",
    "order_defense_leak_512_0": "defense:20-40,directive:60-90",
    "order_defense_wish_512_0": "defense:20-40,directive:60-90",
    "rules_512_0": "secrecy:20-30,tone:40-60,length:80-99",
}


class ReproduceTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="kvsim-reproduce-")
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)
        self.out = self.folder / "out"
        for seed, (name, spans) in enumerate(TRACES.items()):
            subprocess.run([KVSIM, "synth", "-q", "-o", self.folder / f"{name}.h5", "--prompt", "192",
                            "--steps", "24", "--queries", "all", "--seed", str(seed), "--spans", spans],
                           check=True)

    def start(self, names=TRACES):
        traces = [f"{name}.h5" for name in names]
        with (self.folder / "log").open("w") as log:
            return subprocess.Popen(
                [ROOT / "studies" / "reproduce.sh", *traces], cwd=self.folder, stdout=log, stderr=log,
                env=os.environ | {"KVSIM_BIN": KVSIM, "KVSIM_OUT": str(self.out),
                                  "KVSIM_TORCH": str(self.folder / "python")}, start_new_session=True)

    def said(self):
        return (self.folder / "log").read_text()

    def test_a_trace_of_another_name_has_its_figures_of_bias(self):
        name = "order_own_1"
        (self.folder / "order_defense_wish_512_0.h5").rename(self.folder / f"{name}.h5")
        self.assertEqual(self.start([name]).wait(), 0, self.said())
        figures = {file.name for file in (self.out / name).glob("*.png")}
        self.assertLessEqual({"keep_rate_ratios.png", "bias_index.png", "pareto.png"}, figures)

    def test_a_killed_run_goes_on(self):
        run = self.start()
        while "trace 2 of 5" not in self.said():
            self.assertIsNone(run.poll(), self.said())
            time.sleep(0.01)
        os.killpg(run.pid, signal.SIGKILL)
        run.wait()
        done = {file: file.stat().st_mtime_ns for file in self.out.glob("*.nc")}
        self.assertEqual([file.name for file in done], ["needle_d000_512_0.needle.nc"])

        self.assertEqual(self.start().wait(), 0, self.said())
        text = self.said()
        for file, written in done.items():
            self.assertEqual(file.stat().st_mtime_ns, written, "computed again")
        self.assertRegex(text, r"trace 2 of 5, needle_d050_512_0: needles\n")
        self.assertRegex(text, r"trace 5 of 5, rules_512_0: order of rules; about \d+ min left\n")
        self.assertEqual(text.count("closed loops are left out"), 1)
        figures = {str(file.relative_to(self.out)) for file in self.out.rglob("*.png")}
        self.assertLessEqual({"theory/theory/theory.png", "needles-0.5/needles1-kept.png",
                              "rules/span_order_traces.png",
                              "instructions-512/keep_rate_traces.png",
                              "instructions-512/defense-first/pareto.png"}, figures)
        number = r"^(−?\d\.\d\d \[nan, nan\]|undefined)$"   # one trace has no interval
        _, rows = drawn.order_of_rules(self.out / "rules")
        self.assertIn("`snapkv,rounding=kvpress,window=64,constrain=fair`", [row[0] for row in rows])
        for row in rows:
            for one in row[1:]:
                self.assertRegex(one, number)


if __name__ == "__main__":
    unittest.main()
