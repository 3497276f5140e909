"""Times the replay beside its baselines in alternating runs and prints tables in Markdown.

Every program first compares its results with float64 and is not timed if they are wrong. Figures
are medians over rounds; [a..b] is the whole spread."""
import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time

from long_sweep import long_sweep
from whole_command import whole_command

POLICIES, LARGEST = 8, 0.5   # of bench/problem.cpp
SHAPES = [(4096, 64), (4096, 128), (32768, 64), (32768, 128)]
GROWTH = [4096, 8192, 16384, 32768, 65536, 131072]
STEPS, GROUP = 144, 4
SHORT = 0.2   # seconds


class Program:
    """A benchmark program that times one run of one form whenever it is asked."""

    def __init__(self, options, command, isa=None):
        environment = os.environ | {"OMP_NUM_THREADS": str(options.threads)}
        if isa:
            environment["KVSIM_ISA"] = isa
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                        text=True, env=environment)
        self.facts, self.errors = {}, {}
        for line in self.process.stdout:
            word, _, rest = line.strip().partition(" ")
            if word == "ready":
                if options.processor_time:
                    self.tell("processor-time")
                return
            if word == "error":
                name, value = rest.split()
                self.errors[name] = float(value)
            else:
                self.facts[word] = rest
        sys.exit(f"{command[0]}: results differ from float64: {self.errors}")

    def ask(self, name):
        """What one run says, mostly its seconds. A short one is done again and again, as layer
        follows layer in a sweep, and its median counts: by then its threads are awake and what
        stands in the caches is its own, not that of the program asked before."""
        begin = time.perf_counter()
        said = [self.run(name)]
        while time.perf_counter() - begin < SHORT:
            said.append(self.run(name))
        return statistics.median(said)

    def run(self, name):
        self.tell(name)
        return float(self.process.stdout.readline())

    def tell(self, text):
        self.process.stdin.write(text + "\n")
        self.process.stdin.flush()

    def close(self):
        self.process.stdin.close()
        self.process.wait()


def alternate(rounds, questions):
    """questions: name -> function; medians and values per name, in turns."""
    values = {name: [] for name in questions}
    for ask in questions.values():   # warm
        ask()
    for _ in range(rounds):
        for name, ask in questions.items():
            values[name].append(ask())
    return values


def spread(values):
    return f"{statistics.median(values):.4g} [{min(values):.4g}..{max(values):.4g}]"


def paired(numerators, denominators):
    """Median of the ratios within each round."""
    return statistics.median(a / b for a, b in zip(numerators, denominators))


def ratios(options, n, d):
    shape = ["--n", str(n), "--d", str(d), "--steps", str(STEPS), "--group", str(GROUP)]
    with tempfile.TemporaryDirectory() as folder:
        file = os.path.join(folder, "problem.bin")
        ours = Program(options, [options.bench, *shape, "--file", file, "--check", "fused",
                                 "sums", "gather", "mask"])
        ours.tell(f"threads {options.threads}")
        questions = {name: lambda name=name: ours.ask(name)
                     for name in ("peak", "fused", "sums", "floor", "gather", "mask")}
        theirs = None
        if options.torch:
            script = os.path.join(os.path.dirname(__file__), "torch_baseline.py")
            theirs = Program(options, [options.torch, script, file, str(n), str(d), str(GROUP),
                                       str(STEPS), str(options.threads)])
            for name in ("torch_binned", "torch_gather", "torch_mask"):
                questions[name] = lambda name=name: theirs.ask(name)
        times = alternate(options.rounds, questions)
        ours.close()
        if theirs:
            theirs.close()
    unit = float(ours.facts["unit"])
    work = (2 + POLICIES * LARGEST) * unit / 1e9
    share = [100 * work / t / p for t, p in zip(times["fused"], times["peak"])]
    sums = [100 * unit / 1e9 / t / p for t, p in zip(times["sums"], times["peak"])]
    print(f"\n### n = {n}, d = {d}, {GROUP} heads x {STEPS} steps, 8 policies x 10 budgets\n")
    print(f"FMA peak {spread(times.pop('peak'))} GFLOP/s; the fused replay reaches "
          f"**{statistics.median(share):.0f} %** of it [{min(share):.0f}..{max(share):.0f}], sums of "
          f"attention {statistics.median(sums):.0f} %.\n")
    print("| form | seconds, median [spread] | times the fused replay | largest error |")
    print("|---|---|---|---|")
    errors = ours.errors | (theirs.errors if theirs else {})
    for name, values in times.items():
        error = f"{errors[name]:.1e}" if name in errors else "-"
        print(f"| {name} | {spread(values)} | {paired(values, times['fused']):.2f} | {error} |",
              flush=True)
    return ours.facts["device"]


