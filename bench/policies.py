"""What policies that merge or choose at every step cost, as a multiple of one that only evicts."""
import os
import statistics
import subprocess
import tempfile

SAMPLE = os.path.join(os.path.dirname(__file__), "..", "data", "sample.h5")
FIRST = "snapkv"   # evicts once; what the others are multiples of
RECORDS = ["keepkv", "keepkv:bias", "convex", "d2o", "cam", "kvmerger", "tova:official",
           "h2o:official", "streaming:official", "snapkv,schedule=periodic"]


def processor_seconds(kvsim, record, threads, folder):
    command = [kvsim, "replay", SAMPLE, "--policy", record, "--threads", str(threads), "-q",
               "-o", os.path.join(folder, "results.nc"), "--overwrite"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    if status != 0:
        raise SystemExit(f"failed: {' '.join(command)}")
    return usage.ru_utime + usage.ru_stime


def policies(options, alternate, spread, paired):
    """`alternate`, `spread`, `paired`: of run.py."""
    counts = sorted({1, options.threads})
    with tempfile.TemporaryDirectory() as folder:
        questions = {
            (record, threads): lambda record=record, threads=threads: processor_seconds(
                options.kvsim, record, threads, folder)
            for record in [FIRST, *RECORDS] for threads in counts}
        times = alternate(options.rounds, questions)
    print("\n### Merging and stepwise policies on the sample, five budgets, beside an evicting one\n")
    print(f"Processor time; `{FIRST}` takes " + ", ".join(
        f"{spread(times[FIRST, threads])} s with --threads {threads}" for threads in counts) + ".\n")
    print("| policy | " + " | ".join(f"--threads {threads}" for threads in counts) + " |")
    print("|---" * (1 + len(counts)) + "|")
    for record in RECORDS:
        ratios = [paired(times[record, threads], times[FIRST, threads]) for threads in counts]
        print(f"| `{record}` | " + " | ".join(f"{ratio:.2f}" for ratio in ratios) + " |", flush=True)
    worst = max(statistics.median(times[record, 1]) / statistics.median(times[FIRST, 1])
                for record in RECORDS)
    print(f"\nAt most {worst:.2f} times.")
