"""A long trace of the shape of an 8B model through the whole command, beside what the device could do
at best and PyTorch on the same device.

One layer is made and linked as often as there are layers, so that the file stays small: a layer is
read, brought to the device and computed each time."""
import os
import statistics
import sys
import tempfile

from whole_command import BUDGETS, POLICIES, Command, Shape, make_trace

GB, TERA = 1e9, 1e12


def link_layers(path, layers):
    """Makes layers 1, 2, ... of a trace names of its layer 0."""
    import h5py   # of Debian's Python; nothing else here needs it
    with h5py.File(path, "r+") as file:
        for layer in range(1, layers):
            file[f"layers/{layer}"] = file["layers/0"]
        file.attrs["num_layers"] = layers


def bytes_of_layer(shape, n):
    keys = 2 * shape.kv_heads * (n + shape.steps) * shape.d
    return 2 * (keys + shape.heads * (shape.steps + 64) * shape.d +
                shape.heads * shape.d * shape.hidden)


def flops_of_layer(shape, n):
    """Fused replay: scores and outputs once, and a part of the outputs for every policy. Exp-scores
    go through 16-bit tensor cores as a high and a low part, twice."""
    unit = 2 * shape.heads * shape.steps * n * shape.d
    largest = max(float(budget[:-1]) for budget in BUDGETS.split(",")) / 100
    return (1 + 2 * (1 + len(POLICIES) * largest)) * unit


def long_sweep(options, program, alternate, spread, paired):
    """`program`, `alternate`, `spread`, `paired`: of run.py."""
    shape = Shape(heads=32, kv_heads=8, d=128, hidden=4096, steps=512,
                  layers=1)
    n, layers = options.prompt, options.layers
    with tempfile.TemporaryDirectory() as folder:
        trace = os.path.join(folder, "trace.h5")
        make_trace(options.kvsim, shape, n, trace)
        link_layers(trace, layers)
        questions = {"kvsim": lambda: Command(options, trace, options.backend)}
        if options.torch:
            script = os.path.join(os.path.dirname(__file__), "torch_trace.py")
            theirs = program(options, [options.torch, script, trace, str(options.threads),
                                       options.backend, str(layers)])
            questions["torch"] = lambda: theirs.ask("run")
        else:
            print("no torch: its form is left out", file=sys.stderr)
        runs = alternate(options.rounds, questions)
        if options.torch:
            theirs.close()
    commands = runs["kvsim"]
    seconds = [run.seconds for run in commands]
    print(f"\n### A long sweep on {options.backend} (n = {n}, {layers} layers, {shape})\n")
    print("| what | seconds, median [spread] | times the command |\n|---|---|---|")
    print(f"| `kvsim replay` | {spread(seconds)} | 1.00 |")
    for name in (name for name in commands[0].phases if name != "all"):
        phase = statistics.median(run.phases[name] for run in commands)
        print(f"| of that: {name} | {phase:.3f} | |")
    if options.torch:
        print(f"| PyTorch, gather with scaled_dot_product_attention | {spread(runs['torch'])} | "
              f"{paired(runs['torch'], seconds):.2f} |")
    if options.backend == "cpu":
        return
    upload = layers * bytes_of_layer(shape, n) / GB / options.link
    compute = layers * flops_of_layer(shape, n) / TERA / options.device_tflops
    for name, bound in (("upload", upload), ("tensor cores", compute)):
        print(f"| roofline: {name} | {bound:.3f} | {bound / statistics.median(seconds):.2f} |")
