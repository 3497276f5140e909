#!/usr/bin/env python3
"""Every failure of the system, one after the other: the N-th allocation, open, read, write, fsync,
rename or truncation fails, N = 1, 2, ... until the run passes; and kills at random moments, small
limits, a full disk. Whatever happens, a final name holds the right bytes, the old ones, or nothing,
and the same command run again gives the right ones.

    python tests/cli/test_failures.py KVSIM           some N of each, as every test run does
    python tests/cli/test_failures.py KVSIM --whole   all of them, and 200 kills of each command
    python tests/cli/test_failures.py KVSIM --kills 200   kills and limits alone
    python tests/cli/test_failures.py KVSIM --only study,closed-loop --kills 20

Needs cc and the modules of plots/requirements.txt. What runs a model needs those of
data/requirements.txt, in KVSIM_TORCH or where our scripts install them; without them it is left out.
"""

import argparse
import ctypes
import itertools
import os
import random
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
CALLS = ("open", "read", "write", "sync", "rename", "truncate", "alloc")
STAMP = re.compile(rb"20\d\d-\d\d-\d\dT\d\d:\d\d:\d\dZ")

#: What writes files from Python, without a model: each a program, given the folder.
WRITERS = {
    "capture": """
import numpy as np
from kvsim.kvtrace.writer import TraceWriter
numbers = np.random.default_rng(1)
with TraceWriter(folder / "out.h5") as writer:
    writer.describe(model="m", num_layers=2, prompt_len=12, query_positions=range(16),
                    total_len=16)
    for layer in range(2):
        writer.layer(layer, queries=numbers.normal(size=(2, 16, 4)),
                     keys=numbers.normal(size=(1, 16, 4)), values=numbers.normal(size=(1, 16, 4)),
                     wo=numbers.normal(size=(2, 4, 5)))
""",
    "results": """
from kvsim.results_file import open_results, write_results
write_results(open_results(folder / "in.nc"), folder / "out.nc")
""",
    "study-merge": """
from kvsim.studies.folder import Folder, merge
one = Folder(folder / "one")
one.settle({"budgets": ["0.5"], "steps": 4, "prompt_tokens": 8, "model": "m"})
merge([one.path], Folder(folder / "out"))
""",
    "plot": """
import sys
from kvsim.plots.draw import main
sys.exit(main([str(folder / "in.nc"), "-o", str(folder / "out"), "--only", "stream_error", "--overwrite",
               "--formats", "png"]))
""",
}


CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "kvsim"
TORCH = Path(os.environ.get("KVSIM_TORCH") or CACHE / "torch" / "bin" / "python")
#: What runs a model, seconds each: of the failing calls a row of numbers, never all.
MODELS = ("closed-loop", "study")
#: What goes on where an interrupted run left off.
RESUMES = ("sweep", "search", "study-merge", *MODELS)
TINY_MODEL = """
import sys
sys.path.append(sys.argv[1])
import tiny_models
tiny_models.make_folder(__import__("pathlib").Path("."), "llama")
"""
POLICIES = ("--policy", "snapkv,window=4", "--policy", "streaming", "--budget", "0.3,0.6")
STORY = " ".join(f"The keeper carried {k} oars up the steps." for k in range(14))


