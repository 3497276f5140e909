"""Rivals with as many trials as ours, and parts given to each other: studies/make.sh rivals [DIR] -o STUDIES

DIR holds what studies/rivals.sh makes: `screened`, every trial replayed on six documents of both models;
`finalists`, the losses of those of least stream error there; `judged`, of each rival the one of least loss, on
fifteen documents set aside; `parts`, policies with parts of another. Writes losses/rivals_screened.csv,
rivals_finalists.csv, rivals.csv, rivals_parts.csv and rivals.png in STUDIES; `pages` fills the tables of
studies/rivals.md. --trials, --parts, --finalists DIR and --judged DIR print what the program is given, a word a line.
"""

import itertools
import sys
from pathlib import Path

import numpy as np
import pandas
import xarray

from kvsim.plots import style
from . import output, set_aside, two_models

BUDGETS, BASE, MODELS, STREAM = two_models.BUDGETS, two_models.BASE, two_models.MODELS, set_aside.STREAM
#: Every combination of these values of a rival's own keys is tried, its preset beside them.
TRIALS = {
    "streaming": {"sinks": (0, 1, 2, 8, 16, 32, 64, 128)},   # it has no other
    BASE: {"weight": ("none", "value-l2", "projected-l2"), "recent": ("0", "0.05", "0.2", "0.5"), "sinks": (0, 4)},
    "snapkv": {"window": (8, 16, 32, 64), "smooth": ("avg", "max"), "kernel": (3, 5, 7)},
    "criticalkv:ada": {"window": (8, 16, 32, 64), "kernel": (3, 5, 7), "ada_floor": ("0", "0.2")},
    "layer-defensivekv:code": {"window": (8, 16, 32, 64), "kernel": (3, 5, 7), "sinks": (0, 4)},
    "restkv": {"window": (8, 16, 32, 64), "aggregate": ("ema", "mean"), "smooth": ("aws", "avg", "none")},
    **{one: {"aggregate": ("max", "mean"), "group": ("max", "mean"), "recent": ("0", "0.05", "0.2"), "sinks": (0, 4)}
       for one in ("kvzip", "kvgrad")},
}
FINAL = 2   # of each rival, beside its preset
#: What `rehearsal:stream` has, by part, and what takes it away there.
PARTS = {
    "aggregation": ({"aggregate": "power-mean", "power": "1.5", "group": "root-mean-square"},
                    {"aggregate": "mean", "group": "mean"}),
    "floor": ({"prior": "mean-share", "prior_share": "0.25"}, {"prior": "none"}),
    "recency": ({"first_layer_recent": "0.3", "recent": "0.05"}, {"first_layer_recent": "0", "recent": "0"}),
    "competition": ({"weight": "projected-l2", "allocate": "joint", "joint_stream": "1"}, {"allocate": "uniform"}),
}
KEYS = ("aggregate", "power", "group", "prior", "prior_share", "weight", "first_layer_recent", "recent", "allocate",
        "joint_stream")
GIVEN = ("snapkv", BASE, "kvzip")
HAVE = {"kvzip": {"allocate": "joint"}}
FEW_BUDGETS = ("0.1", "0.35")   # of parts and finalists
SCREENED, FINALISTS, JUDGED, TRANSPLANTS = "rivals_screened", "rivals_finalists", "rivals", "rivals_parts"


def trials(rival):
    """Records of a rival as they are typed, its preset first."""
    values = TRIALS[rival]
    return [rival, *(",".join([rival, *(f"{key}={one}" for key, one in zip(values, chosen))])
                     for chosen in itertools.product(*values.values()))]


def with_parts(policy, *parts):
    """A policy's canonical text with settings added to it."""
    settings = {key: value for part in parts for key, value in part.items()
                if HAVE.get(policy, {}).get(key) != value}
    return ",".join([policy, *(f"{key}={settings[key]}" for key in KEYS if key in settings)])


def transplants():
    """{policy: {part: record}}: rivals with each of our parts and with all, ours without each."""
    ours = {part: give for part, (give, _) in PARTS.items()}
    found = {one: {"as it is": one, **{f"with our {part}": with_parts(one, give) for part, give in ours.items()},
                   "with all four": with_parts(one, *ours.values())} for one in GIVEN}
    return found | {STREAM: {"as it is": STREAM, **{f"without its {part}": with_parts(STREAM, take)
                                                    for part, (_, take) in PARTS.items()}}}


def options(policies, budgets=BUDGETS):
    """What `kvsim study` is given."""
    return ["--prompt-tokens", "704", "--steps", "128", "--budget", ",".join(budgets), "--reference", BASE,
            "--probe", "repeat:gradient", *(word for one in dict.fromkeys((BASE, *policies)) for word in ("--policy", one))]


def rival_of(policy):
    return policy.partition(",")[0]


def screened(folder):
    """A row per model and trial: its stream error over that of H2O as it is, geometric means over documents by
    budget."""
    logs = {}
    for path in sorted(folder.glob("screened/*/*.nc")):
        with xarray.open_dataset(path, engine="h5netcdf", decode_times=False) as results:
            error = np.log(results.stream_error_rms)
            error = error - error.sel(policy=BASE)
            for at, policy in enumerate(results.policy.values):
                logs.setdefault((path.parent.name, str(policy)), []).append(error.values[at])
    for (model, policy), values in logs.items():
        yield [model, policy, len(values), *(f"{one:.5g}" for one in np.exp(np.mean(values, axis=0)))]


SCREENED_HEADER = ["model", "policy", "documents", *BUDGETS]


def over_both(table, columns):
    """{policy: geometric mean of columns over models}, the least first."""
    return np.log(table.set_index("policy")[list(columns)]).mean(axis=1).groupby(level=0).mean().pipe(np.exp).sort_values()


