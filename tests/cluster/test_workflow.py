"""The Snakemake workflows of scripts/cluster on this machine: several shards at once, one of them
killed in the middle, must give the data of one run. Run: /usr/bin/python3 tests/cluster/test_workflow.py

test_slurm.py beside it runs the same sweep and the same study on Slurm.
"""

import os
import shutil
import signal
import subprocess
import tempfile
import time
import unittest
from pathlib import Path

import h5py
import numpy as np

ROOT = Path(__file__).resolve().parent.parent.parent
KVSIM = Path(os.environ.get("KVSIM_BIN", ROOT / "build" / "kvsim")).resolve()
CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "kvsim"
TORCH = Path(os.environ.get("KVSIM_TORCH", CACHE / "torch" / "bin" / "python"))

SWEEP = """traces = ["{folder}/one.h5", "{folder}/two.h5"]
budgets = [0.2, 0.5]
[[policy]]
preset = "restkv"
ema_alpha = [0.1, 0.2, 0.3, 0.5, 0.7, 0.9]
aws_beta = [5, 20, 100, 500, 2000, 8000]
"""
SEARCH = """base = "snapkv,window=4"
budgets = [0.5]
trials = 12
group = 2
[traces]
search = ["{folder}/one.h5"]
[vary]
window = [2, 4, 8, 16]
smooth = ["none", "avg", "max"]
[sampler]
kind = "random"
"""
SHARDS = 4
FIGURES = "sensitivity,sensitivity_map,tornado"
MODEL = """
import sys, torch, transformers
sys.path.append("tests/capture")
import tiny_models
tokenizer = tiny_models.make_tokenizer()
model = transformers.AutoModelForCausalLM.from_config(tiny_models.configs(len(tokenizer))["llama"])
model.save_pretrained(sys.argv[1]), tokenizer.save_pretrained(sys.argv[1])
"""


def kvsim(*arguments):
    subprocess.run([KVSIM, *map(str, arguments)], check=True, stdout=subprocess.DEVNULL,
                   stderr=subprocess.DEVNULL)


def same_data(test, a, b):
    """Every variable of two results files, to the bit."""
    with h5py.File(a) as one, h5py.File(b) as other:
        test.assertEqual(list(one), list(other))
        for name in one:
            x, y = one[name][()], other[name][()]
            equal = x.tobytes() == y.tobytes() if x.dtype != object else np.array_equal(x, y)
            test.assertTrue(equal, f"{name} of {b}")