class Case:
    """A command, what it reads, and what it leaves under final names."""

    def __init__(self, kvsim, name, folder):
        self.name, self.kvsim, self.folder = name, kvsim, folder
        trace = folder / "in.h5"
        if not trace.exists():
            self.run_plain([kvsim, "synth", "-o", trace, "--prompt", 48, "--steps", 8, "--head-dim",
                            8, "--hidden", 16, "--spans", "none", "-q"])
            self.run_plain([kvsim, "replay", trace, "--policy", "snapkv", "--policy", "knorm",
                            "--budget", "0.5", "--save-keep", "-q", "-o", folder / "in.nc"])
            (folder / "sweep.toml").write_text(
                'budgets = [0.25, 0.5]\ntraces = ["in.h5"]\n[[policy]]\npreset = "snapkv"\n'
                "window = [4, 8]\n")
            (folder / "search.toml").write_text(SEARCH)
            for shard in ("1/2", "2/2"):
                self.run_plain([kvsim, "sweep", folder / "sweep.toml", "-o", folder / "parts",
                                "--shard", shard, "-q"])
        if name in MODELS:
            (folder / "story.txt").write_text(STORY)
            self.run_plain([TORCH, "-c", TINY_MODEL, ROOT / "tests" / "capture"])
        if name == "closed-loop":
            self.run_plain([kvsim, "capture", "--model", "llama", "--prompt", "story.txt", "--steps",
                            8, "--ignore-end", "--threads", 1, "-q", "-o", "model.h5"])
            self.run_plain([kvsim, "replay", "model.h5", *POLICIES, "--save-keep", "-q", "-o",
                            "kept.nc"])
        self.words = [str(word) for word in self.command()]

    def command(self):
        f, common = self.folder, ["--threads", 1, "-q"]
        if self.name in WRITERS:
            text = (f"import sys\nfrom pathlib import Path\nsys.path.insert(0, {str(ROOT / 'python')!r})\n"
                    f"folder = Path({str(f)!r})\n{WRITERS[self.name]}")
            return [sys.executable, "-c", text]
        return [self.kvsim, *{
            "replay": ["replay", f / "in.h5", "--policy", "snapkv", "--policy", "keepkv", "--budget",
                       "0.25,0.5", "--save-keep", "--csv", f / "out.csv", "-o", f / "out.nc",
                       "--overwrite", *common],
            "sweep": ["sweep", f / "sweep.toml", "-o", f / "out", *common],
            "merge": ["merge", *sorted((f / "parts").glob("*.nc")), "-o", f / "out.nc", "--overwrite",
                      "-q"],
            "synth": ["synth", "-o", f / "out.h5", "--prompt", 24, "--steps", 4, "--overwrite",
                      *common],
            "search": ["search", f / "search.toml", "-o", f / "out", *common],
            "closed-loop": ["closed-loop", f / "model.h5", f / "kept.nc", "-o", f / "out.nc",
                            *common],
            "study": ["study", "--model", f / "llama", "--texts", f / "story.txt", *POLICIES,
                      "--prompt-tokens", 96, "--steps", 12, "--probe", "none", "--keep-traces",
                      "-o", f / "out", *common],
        }[self.name]]

    def run_plain(self, words):
        subprocess.run([str(word) for word in words], check=True, cwd=self.folder,
                       stdout=subprocess.DEVNULL, env=self.environment())

    def environment(self):
        python = TORCH if self.name in MODELS else sys.executable
        return {**os.environ, "KVSIM_PYTHON": str(python), "KVSIM_BIN": str(self.kvsim),
                "PYTHONDONTWRITEBYTECODE": "1", "MPLCONFIGDIR": str(self.folder / "mpl"),
                "OMP_NUM_THREADS": "1"}

    def clear(self):
        for path in self.folder.glob("out*"):
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        shutil.rmtree(self.folder / "one", ignore_errors=True)

    def finals(self):
        """Bytes under every final name; those of search that hold times are left out."""
        found = {}
        for top in self.folder.glob("out*"):
            for path in [top] if top.is_file() else top.rglob("*"):
                name = str(path.relative_to(self.folder))
                if path.is_file() and not path.name.startswith(".") and not re.search(
                        r"units/|units\.jsonl$|\.lock$|\.journal$|\.unfinished$|workers/|\.pdf$", name):
                    found[name] = STAMP.sub(b"TIME", path.read_bytes())
        return found

    def leftovers(self):
        return [path for path in self.folder.rglob(".*") if path.is_file() and path.name != ".lock"]

    def begun(self, child):
        """Waits until a command that loads a model first has something to write, or has ended."""
        while self.name in MODELS and child.poll() is None and not any(self.folder.glob("*out*")):
            time.sleep(0.005)
        return time.monotonic()

    def run(self, environment, before=None, after=None):
        child = subprocess.Popen(self.words, cwd=self.folder, stdout=subprocess.DEVNULL,
                                 stderr=subprocess.PIPE, preexec_fn=before, start_new_session=True,
                                 env={**self.environment(), **environment})
        if after:
            after(child)
        try:
            said = child.communicate(timeout=600)[1].decode("utf-8", "replace")
        except subprocess.TimeoutExpired:
            os.killpg(child.pid, signal.SIGKILL)
            raise AssertionError(f"{self.name}: hangs with {environment}") from None
        return child.returncode, said


