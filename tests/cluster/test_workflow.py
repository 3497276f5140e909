"""The Snakemake workflow of scripts/cluster on this machine: several shards at once, one of them
killed in the middle, must give the data of one run. Run: /usr/bin/python3 tests/cluster/test_workflow.py

Needs Snakemake where scripts/cluster/run.sh installs it; without it one line says so.
"""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest
from pathlib import Path

import h5py
import numpy as np

ROOT = Path(__file__).resolve().parent.parent.parent
KVSIM = Path(os.environ.get("KVSIM_BIN", ROOT / "build" / "kvsim")).resolve()
CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "kvsim"
if not (CACHE / "cluster" / "bin" / "snakemake").is_file():
    print("tests/cluster skipped: no Snakemake; scripts/cluster/run.sh installs it")
    sys.exit(0)

SWEEP = """traces = ["{folder}/one.h5", "{folder}/two.h5"]
budgets = [0.2, 0.5]
[[policy]]
preset = "restkv"
ema_alpha = [0.1, 0.2, 0.3, 0.5, 0.7, 0.9]
aws_beta = [5, 20, 100, 500, 2000, 8000]
"""
SHARDS = 4
TORCH = Path(os.environ.get("KVSIM_TORCH", CACHE / "torch" / "bin" / "python"))
MODEL = """
import sys, torch, transformers
sys.path.append("tests/capture")
import tiny_models
tokenizer = tiny_models.make_tokenizer()
model = transformers.AutoModelForCausalLM.from_config(tiny_models.configs(len(tokenizer))["llama"])
model.save_pretrained(sys.argv[1]), tokenizer.save_pretrained(sys.argv[1])
"""
FIGURES = "sensitivity,sensitivity_map,tornado"


def kvsim(*arguments):
    subprocess.run([KVSIM, *map(str, arguments)], check=True, stdout=subprocess.DEVNULL,
                   stderr=subprocess.DEVNULL)


def shard_process(folder, shard):
    """The process id of this shard's kvsim; None while there is none."""
    for process in Path("/proc").iterdir():
        if not process.name.isdigit():
            continue
        try:
            words = (process / "cmdline").read_bytes().decode().split("\0")
        except OSError:  # it has ended
            continue
        if (Path(words[0]).name == "kvsim" and str(folder / "out") in words
                and f"{shard}/{SHARDS}" in words):
            return int(process.name)
    return None


def same_data(test, a, b):
    """Every variable of two results files, to the bit."""
    with h5py.File(a) as one, h5py.File(b) as other:
        test.assertEqual(list(one), list(other))
        for name in one:
            x, y = one[name][()], other[name][()]
            equal = x.tobytes() == y.tobytes() if x.dtype != object else np.array_equal(x, y)
            test.assertTrue(equal, f"{name} of {b}")


class WorkflowTest(unittest.TestCase):
    def setUp(self):
        self.folder = Path(tempfile.mkdtemp(prefix="kvsim-cluster-"))
        self.addCleanup(shutil.rmtree, self.folder)
        for name, seed in (("one", 1), ("two", 2)):
            kvsim("synth", "-o", self.folder / f"{name}.h5", "--prompt", 768, "--steps", 64,
                  "--num-layers", 4, "--seed", seed)
        self.sweep = self.folder / "sweep.toml"
        self.sweep.write_text(SWEEP.format(folder=self.folder))

    def kill_one_shard(self, run):
        """SIGKILL for a shard that works and has finished units; True if it was still at work."""
        units = self.folder / "out" / "units"
        while run.poll() is None:
            process = shard_process(self.folder, 2)
            if process and any(units.glob("*.nc")):
                os.kill(process, signal.SIGKILL)
                return True
            time.sleep(0.01)
        return False

    def test_a_killed_worker_changes_nothing(self):
        kvsim("sweep", self.sweep, "-o", self.folder / "whole")
        with (self.folder / "log").open("w") as log:
            run = subprocess.Popen(
                [ROOT / "scripts" / "cluster" / "run.sh", self.sweep, self.folder / "out",
                 str(SHARDS), "threads=1", f"kvsim={KVSIM}", f"figures={FIGURES}", "--", "--cores", "3"],
                cwd=self.folder, stdout=log, stderr=subprocess.STDOUT)
            killed = self.kill_one_shard(run)
            status = run.wait(timeout=600)
        text = (self.folder / "log").read_text()
        self.assertEqual(status, 0, text)
        self.assertTrue(killed, "the shard was over before it could be killed")
        self.assertIn("Trying to restart job", text)
        for name in ("one", "two"):
            same_data(self, self.folder / "whole" / f"{name}.nc", self.folder / "out" / f"{name}.nc")
        figures = {path.stem for path in (self.folder / "out" / "figures").glob("*.png")}
        self.assertEqual(figures, {f"{name}-restkv" for name in FIGURES.split(",")})
        table = (self.folder / "out" / "best.csv").read_text().splitlines()
        self.assertGreater(len(table), 4)

    @unittest.skipUnless(TORCH.is_file(), f"no PyTorch at {TORCH} (data/requirements.txt)")
    def test_a_study_in_shards_has_the_numbers_of_one(self):
        subprocess.run([TORCH, "-c", MODEL, self.folder / "model"], check=True, cwd=ROOT,
                       stderr=subprocess.DEVNULL)
        (self.folder / "stories").mkdir()
        for number in range(3):
            told = " ".join(f"The keeper carried {number + k} oars up the steps." for k in range(12))
            (self.folder / "stories" / f"story{number}.txt").write_text(told)
        options = (f"--model {self.folder}/model --texts {self.folder}/stories --prompt-tokens 96 "
                   "--steps 12 --policy snapkv,window=4 --policy streaming --budget 0.3 --probe none")
        kvsim("study", *options.split(), "--threads", 1, "-o", self.folder / "whole")
        done = subprocess.run(
            [ROOT / "scripts" / "cluster" / "study.sh", options, self.folder / "out", "2",
             "threads=1", f"kvsim={KVSIM}", "--", "--cores", "2"],
            cwd=self.folder, capture_output=True, text=True)
        self.assertEqual(done.returncode, 0, done.stderr)
        rows = [sorted((self.folder / name / "losses.csv").read_text().splitlines())
                for name in ("whole", "out")]
        self.assertEqual(rows[0], rows[1])
        self.assertEqual(len(rows[0]), 1 + 3 * 2)


if __name__ == "__main__":
    unittest.main()
