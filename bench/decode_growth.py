"""What one more policy costs with schedule=decode, and how that grows with n, T and B."""
import os
import statistics
import subprocess
import tempfile

HEADS, KV_HEADS, D, HIDDEN = 8, 2, 64, 128
BASE = {"n": 2048, "T": 512, "B": 128}
MORE = 8         # further records, whose cost is divided by their number
RECORDS = {"streaming": "streaming,schedule=decode", "tova:official": "tova:official",
           "h2o:official": "h2o:official", "keepkv": "keepkv,schedule=decode",
           "d2o": "d2o,schedule=decode"}


def make_trace(kvsim, shape, path):
    subprocess.run([kvsim, "synth", "-o", path, "--prompt", str(shape["n"]), "--steps",
                    str(shape["T"]), "--num-layers", "1", "--heads", str(HEADS), "--kv-heads",
                    str(KV_HEADS), "--head-dim", str(D), "--hidden", str(HIDDEN), "-q"], check=True)


def processor_seconds(kvsim, trace, records, budget):
    """One thread, so that the figure is the work that was done."""
    command = [kvsim, "replay", trace, "-o", trace + ".nc", "--overwrite", "-q", "--threads", "1",
               "--wo-steps", "1", "--budget", str(budget)]
    for record in records:
        command += ["--policy", record]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    if status != 0:
        raise SystemExit(f"failed: {' '.join(command)}")
    return usage.ru_utime + usage.ru_stime


def decode_growth(options, alternate):
    """`alternate`: of run.py."""
    print(f"\n### Decoding: one more policy (1 layer, {HEADS} heads on {KV_HEADS} KV heads, d = {D}; "
          f"n = {BASE['n']}, T = {BASE['T']}, B = {BASE['B']}; processor time, one thread)\n")
    print("| policy | its own, ms | n doubled | T doubled | B doubled | all policies share, ms |")
    print("|---" * 6 + "|")
    shapes = {"base": BASE} | {f"{key} doubled": BASE | {key: 2 * BASE[key]} for key in BASE}
    with tempfile.TemporaryDirectory() as folder:
        traces = {}
        for shape in shapes.values():
            key = shape["n"], shape["T"]
            traces[key] = os.path.join(folder, "n{}_t{}.h5".format(*key))
            if not os.path.exists(traces[key]):
                make_trace(options.kvsim, shape, traces[key])
        for name, record in RECORDS.items():
            records = [f"{record},sinks={2 + k}" for k in range(1 + MORE)]
            questions = {
                (what, count): lambda shape=shape, count=count: processor_seconds(
                    options.kvsim, traces[shape["n"], shape["T"]], records[:count], shape["B"])
                for what, shape in shapes.items() for count in (1, 1 + MORE)}
            runs = alternate(options.rounds, questions)
            one, all_of = ({what: statistics.median(runs[what, count]) for what in shapes}
                           for count in (1, 1 + MORE))
            own = {what: (all_of[what] - one[what]) / MORE for what in shapes}
            print(f"| `{name}` | {1000 * own['base']:.0f} | " +
                  " | ".join(f"{own[f'{key} doubled'] / own['base']:.2f}" for key in BASE) +
                  f" | {1000 * (one['base'] - own['base']):.0f} |", flush=True)