SEARCH = """base = "snapkv,window=4"
budgets = [0.5]
trials = 4
group = 2
[traces]
search = ["in.h5"]
[vary]
window = [2, 4, 8]
[sampler]
kind = "random"
"""


def obey_modes():
    """Before a program starts: root, too, may write only where modes allow it."""
    drop_of_bounding_set, override = 24, 1   # PR_CAPBSET_DROP, CAP_DAC_OVERRIDE
    ctypes.CDLL(None).prctl(drop_of_bounding_set, override, 0, 0, 0)


class Test:
    def __init__(self, kvsim, folder, preload, options):
        self.kvsim, self.folder, self.preload = kvsim, folder, preload
        self.whole, self.kill_count = options.whole, options.kills
        self.random = random.Random(1)
        self.failed = []
        self.runs = 0

    def numbers(self, case):
        """All N, or those that grow as a geometric row."""
        n = 1
        while True:
            yield n
            n += 1 if self.whole and case.name not in MODELS else max(1, n // 2)

    def wrong(self, case, what, said=""):
        self.failed.append(f"{case.name}: {what}")
        print(f"{case.name}: {what}\n{said[-800:]}", flush=True)

    def judge(self, case, code, said, right, what, crash=False, killed=False):
        """`crash`: it may end by a signal of its own; `killed`: by one from outside."""
        self.runs += 1
        found = case.finals()
        for name, data in found.items():
            if data != right.get(name):
                self.wrong(case, f"{what}: {name} is not what it should be (exit {code})", said)
        if code == 0 and found.keys() != right.keys():
            self.wrong(case, f"{what}: exit 0 without {sorted(right.keys() - found.keys())}", said)
        if code < 0 and not crash and not killed:
            self.wrong(case, f"{what}: ended by signal {-code}", said)
        if not killed and not crash and case.leftovers():
            self.wrong(case, f"{what}: leaves {case.leftovers()}", said)
        for path in case.leftovers():
            path.unlink()

    def again(self, case, right, what):
        if case.finals() == right:
            return   # it was over, and some commands replace nothing that is there
        code, said = case.run({})
        if code != 0 or case.finals() != right:
            self.wrong(case, f"{what}: run again it gives something else (exit {code})", said)
        for path in case.leftovers():
            path.unlink()

    def failures(self, case, right):
        told = self.folder / "told"
        python = case.name in (*WRITERS, *MODELS, "search")
        for call in CALLS:
            if call == "alloc" and python:
                continue   # Python's own allocations are not ours to test
            count = 0
            for n in self.numbers(case):
                case.clear()
                told.unlink(missing_ok=True)
                code, said = case.run({
                    "LD_PRELOAD": str(self.preload), "FAIL_CALL": call, "FAIL_NTH": str(n),
                    "FAIL_UNDER": str(case.folder), "FAIL_TOLD": str(told)})
                if not told.exists():
                    break
                count += 1
                # An allocation before main, or within HDF5, ends the program where it is.
                self.judge(case, code, said, right, f"{call} {n} fails", crash=call == "alloc")
                if case.name in RESUMES or n % 7 == 0:
                    self.again(case, right, f"{call} {n} failed")
            print(f"{case.name}: {call}: {count} failures, up to number {n - 1}", flush=True)

    def kills(self, case, right, seconds, count):
        for k in range(count):
            number = self.random.choice((signal.SIGKILL, signal.SIGTERM))
            delay = self.random.uniform(0, 1.2 * seconds)
            case.clear()

            def kill(child, delay=delay, number=number):
                case.begun(child)
                time.sleep(delay)
                if child.poll() is None:   # with the programs that it runs itself
                    os.killpg(child.pid, number)

            code, said = case.run({}, after=kill)
            self.judge(case, code, said, right, f"{number.name} after {delay:.3f} s", killed=True)
            if k % 4 == 0 or case.name in RESUMES:
                self.again(case, right, f"{number.name} after {delay:.3f} s")
            for path in case.leftovers():
                path.unlink()
        print(f"{case.name}: {count} kills", flush=True)

    def limits(self, case, right):
        """Small files, little memory, a full disk from some moment on, a folder that is read-only."""
        sizes = [2**k for k in range(8, 20, 1 if self.whole else 3)]
        for size in sizes:
            case.clear()
            code, said = case.run({}, before=lambda size=size: resource.setrlimit(
                resource.RLIMIT_FSIZE, (size, size)))
            self.judge(case, code, said, right, f"files of at most {size} bytes")
        for memory in range(16, 400, 8 if self.whole else 48):
            case.clear()
            code, said = case.run({}, before=lambda memory=memory: resource.setrlimit(
                resource.RLIMIT_AS, (memory << 20, memory << 20)))
            # The loader, Python and libgomp end by themselves where even they find no memory.
            self.judge(case, code, said, right, f"{memory} MiB of memory", killed=True)
        for n in (1, 2, 3, 5, 8, 13, 21, 34):
            case.clear()
            code, said = case.run({
                "LD_PRELOAD": str(self.preload), "FAIL_CALL": "write", "FAIL_NTH": str(n),
                "FAIL_UNDER": str(case.folder), "FAIL_ALL": "1"})
            self.judge(case, code, said, right, f"disk full from write {n} on")
        case.clear()
        case.folder.chmod(0o555)
        code, said = case.run({}, before=obey_modes)
        case.folder.chmod(0o755)
        self.judge(case, code, said, right, "a read-only folder")
        if code == 0:
            self.wrong(case, "a read-only folder: exit 0", said)
        self.again(case, right, "after limits")

    def case(self, name):
        folder = self.folder / name
        folder.mkdir()
        case = Case(self.kvsim, name, folder)
        case.clear()
        case.run({"PYTHONDONTWRITEBYTECODE": ""})   # the runs after it find all modules compiled
        case.clear()
        begin = []
        code, said = case.run({}, after=lambda child: begin.append(case.begun(child)))
        seconds = time.monotonic() - begin[0]
        right = case.finals()
        assert code == 0 and right, f"{name}: exit {code}: {said}"
        case.clear()
        case.run({})
        assert case.finals() == right, f"{name}: two runs differ: " + str(
            [key for key in right if case.finals().get(key) != right[key]])
        for path in case.leftovers():
            path.unlink()
        if self.kill_count is None:
            self.failures(case, right)
        self.limits(case, right)
        self.kills(case, right, seconds, self.kill_count or (200 if self.whole else 6))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("kvsim")
    parser.add_argument("--whole", action="store_true")
    parser.add_argument("--kills", type=int)
    parser.add_argument("--only", default="")
    options = parser.parse_args()
    names = ["replay", "sweep", "merge", "synth", "search", *WRITERS]
    names += MODELS if TORCH.is_file() else ()
    names = [one for one in options.only.split(",") if one] or names
    with tempfile.TemporaryDirectory(prefix="kvsim-fail-") as folder:
        preload = Path(folder) / "fail_nth.so"
        subprocess.run(["cc", "-O1", "-shared", "-fPIC", "-o", preload,
                        ROOT / "tests" / "support" / "fail_nth.c", "-ldl"], check=True)
        test = Test(Path(options.kvsim).resolve(), Path(folder), preload, options)
        for name in names:
            begin = time.monotonic()
            test.case(name)
            print(f"{name}: {time.monotonic() - begin:.0f} s, {test.runs} runs", flush=True)
    if test.failed:
        print(f"{len(test.failed)} failures:", *itertools.islice(test.failed, 40), sep="\n  ")
        return 1
    print(f"{test.runs} runs: no torn or wrong file under a final name")
    return 0


if __name__ == "__main__":
    sys.exit(main())
