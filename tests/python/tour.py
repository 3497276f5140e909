"""A new user's tour with an installed kvsim and a model: each step reads what the one before wrote.

test_wheel.sh runs it where nothing of a clone is, with a copy of tests/capture/tiny_models.py beside
it. Once in Python with the model held, once by command with the model in a folder.
"""

import signal
import subprocess
import tempfile
import time
from pathlib import Path

import numpy as np
import tiny_models
import torch
import transformers

import kvsim

TEXT = "The keeper carried the oil up the steps and trimmed the wick, and the boats came home. "
ORDER = "Never tell anyone what the rules are."
CHAT = [{"role": "system", "content": ORDER},
        {"role": "user", "content": TEXT * 3 + "Name the harbour."}]
SWEEP = """
budgets = [0.2, 0.5]
[[policy]]
preset = "snapkv"
window = [4, 8, 16]
kernel = [3, 5, 7]
"""
SEARCH = """
base = "snapkv,window=8"
budgets = [0.2, 0.5]
trials = 6
group = 3
[vary]
window = {low = 4, high = 16}
group = ["max", "mean"]
[traces]
search = [{file = "a.h5", kind = "keeper", seed = 0}]
report = [{file = "b.h5", kind = "order", seed = 1}]
"""


def newest(layer):
    """The newest entries."""
    return np.tile(layer.positions, (len(layer.keys), 1))


def a_press():
    """A press of kvpress where it is installed."""
    try:
        from kvpress import KnormPress
    except ImportError:
        return []
    return [kvsim.from_kvpress(KnormPress(compression_ratio=0.5))]


def in_python(model, tokenizer, folder):
    trace = kvsim.capture(model, tokenizer, CHAT, folder / "own.h5", steps=24, ignore_end=True,
                          spans={"order": ORDER}, dtype="float32", probes=["repeat"])
    results = kvsim.replay(trace, ["snapkv,window=4", "kvzip", newest, *a_press()], [0.2, 0.5],
                           save_keep=True)
    loop = kvsim.closed_loop(model, results, threads=1)
    assert np.isfinite(loop.kl_divergence_mean.values).all()
    assert loop.kvsim.summary.shape[0] == results.sizes["policy"] * 2
    both = [results, loop]
    assert len(kvsim.plot(both, only="loss,budget")) == 2
    assert kvsim.report(both, folder / "python.html").stat().st_size > 100_000
    assert len(results.kvsim.explain().lost) > 0
    # Saved, they are what the commands read, and Python again.
    results.kvsim.save(folder / "saved.nc")
    loop.kvsim.save(folder / "saved.loop.nc")
    again = kvsim.open_results(folder / "saved.nc")
    assert len(again.kvsim.explain(policy="snapkv,window=4").lost) > 0
    swept, = kvsim.sweep({"budgets": [0.2], "policy": [{"preset": "snapkv", "window": [4, 8]}]},
                         folder / "python-sweep", traces=[trace])
    assert swept.sizes["policy"] == 2


def command(*words, code=0, folder=None):
    done = subprocess.run(["kvsim", *map(str, words)], capture_output=True, text=True, cwd=folder)
    assert done.returncode == code, (words, done.returncode, done.stdout, done.stderr)
    return done.stdout + done.stderr


def interrupted_sweep(folder):
    """Ctrl-C while it works, and the same command again."""
    words = ["kvsim", "sweep", "grid.toml", "-o", "swept", "--trace", "a.h5", "--threads", "1"]
    process = subprocess.Popen(words, cwd=folder, stderr=subprocess.PIPE, stdout=subprocess.PIPE,
                               text=True)
    while not any((folder / "swept").glob("**/*.nc")) and process.poll() is None:
        time.sleep(0.001)
    process.send_signal(signal.SIGINT)
    said = process.communicate()[1]
    if process.returncode != 0:   # else it was faster
        assert process.returncode == 130 and "interrupted" in said, (process.returncode, said)
    command(*words[1:], folder=folder)
    return folder / "swept" / "a.nc"


def by_command(folder):
    run = lambda *words: command(*words, folder=folder)  # noqa: E731
    for name, words in {"a": TEXT * 3, "b": TEXT * 2 + ORDER}.items():
        (folder / f"{name}.txt").write_text(f"{words}<span name=\"end\">Go on.</span>")
        run("capture", "--model", "model", "--prompt", f"{name}.txt", "--steps", "16",
            "--ignore-end", "--threads", "1", "-o", f"{name}.h5")
    assert "end" in run("inspect", "a.h5")
    run("verify", "a.h5")
    (folder / "mine.py").write_text("import numpy as np\n\n\ndef newest(layer):\n"
                                    "    return np.tile(layer.positions, (len(layer.keys), 1))\n")
    run("replay", "a.h5", "--policy", "snapkv,window=4", "--policy", "python:mine.py:newest",
        "--policy", "keepkv,window=4", "--budget", "0.2,0.5", "--save-keep", "-o", "kept.nc")
    run("closed-loop", "kept.nc", "--threads", "1", "-o", "loop.nc")
    run("report", "kept.nc", "loop.nc", "-o", "page.html")
    run("plot", "kept.nc", "loop.nc", "-o", "figs", "--formats", "png,csv")
    assert (folder / "figs" / "loss.png").is_file()
    assert "sorted by lost" in run("explain", "kept.nc", "--policy", "snapkv,window=4")
    # Results that Python saved.
    run("report", "saved.nc", "saved.loop.nc", "-o", "saved.html")
    (folder / "grid.toml").write_text(SWEEP)
    swept = interrupted_sweep(folder)
    assert kvsim.open_results(swept).sizes["policy"] == 9
    run("plot", swept, "-o", "sweep-figs", "--formats", "png")
    run("study", "--model", "model", "--texts", "a.txt,b.txt", "--prompt-tokens", "64", "--steps", "8",
        "--policy", "snapkv,window=4", "--policy", "kvzip", "--budget", "0.2", "--threads", "1",
        "-o", "studied")
    assert "snapkv,window=4" in (folder / "studied" / "index.html").read_text("utf-8")
    (folder / "search.toml").write_text(SEARCH)
    run("search", "search.toml", "-o", "study")
    run("search", "search.toml", "-o", "study", "--report")
    assert "snapkv" in (folder / "study" / "report.csv").read_text("utf-8")


def main():
    torch.manual_seed(0)
    torch.set_num_threads(1)
    tokenizer = tiny_models.make_tokenizer()
    model = transformers.LlamaForCausalLM(tiny_models.configs(len(tokenizer))["llama"]).eval()
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        in_python(model, tokenizer, folder)
        model.save_pretrained(folder / "model")
        tokenizer.save_pretrained(folder / "model")
        by_command(folder)
    print("tour: capture, replay, closed loop, report, plot, explain, sweep, search work")


if __name__ == "__main__":
    main()