class Workflow(unittest.TestCase):
    """A sweep over two traces and a study of three texts, each as one run in the folder `whole` and in
    shards in `out`."""

    def setUp(self):
        self.folder = Path(tempfile.mkdtemp(prefix="kvsim-cluster-"))
        self.addCleanup(shutil.rmtree, self.folder)
        self.log = self.folder / "log"

    def sweep(self):
        """What run.sh takes; the same sweep is then in `whole`."""
        for name, seed in (("one", 1), ("two", 2)):
            kvsim("synth", "-o", self.folder / f"{name}.h5", "--prompt", 768, "--steps", 64,
                  "--num-layers", 4, "--seed", seed)
        sweep = self.folder / "sweep.toml"
        sweep.write_text(SWEEP.format(folder=self.folder))
        kvsim("sweep", sweep, "-o", self.folder / "whole")
        return ["sweep", sweep, self.folder / "out", SHARDS, f"figures={FIGURES}"]

    def study(self, shards):
        """What run.sh takes; the same study is then in `whole`."""
        subprocess.run([TORCH, "-c", MODEL, self.folder / "model"], check=True, cwd=ROOT,
                       stderr=subprocess.DEVNULL)
        (self.folder / "stories").mkdir()
        for number in range(3):
            told = " ".join(f"The keeper carried {number + k} oars up the steps." for k in range(12))
            (self.folder / "stories" / f"story{number}.txt").write_text(told)
        options = (f"--model {self.folder}/model --texts {self.folder}/stories --prompt-tokens 96 "
                   "--steps 12 --policy snapkv,window=4 --policy streaming --budget 0.3 --probe none")
        kvsim("study", *options.split(), "--threads", 1, "-o", self.folder / "whole")
        return ["study", options, self.folder / "out", shards]

    def search(self, shards):
        """What run.sh takes."""
        kvsim("synth", "-o", self.folder / "one.h5", "--prompt", 256, "--steps", 16)
        file = self.folder / "search.toml"
        file.write_text(SEARCH.format(folder=self.folder))
        return ["search", file, self.folder / "out", shards]

    def start(self, workflow, *options):
        """The process of a workflow, with the options of Snakemake; it writes into `log`."""
        with self.log.open("w") as log:
            return subprocess.Popen(
                [ROOT / "scripts" / "cluster" / "run.sh", *map(str, workflow), "threads=1", "mem_mb=1000",
                 f"kvsim={KVSIM}", "--", *options], cwd=self.folder, stdout=log, stderr=subprocess.STDOUT)

    def shards_at_work(self):
        """By shard of this folder, the ids of its jobs' processes: kvsim, then the Python that it becomes.
        A child that has yet to become another program looks the same, but its end would not end the job."""
        parents = {}   # (shard, process): the process that started it
        for process in Path("/proc").iterdir():
            if not process.name.isdigit():
                continue
            try:
                words = (process / "cmdline").read_bytes().decode().split("\0")
                parent = (process / "stat").read_text().rpartition(")")[2].split()[1]
            except OSError:  # it has ended
                continue
            if "--shard" in words and any(word.startswith(str(self.folder / "out"))
                                          for word in words):
                shard = int(words[words.index("--shard") + 1].split("/")[0])
                parents[shard, int(process.name)] = int(parent)
        found = {}
        for (shard, process), parent in parents.items():
            if (shard, parent) not in parents:
                found.setdefault(shard, []).append(process)
        return found

    def wait_for(self, run, found, what):
        """What found() gives, once it gives something; the workflow must still run."""
        while True:
            here = found()
            if here:
                return here
            self.assertIsNone(run.poll(), f"over before {what}:\n{self.said()}")
            time.sleep(0.01)

    def finish(self, run):
        """What the workflow, which must succeed, has said."""
        self.assertEqual(run.wait(timeout=600), 0, self.said())
        return self.log.read_text()

    def said(self):
        """What a workflow and its jobs on a cluster have said."""
        jobs = sorted((self.folder / ".snakemake" / "slurm_logs").rglob("*.log"))
        return "\n".join(file.read_text() for file in [self.log, *jobs])

    def check_sweep(self):
        for name in ("one", "two"):
            same_data(self, self.folder / "whole" / f"{name}.nc", self.folder / "out" / f"{name}.nc")
        figures = {path.stem for path in (self.folder / "out" / "figures").glob("*.png")}
        self.assertEqual(figures, {f"{name}-restkv" for name in FIGURES.split(",")})
        table = (self.folder / "out" / "best.csv").read_text().splitlines()
        self.assertGreater(len(table), 4)

    def check_study(self):
        rows = [sorted((self.folder / name / "losses.csv").read_text().splitlines())
                for name in ("whole", "out")]
        self.assertEqual(rows[0], rows[1])
        self.assertEqual(len(rows[0]), 1 + 3 * 2)


class WorkflowTest(Workflow):
    def test_a_killed_worker_changes_nothing(self):
        run = self.start(self.sweep(), "--cores", "3")
        units = self.folder / "out" / "units"
        process = self.wait_for(run, lambda: any(units.glob("*.nc")) and
                                self.shards_at_work().get(2), "a shard could be killed")
        os.kill(process[0], signal.SIGKILL)
        self.assertIn("Trying to restart job", self.finish(run))
        self.check_sweep()

    def test_a_search_in_shards_has_every_candidate_once(self):
        self.finish(self.start(self.search(2), "--cores", "2"))
        out = self.folder / "out"
        rows = (out / "candidates.csv").read_text().splitlines()
        self.assertEqual(len(rows), 1 + 12)
        self.assertIn("12", (out / "summary.txt").read_text())
        self.assertTrue(list((out / "figures").glob("*.png")))

    def test_a_study_in_shards_has_the_numbers_of_one(self):
        self.finish(self.start(self.study(2), "--cores", "2"))
        self.check_study()


if __name__ == "__main__":
    unittest.main()
