"""What sharing gains: 50 records of one trace in one sweep against 50 runs of kvsim replay.

    /usr/bin/python3 bench/sweep.py [TRACE.h5] [--rounds 3]

Compares the results first and refuses to report the time of wrong ones. The two forms alternate;
printed are medians of wall-clock and processor time, and their ratios.
"""

import argparse
import itertools
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import h5py
import numpy as np

ROOT = Path(__file__).resolve().parent.parent
KVSIM = Path(os.environ.get("KVSIM_BIN", ROOT / "build" / "kvsim")).resolve()
BUDGETS = ("0.1", "0.2", "0.3", "0.5")
WO_STEPS = "16"
GRIDS = {"restkv": {"ema_alpha": (0.1, 0.2, 0.4, 0.5, 0.9), "aws_beta": (5, 20, 100, 500, 8000)},
         "snapkv": {"window": (8, 16, 24, 48, 64), "kernel": (3, 7, 9, 11, 13)}}
# Sums over kept entries are shared between records of a sweep, so that last bits may differ.
TOLERANCE = 1e-5


def records():
    return [f"{preset}," + ",".join(f"{key}={value}" for key, value in zip(axes, values))
            for preset, axes in GRIDS.items() for values in itertools.product(*axes.values())]


def sweep_file(trace):
    text = f'traces = ["{trace}"]\nbudgets = [{", ".join(BUDGETS)}]\nwo_steps = {WO_STEPS}\n'
    for preset, axes in GRIDS.items():
        text += f'[[policy]]\npreset = "{preset}"\n'
        text += "".join(f"{key} = {list(values)}\n" for key, values in axes.items())
    return text


def timed(command):
    """(wall-clock, processor) seconds."""
    before, begin = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    wall, after = time.perf_counter() - begin, resource.getrusage(resource.RUSAGE_CHILDREN)
    return np.array([wall, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime])


def one_sweep(trace, folder):
    shutil.rmtree(folder / "sweep", ignore_errors=True)
    (folder / "sweep.toml").write_text(sweep_file(trace))
    return timed([KVSIM, "sweep", folder / "sweep.toml", "-o", folder / "sweep", "-q"])


def many_runs(trace, folder):
    spent = np.zeros(2)
    for number, record in enumerate(records()):
        spent += timed([KVSIM, "replay", trace, "--policy", record, "--budget", ",".join(BUDGETS),
                        "--wo-steps", WO_STEPS, "-o", folder / f"{number}.nc", "--overwrite", "-q"])
    return spent


def largest_difference(trace, folder):
    """Over all records, budgets, layers and steps; infinite when kept sets differ."""
    largest = 0.0
    with h5py.File(folder / "sweep" / f"{trace.stem}.nc") as sweep:
        for number in range(len(records())):
            with h5py.File(folder / f"{number}.nc") as run:
                if not np.array_equal(sweep["kept"][number], run["kept"][0], equal_nan=True):
                    return float("inf")
                for name in ("retained_importance", "output_error"):
                    difference = np.abs(sweep[name][number] - run[name][0])
                    largest = max(largest, float(np.nanmax(difference)))
    return largest


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("trace", nargs="?", type=Path, default=ROOT / "data" / "sample.h5")
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="kvsim-bench-") as name:
        folder, trace = Path(name), options.trace.resolve()
        rounds = [(one_sweep(trace, folder), many_runs(trace, folder))]
        difference = largest_difference(trace, folder)
        print(f"{trace.name}: {len(records())} records, {len(BUDGETS)} budgets; "
              f"largest difference of the results {difference:.1e}", flush=True)
        if not difference < TOLERANCE:
            sys.exit("the results differ: not timed")
        for _ in range(options.rounds - 1):
            rounds.append((one_sweep(trace, folder), many_runs(trace, folder)))
    middle = np.median(np.array(rounds), axis=0)
    ratios = np.array([runs / sweep for sweep, runs in rounds])
    print(f"{'':18}{'one sweep':>12}{'50 runs':>12}{'ratio':>8}   least and most of "
          f"{options.rounds} rounds")
    for k, what in enumerate(("wall-clock, s", "processor, s")):
        print(f"{what:18}{middle[0, k]:12.2f}{middle[1, k]:12.2f}{np.median(ratios[:, k]):8.2f}"
              f"   {ratios[:, k].min():.2f} to {ratios[:, k].max():.2f}")


if __name__ == "__main__":
    main()
