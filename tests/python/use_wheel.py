"""Uses an installed kvsim as somebody would who has nothing else of it; test_wheel.sh runs it."""

import importlib.metadata
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
    print(f"kvsim {kvsim.__version__}: replay, functions, figures and explain work")


main()