def finalists(table):
    """Of each rival its preset and the trials of least stream error."""
    order = over_both(table, BUDGETS).index
    return [one for rival in TRIALS for one in
            (rival, *[other for other in order if rival_of(other) == rival and other != rival][:FINAL])]


def best_of_each(losses):
    """{rival: the finalist of least loss}, over both models, documents and budgets."""
    logs = np.log(losses.kl.clip(lower=two_models.boards.LEAST)).groupby(losses.policy).mean()
    return {rival: logs[[one for one in logs.index if rival_of(one) == rival]].idxmin() for rival in TRIALS}


def chosen(studies):
    """Header and rows: of each rival what was chosen, and what it gained on the six documents in the mean."""
    table = pandas.read_csv(studies / f"losses/{SCREENED}.csv")
    losses = two_models.read(studies, FINALISTS)
    error = over_both(table, BUDGETS)
    rows = []
    for rival, one in best_of_each(losses).items():
        found = two_models.relative(losses, rival)
        loss = np.exp(np.mean([np.log(found[model, one, b][0]) for model in MODELS for b in FEW_BUDGETS]))
        rows.append([f"`{rival}`", str(sum(rival_of(other) == rival for other in error.index)), f"`{one}`",
                     f"{error[one] / error[rival]:.2f}", f"{loss:.2f}"])
    return ["rival", "tried", "chosen", "stream error over the preset's", "loss over the preset's"], rows


def judged(studies, model):
    """Header and rows: losses set aside relative to H2O's, rivals as they were chosen."""
    return two_models.table(studies, model, set_aside.JUDGED, JUDGED)


def against(studies):
    """Header and rows: ours over the rival of least loss, where each has had its trials."""
    return two_models.published(two_models.read(studies, set_aside.JUDGED, JUDGED), set_aside.OURS, STREAM)


def parts(studies):
    """Header and rows: losses relative to the policy as it is."""
    losses = two_models.read(studies, TRANSPLANTS)
    rows = []
    for policy, records in transplants().items():
        found = two_models.relative(losses, policy)
        rows += [[f"`{policy}`", part, *(two_models.cell(found[model, one, b]) for model in MODELS for b in FEW_BUDGETS)]
                 for part, one in records.items() if one != policy]
    return ["policy", "changed", *(f"{model.split('-')[0]}, {b}" for model in MODELS for b in FEW_BUDGETS)], rows


def draw(studies):
    """A panel per model, a row per change, a mark for each budget: the loss over that of the policy as it is."""
    losses = two_models.read(studies, TRANSPLANTS)
    looks = {b: {**style.line_style(at), "linestyle": ""} for at, b in enumerate(FEW_BUDGETS)}
    found = {policy: two_models.relative(losses, policy) for policy in transplants()}
    listed = [(policy, part, one) for policy, records in transplants().items() for part, one in records.items()
              if one != policy]
    fig, axes = style.frame(
        "Parts of rehearsal:stream, given to rivals and taken from it",
        "Loss over that of the policy as it is (1). Left of the line the change helps. KL divergence of the next-token "
        f"distribution from the full cache's, geometric mean over {losses.text.nunique()} documents, prompts of 705 tokens, "
        "weights of four bits; bars: 95 % intervals over documents.", 1, 2, 3.9,
        [style.key(f"budget {b}", look) for b, look in looks.items()], ("loss over that of the policy as it is", ""),
        sharey=True)
    for ax, (model, title) in zip(axes.flat, two_models.MODELS.items()):
        ax.axvline(1, color=style.REFERENCE, linewidth=0.8)
        for row, (policy, _, one) in enumerate(listed):
            for at, (budget, look) in enumerate(looks.items()):
                mean, low, high = found[policy][model, one, budget][:3]
                ax.errorbar(mean, row + 0.3 * at - 0.15, xerr=[[mean - low], [high - mean]], **{**look, "linewidth": 0.8})
        ax.set(xscale="log", title=title)
        style.log_ticks(ax.xaxis)
        ax.set_yticks(range(len(listed)), [f"{policy} {part}" for policy, part, _ in listed])
    axes.flat[0].invert_yaxis()
    return fig


def other_rows(folder):
    """Losses of a study but those of H2O as it is, which the table of set_aside.py has."""
    return (row for row in two_models.rows(folder) if row[two_models.HEADER.index("policy")] != BASE)


def main():
    word, *rest = sys.argv[1:] or [""]
    if word == "--trials":
        print("\n".join(["--budget", ",".join(BUDGETS), *(
            word for rival in TRIALS for one in trials(rival) for word in ("--policy", one))]))
    elif word == "--parts":
        print("\n".join(["--keep-traces", *options(
            [one for records in transplants().values() for one in records.values()], FEW_BUDGETS)]))
    elif word == "--finalists":
        table = pandas.DataFrame(screened(Path(rest[0])), columns=SCREENED_HEADER).astype(dict.fromkeys(BUDGETS, float))
        print("\n".join(options(finalists(table), FEW_BUDGETS)))
    elif word == "--judged":
        losses = pandas.DataFrame(two_models.rows(Path(rest[0]) / "finalists"), columns=two_models.HEADER)
        print("\n".join(options([one for one in best_of_each(losses.astype({"kl": float})).values() if "," in one])))
    else:
        output.write_page(__doc__, "rivals", {SCREENED: SCREENED_HEADER} | dict.fromkeys(
            (FINALISTS, TRANSPLANTS, JUDGED), two_models.HEADER), {
                SCREENED: screened, FINALISTS: lambda folder: two_models.rows(folder / "finalists"),
                TRANSPLANTS: lambda folder: two_models.rows(folder / "parts"),
                JUDGED: lambda folder: other_rows(folder / "judged")}, draw)


if __name__ == "__main__":
    main()
