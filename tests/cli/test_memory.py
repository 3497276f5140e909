"""Peak memory of kvsim replay against what it may take: the tensors of two layers, 64 MiB a thread,
32 MiB for program and libraries, the results, and 16 bytes per layer, KV head and entry for every
record that ranks across layers.

    /usr/bin/python3 tests/cli/test_memory.py KVSIM
"""

import dataclasses
import os
import subprocess
import sys
import tempfile
import unittest

KVSIM = "build/kvsim"
MIB = 2**20
HEAD_DIM, HIDDEN = 128, 1024
EIGHT = ["streaming", "knorm", "keydiff", "tova", "snapkv", "adakv", "defensivekv", "restkv"]
BUDGETS = "1%,2%,3%,5%,8%,12%,18%,25%,35%,50%"


@dataclasses.dataclass
class Case:
    prompt: int
    layers: int
    policies: list
    queries: int | None = 64   # stored ones of the prompt, its last; None: all
    heads: int = 8
    kv_heads: int = 2
    steps: int = 512
    across: int = 0   # records that rank across layers
    options: list = dataclasses.field(default_factory=list)

    def synthesize(self, trace):
        stored = "all" if self.queries is None else f"window:{self.queries}"
        subprocess.run([KVSIM, "synth", "-o", trace, "--prompt", str(self.prompt), "--steps",
                        str(self.steps), "--num-layers", str(self.layers), "--heads", str(self.heads),
                        "--kv-heads", str(self.kv_heads), "--head-dim", str(HEAD_DIM), "--hidden",
                        str(HIDDEN), "--dtype", "bfloat16", "--queries", stored, "-q"], check=True)

    def allowed(self, threads, results):
        queries = self.prompt if self.queries is None else self.queries
        layer = 2 * (2 * self.kv_heads * (self.prompt + self.steps) * HEAD_DIM +
                     self.heads * (self.steps + queries) * HEAD_DIM + self.heads * HEAD_DIM * HIDDEN)
        return (2 * layer + 64 * MIB * threads + 32 * MIB + results +
                16 * self.layers * self.kv_heads * self.prompt * self.across)


def peak(command):
    """Bytes resident at most; this process holds little, so that its copy in the child counts not."""
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    said = process.stderr.read()
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    process.stderr.close()
    if process.returncode != 0:
        raise AssertionError(said)
    return usage.ru_maxrss * 1024


class PeakMemory(unittest.TestCase):
    def replay(self, case, most=None):
        """With one thread and with two, which work on more at a time. `most`: MiB of one thread,
        in the place of the formula."""
        with tempfile.TemporaryDirectory() as folder:
            trace, results = os.path.join(folder, "trace.h5"), os.path.join(folder, "results.nc")
            case.synthesize(trace)
            command = [KVSIM, "replay", trace, "-o", results, "--overwrite", "--budget", BUDGETS,
                       "-q", *case.options]
            for policy in case.policies:
                command += ["--policy", policy]
            for threads in (1, 2) if most is None else (1,):
                used = peak([*command, "--threads", str(threads)])
                bar = most * MIB if most else case.allowed(threads, os.path.getsize(results))
                print(f"n = {case.prompt}, {case.layers} layers, {case.heads} heads, "
                      f"{len(case.policies)} policies, --threads {threads}: "
                      f"{used / MIB:.0f} of {bar / MIB:.0f} MiB", file=sys.stderr)
                with self.subTest(threads=threads):
                    self.assertLessEqual(used, bar)

    def test_short_prompt(self):
        self.replay(Case(4096, 2, EIGHT))

    def test_outputs_of_every_step_and_head(self):
        self.replay(Case(4096, 1, EIGHT, options=["--per-head"]))

    def test_outputs_of_many_heads(self):
        self.replay(Case(4096, 2, EIGHT, heads=32, kv_heads=8))

    def test_long_prompt(self):
        self.replay(Case(32768, 3, EIGHT))

    def test_one_layer_of_a_long_prompt_by_one_thread(self):
        self.replay(Case(32768, 1, EIGHT, heads=32, steps=192), most=137)

    def test_all_prompt_queries(self):
        self.replay(Case(8192, 2, ["h2o", "snapkv"], queries=None))

    def test_ranks_across_layers(self):
        self.replay(Case(8192, 4, ["layer-defensivekv", "cake"], across=2))


if __name__ == "__main__":
    if len(sys.argv) > 1 and not sys.argv[1].startswith("-"):
        KVSIM = os.path.abspath(sys.argv.pop(1))
    unittest.main()