def growth(options):
    """Nanoseconds per key, and how far each is from the first."""
    programs = {n: Program(options, [options.bench, "--n", str(n), "--steps", "48"])
                for n in GROWTH}
    for program in programs.values():
        program.tell(f"threads {options.threads}")
    times = alternate(options.rounds, {n: lambda n=n: programs[n].ask("fused") for n in GROWTH})
    for program in programs.values():
        program.close()
    print("\n### Growth with n (d = 128, 4 heads x 48 steps)\n")
    print("| n | seconds | ns per key, median | against n = 4096 | fastest | against n = 4096 |")
    print("|---" * 6 + "|")
    for n in GROWTH:
        per_key = [t / n * 1e9 for t in times[n]]
        first = [t / GROWTH[0] * 1e9 for t in times[GROWTH[0]]]
        print(f"| {n} | {spread(times[n])} | {statistics.median(per_key):.0f} "
              f"| {paired(per_key, first):.2f} | {min(per_key):.0f} "
              f"| {min(per_key) / min(first):.2f} |", flush=True)


def scaling(options):
    """What more threads gain, beside what they gain in a loop that touches no memory."""
    program = Program(options, [options.bench, "--n", "32768", "--steps", "96"])

    def ask(name, threads):
        program.tell(f"threads {threads}")
        return program.ask(name)

    many = options.threads
    times = alternate(options.rounds, {(name, count): lambda name=name, count=count:
                                       ask(name, count)
                                       for name in ("peak", "fused") for count in (1, many)})
    program.close()
    peak = paired(times["peak", many], times["peak", 1])
    fused = paired(times["fused", 1], times["fused", many])
    print(f"\n### Threads\n\n{many} threads gain {peak:.2f}x on the bare FMA loop and {fused:.2f}x "
          f"on the replay (n = 32768): {100 * fused / peak:.0f} %.")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("bench", help="the kvsim_bench program")
    parser.add_argument("kvsim", help="the kvsim program")
    parser.add_argument("--torch", help="a Python that has torch; without it left out")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--processor-time", action="store_true",
                        help="for a busy machine: one thread, timed by its processor time")
    parser.add_argument("--shapes", help="e.g. 4096x128,32768x64 instead of all four")
    parser.add_argument("--only",
                        choices=["ratios", "growth", "scaling", "command", "long"])
    parser.add_argument("--backend", choices=["cpu", "cuda"], default="cpu",
                        help="of the long sweep, which runs only by `--only long`")
    parser.add_argument("--prompt", type=int, default=131072, help="of the long sweep")
    parser.add_argument("--layers", type=int, default=32, help="of the long sweep")
    parser.add_argument("--device-tflops", type=float, default=989,
                        help="of 16-bit tensor cores, for the roofline (H100 and H200: 989)")
    parser.add_argument("--link", type=float, default=55,
                        help="GB/s from host to device, for the roofline (PCIe 5 x16: 55)")
    parser.add_argument("--lengths", default="4096,32768", help="prompts of the whole command")
    options = parser.parse_args()
    options.lengths = [int(n) for n in options.lengths.split(",")]
    if options.processor_time:
        options.threads = 1
    problems = SHAPES
    if options.shapes:
        problems = [tuple(map(int, x.split("x"))) for x in options.shapes.split(",")]
    if options.only in (None, "ratios"):
        for n, d in problems:
            device = ratios(options, n, d)
        print(f"\n{device}; {options.threads} threads.")
    if options.only in (None, "growth"):
        growth(options)
    if options.only in (None, "scaling") and not options.processor_time:
        scaling(options)
    if options.only in (None, "command") and not options.processor_time:
        whole_command(options, Program, alternate, spread, paired)
    if options.only == "long":
        long_sweep(options, Program, alternate, spread, paired)


if __name__ == "__main__":
    main()
