"""Peak memory of kvsim replay against what it may take: the tensors of two layers, 64 MiB a thread,
32 MiB for program and libraries, the results, and 16 bytes per layer, KV head and entry for every
record that ranks across layers.

    /usr/bin/python3 tests/cli/test_memory.py KVSIM
"""

import os
import subprocess
import sys
import tempfile
import unittest

KVSIM = "build/kvsim"
MIB = 2**20
HEADS, KV_HEADS, HEAD_DIM, HIDDEN, STEPS, THREADS = 8, 2, 128, 1024, 512, 2
EIGHT = ["streaming", "knorm", "keydiff", "tova", "snapkv", "adakv", "defensivekv", "restkv"]
BUDGETS = "1%,2%,3%,5%,8%,12%,18%,25%,35%,50%"


def allowed(prompt, layers, queries, across, results):
    keys = prompt + STEPS
    one = 2 * (2 * KV_HEADS * keys * HEAD_DIM + HEADS * (STEPS + queries) * HEAD_DIM +
               HEADS * HEAD_DIM * HIDDEN)
    return (2 * one + 64 * MIB * THREADS + 32 * MIB + results +
            16 * layers * KV_HEADS * prompt * across)


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
    def replay(self, prompt, layers, queries, policies, across=0, options=()):
        with tempfile.TemporaryDirectory() as folder:
            trace, results = os.path.join(folder, "trace.h5"), os.path.join(folder, "results.nc")
            subprocess.run([KVSIM, "synth", "-o", trace, "--prompt", str(prompt), "--steps",
                            str(STEPS), "--num-layers", str(layers), "--heads", str(HEADS),
                            "--kv-heads", str(KV_HEADS), "--head-dim", str(HEAD_DIM), "--hidden",
                            str(HIDDEN), "--dtype", "bfloat16", "--queries",
                            queries or "all", "-q"], check=True)
            command = [KVSIM, "replay", trace, "-o", results, "--budget", BUDGETS, "--threads",
                       str(THREADS), "-q", *options]
            for policy in policies:
                command += ["--policy", policy]
            stored = int(queries.split(":")[1]) if queries else prompt
            used = peak(command)
            bar = allowed(prompt, layers, stored, across, os.path.getsize(results))
            print(f"n = {prompt}, {layers} layers, {len(policies)} policies: "
                  f"{used / MIB:.0f} of {bar / MIB:.0f} MiB", file=sys.stderr)
            self.assertLessEqual(used, bar)

    def test_short_prompt(self):
        self.replay(4096, 2, "window:64", EIGHT)

    def test_outputs_of_every_step_and_head(self):
        self.replay(4096, 1, "window:64", EIGHT, options=["--per-head"])

    def test_long_prompt(self):
        self.replay(32768, 3, "window:64", EIGHT)

    def test_all_prompt_queries(self):
        self.replay(8192, 2, None, ["h2o", "snapkv"])

    def test_ranks_across_layers(self):
        self.replay(8192, 4, "window:64", ["layer-defensivekv", "cake"], across=2)


if __name__ == "__main__":
    if len(sys.argv) > 1 and not sys.argv[1].startswith("-"):
        KVSIM = os.path.abspath(sys.argv.pop(1))
    unittest.main()
