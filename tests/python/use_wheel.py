"""Uses an installed kvsim as somebody would who has nothing else of it; test_wheel.sh runs it."""

import importlib.metadata
import inspect
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

import kvsim


def newest(layer):
    """The newest entries."""
    return np.tile(layer.positions, (len(layer.keys), 1))


def command(*words):
    done = subprocess.run(["kvsim", *words], capture_output=True, text=True)
    assert done.returncode == 0, (words, done.stderr)
    return done.stdout


def main():
    where = Path(kvsim.__file__)
    assert Path(sys.prefix) in where.parents, f"not the installed package: {where}"
    assert importlib.metadata.version("kvsim") == kvsim.__version__
    with tempfile.TemporaryDirectory() as folder:
        folder = Path(folder)
        results = kvsim.replay(kvsim.sample(), ["streaming,sinks=0", newest], [0.2], layers=[0, 5],
                               save_keep=True)
        kept = results.kept_mask.values
        assert (kept[0] == kept[1]).all(), "the newest entries are what streaming keeps"
        assert len(kvsim.plot(results, only="budget,retained_importance")) > 0
        assert len(results.kvsim.explain(policy="python:newest").lost) > 0
        # The command of the same environment, and its figures.
        command("replay", str(kvsim.sample()), "--policy", "snapkv", "--layers", "0", "--budget",
                "0.2", "-o", str(folder / "x.nc"))
        command("plot", str(folder / "x.nc"), "-o", str(folder / "figs"), "--only", "budget",
                "--formats", "png")
        assert list((folder / "figs").glob("*.png"))
        command("report", str(folder / "x.nc"), "-o", str(folder / "x.html"), "--trace",
                str(kvsim.sample()))
        assert (folder / "x.html").stat().st_size > 100_000
        # A function in a file: the program finds the package that it is part of.
        (folder / "mine.py").write_text("import numpy as np\n" + inspect.getsource(newest))
        command("replay", str(kvsim.sample()), "--policy", f"python:{folder / 'mine.py'}:newest",
                "--layers", "0", "--budget", "0.2", "-o", str(folder / "y.nc"))
        named = kvsim.open_results(folder / "y.nc")
        assert "newest entries" in next(iter(named.kvsim.records.values()))["function"]["source"]
        # The capture of traces is there; without PyTorch it says so in one line.
        trace = kvsim.synth(folder / "synth.h5", prompt=64, steps=8)
        assert trace.prompt_len == 64
        done = subprocess.run(
            [sys.executable, "-c", "from kvsim.kvtrace.capture_command import main; main()",
             "--model", "none", "--prompt", "none.txt", "-o", str(folder / "t.h5")],
            capture_output=True, text=True)
        assert "Traceback" not in done.stderr and done.stderr.count("\n") == 1, done.stderr
    print(f"kvsim {kvsim.__version__}: replay, functions, figures, report, explain, synth work")


main()
