"""The whole command, from opening the trace to the results file on disk, beside PyTorch."""
import dataclasses
import os
import re
import statistics
import subprocess
import tempfile
import time


@dataclasses.dataclass
class Shape:
    heads: int = 8
    kv_heads: int = 2
    d: int = 128
    hidden: int = 1024
    steps: int = 512
    layers: int = 4

    def __str__(self):
        return (f"{self.heads} heads on {self.kv_heads} KV heads, d = {self.d}, "
                f"D = {self.hidden}, T = {self.steps}, {len(POLICIES)} policies x "
                f"{len(BUDGETS.split(','))} budgets")


POLICIES = ["streaming", "knorm", "keydiff", "tova", "snapkv", "adakv", "defensivekv", "restkv"]
BUDGETS = "1%,2%,3%,5%,8%,12%,18%,25%,35%,50%"
KERNELS = ["score", "rank", "replay", "project"]
MIB = 2**20


def make_trace(kvsim, shape, n, path):
    subprocess.run([kvsim, "synth", "-o", path, "--prompt", str(n), "--steps", str(shape.steps),
                    "--num-layers", str(shape.layers), "--heads", str(shape.heads), "--kv-heads",
                    str(shape.kv_heads), "--head-dim", str(shape.d), "--hidden",
                    str(shape.hidden), "--dtype", "bfloat16", "--queries", "window:64",
                    "--overwrite", "-q"], check=True)


class Command:
    """One run of `kvsim replay`: seconds of the process, seconds by phase, peak memory."""

    def __init__(self, options, trace, backend="cpu"):
        command = [options.kvsim, "replay", trace, "-v", "-o", trace + ".nc", "--overwrite",
                   "--budget", BUDGETS, "--threads", str(options.threads), "--backend", backend]
        for policy in POLICIES:
            command += ["--policy", policy]
        begin = time.perf_counter()
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
                                   text=True)
        said = process.stderr.read()
        _, status, usage = os.wait4(process.pid, 0)
        self.seconds = time.perf_counter() - begin
        if status != 0:
            raise SystemExit(said)
        phases = re.search(r"seconds: (.*)", said).group(1)
        self.phases = {name: float(value) for name, value in re.findall(r"(\w+) ([\d.]+)", phases)}
        self.gflops = float(re.search(r"\((\d+) GFLOP/s\)", said).group(1))
        self.kernels = sum(self.phases[name] for name in KERNELS)
        self.memory = usage.ru_maxrss * 1024


def allowed_memory(options, shape, n, results):
    """The bar: two layers' tensors, 64 MiB a thread, 32 MiB for the program, and the results."""
    s = shape
    layer = 2 * (2 * s.kv_heads * (n + s.steps) * s.d + s.heads * (s.steps + 64) * s.d +
                 s.heads * s.d * s.hidden)
    return 2 * layer + 64 * MIB * options.threads + 32 * MIB + results


def middle(runs, key):
    return statistics.median(key(run) for run in runs)


def whole_command(options, program, alternate, spread, paired):
    """`program`, `alternate`, `spread`, `paired`: of run.py."""
    shape = Shape()
    print(f"\n### The whole command ({shape.layers} layers, {shape})\n")
    print("| n | `kvsim replay`, s | read | score | rank | replay | project | measure | write "
          "| GFLOP/s of the replay | whole / kernels | peak memory, MiB (bar) "
          "| PyTorch gather, s | times the command | the same outputs, s | times the command |")
    print("|---" * 16 + "|")
    for n in options.lengths:
        with tempfile.TemporaryDirectory() as folder:
            trace = os.path.join(folder, "trace.h5")
            make_trace(options.kvsim, shape, n, trace)
            questions = {"command": lambda: Command(options, trace)}
            if options.torch:
                script = os.path.join(os.path.dirname(__file__), "torch_trace.py")
                Command(options, trace)   # its results say at how many steps it gives outputs
                theirs = program(options, [options.torch, script, trace, str(options.threads)])
                questions["all"] = lambda: theirs.ask("run")
                questions["same"] = lambda: theirs.ask(trace + ".nc")
            runs = alternate(options.rounds, questions)
            allowed = allowed_memory(options, shape, n, os.path.getsize(trace + ".nc"))
        commands = runs["command"]
        seconds = [run.seconds for run in commands]
        phases = " | ".join(f"{middle(commands, lambda run: run.phases[name]):.3f}"
                            for name in ("read", "score", "rank", "replay", "project", "measure",
                                         "write"))
        memory = max(run.memory for run in commands)
        gather = "- | - | - | -"
        if options.torch:
            theirs.close()
            gather = " | ".join(f"{spread(runs[name])} | {paired(runs[name], seconds):.1f}"
                                for name in ("all", "same"))
        print(f"| {n} | {spread(seconds)} | {phases} | {middle(commands, lambda r: r.gflops):.0f} | "
              f"{middle(commands, lambda r: r.seconds / r.kernels):.2f} | {memory / MIB:.0f} "
              f"({allowed / MIB:.0f}) | {gather} |", flush=True)
