"""What the model loses: studies/make.sh losses DIR|TABLE.csv... -o figs/

DIR holds the runs that studies/losses.sh makes, TABLE.csv is a table of one; of several the first
counts that has a run. Writes losses.csv of the first (every text, policy and budget), losses_summary.csv
(means over texts with 95 % intervals) and the figure of studies/losses.md, and prints its tables as
Markdown. From a losses_summary.csv it draws the figure alone.
"""

import csv

import numpy as np

from kvsim.plots import statistics, style
from . import output, plan, runs

HEADER = ["texts", "policy", "budget", "measure", "mean", "low", "high", "count"]   # of the summary
BASE = "snapkv"
ONE_RULE = "oracle-mean"   # hindsight of one rule, drawn where the floor is not known
# Drawn and tabled first: one of each family, the methods of the papers, and hindsight.
SHOWN = ("streaming", "knorm", "keydiff", "h2o", "tova", "snapkv", "adakv", "criticalkv", "cake",
         "restkv", "defensivekv", "defensivekv:code", "layer-defensivekv",
         "layer-defensivekv:code", plan.RECENT, ONE_RULE, "oracle-stream", plan.FLOOR)
# Drawn: few, so that each is read. The others lie between streaming and CAKE; the tables have them.
DRAWN = ("streaming", "h2o", BASE, "cake", "layer-defensivekv:code", plan.RECENT, ONE_RULE,
         plan.FLOOR)
NAMES = {ONE_RULE: "hindsight of one rule", plan.FLOOR: "floor: least of hindsight"}
BANDS = ("layer-defensivekv:code", plan.RECENT)   # the best published, and what kvsim found
LENGTHS = {"short": plan.SHORT, "long": plan.LONG,
           "all": plan.TEXTS}


def geometric(logs):
    """exp of the mean of logarithms over texts and its 95 % interval over texts."""
    mean, (low, high) = statistics.over_traces(logs)
    return np.exp(mean), np.exp(low), np.exp(high)


def arithmetic(values):
    mean, (low, high) = statistics.over_traces(values)
    return mean, low, high


def summary(study, texts, policies, budgets):
    """Rows (policy, budget, column, mean, low, high, texts) over the texts that have the policy."""
    for policy in policies:
        for budget in budgets:
            own = study.texts((policy, BASE), (budget,), texts)
            if not own:
                continue
            yield policy, budget, "kl_relative", *geometric(
                study.relative(policy, budget, own)), len(own)
            for column in (*runs.LOSSES, *runs.REPLAYED):
                values = np.array([study.value(column, text, policy, budget) for text in own])
                if np.isnan(values).all():   # the floor has a loss and nothing else
                    continue
                if column in ("kl", "kl_worst"):
                    yield policy, budget, column, *geometric(np.log(values)), len(own)
                else:
                    yield policy, budget, column, *arithmetic(values), len(own)


def below_floor(study, texts, rules=plan.FLOOR_OF, budgets=plan.BUDGETS[1:]):
    """A sentence: how often a policy that sees no later query loses less than the least of `rules`."""
    policies = sorted({policy for run in study.runs for policy in run.policies
                       if not policy.startswith("oracle-")})
    pairs = []
    for text in study.texts(rules, budgets, texts):
        for budget in budgets:
            least = min(study.value("kl", text, rule, budget) for rule in rules)
            pairs += [(text, budget, policy, study.value("kl", text, policy, budget) / least)
                      for policy in policies]
    pairs = [one for one in pairs if not np.isnan(one[-1])]
    below = [f"`{policy}` on {text.stem} at {budget:g} ({ratio:.2f} of it)"
             for text, budget, policy, ratio in pairs if ratio < 1]
    count = len({one[0] for one in pairs})
    return (f"Below the least of {', '.join(f'`{one}`' for one in rules)}: {len(below) or 'none'} of "
            f"{len(pairs)} losses of policies that see no later query, on "
            f"{count} text{'s' * (count != 1)} at {budgets[0]:g} to {budgets[-1]:g}"
            f"{': ' + ', '.join(below) if below else ''}.")


def rules(study, texts, base="oracle-stream", budgets=plan.FEW_BUDGETS):
    """Header and rows: what every rule of hindsight loses relative to one of them, and on how many
    texts; below them the least that a policy loses that sees no later query."""
    blind = {policy for run in study.runs for policy in run.policies
             if not policy.startswith("oracle-")}

    def least(text, budget):
        return np.nanmin([study.value("kl", text, policy, budget) for policy in blind])

    rows = []
    for name, lost in ([(f"`{rule}`", lambda text, budget, rule=rule: study.value(
            "kl", text, rule, budget)) for rule in plan.FLOOR_OF]
            + [("the best policy that sees no later query", least)]):
        logs = np.log([[lost(text, budget) / study.value("kl", text, base, budget)
                        for budget in budgets] for text in texts])
        logs = logs[~np.isnan(logs).any(axis=1)]
        if logs.size:
            rows.append([name, str(len(logs)), *map(number, np.exp(logs.mean(axis=0)))])
    return ["rule", "texts", *(f"{budget:g}" for budget in budgets)], rows


def number(value):
    """Two digits after the point, three below 0.1, four below 0.01."""
    return f"{value:.{2 + (value < 0.1) + (value < 0.01)}f}"


def markdown(found, policies, budgets, column, title):
    print(f"\n{title}\n\n| policy | " + " | ".join(f"{b:g}" for b in budgets) + " |")
    print("|---" * (len(budgets) + 1) + "|")
    for policy in policies:
        cells = [found.get((policy, budget, column)) for budget in budgets]
        if any(cells):
            print(f"| `{policy}` | " + " | ".join(
                f"{number(c[0])} [{number(c[1])}, {number(c[2])}]" if c else "-" for c in cells)
                + " |")


def draw(rows):
    """KL relative to BASE by budget, a panel per length of prompt, from the rows of the summary."""
    known = {}
    for length, policy, budget, column, *values, count in rows[1:]:
        if column == "kl_relative":
            known.setdefault(length, {}).setdefault(policy, []).append(
                [float(one) for one in (budget, *values, count)])
    panels = [name for name in ("short", "long") if BASE in known.get(name, {})]
    one_rule = f" One rule: {ONE_RULE}." * any(ONE_RULE in drawn(known[name]) for name in panels)
    fig, axes = style.frame(
        "What the model loses", "KL divergence of the next-token distribution from the full "
        f"cache's, relative to {BASE} with the same number of entries. Lower is better. Geometric "
        f"mean over texts; bands: 95 % intervals of {' and '.join(BANDS)}. {plan.MODEL}.\nHindsight knows the "
        f"future: no competitor.{one_rule} Floor: on each text the least of "
        "several rules.", 1, len(panels), 2.9, (),
        ("budget (fraction of the prompt kept)", f"loss relative to {BASE}"), sharey=True)
    for ax, name in zip(axes.flat, panels):
        draw_panel(ax, known[name])
        tokens = np.round(LENGTHS[name][0].prompt_tokens, -2)
        ax.set_title(f"{max(int(one[-1]) for one in known[name][BASE])} texts of about "
                     f"{tokens} tokens")
    for ax, name in zip(axes.flat, panels):
        looks = style.policy_looks(DRAWN)
        style.end_labels(ax, [(*max(known[name][policy])[:2], NAMES.get(policy, policy),
                               looks[policy]["color"]) for policy in drawn(known[name])])
    return fig


def drawn(known):
    """Those of DRAWN that are known; hindsight of one rule gives way to the floor."""
    return [one for one in DRAWN if one in known and not (one == ONE_RULE and plan.FLOOR in known)]


def draw_panel(ax, known):
    """`known`: {policy: [[budget, mean, low, high, texts]]}."""
    for policy, look in style.policy_looks(DRAWN).items():
        if policy not in drawn(known):
            continue
        at, mean, low, high, _ = np.array(sorted(known[policy])).T
        ax.plot(at, mean, **{**look, "linewidth": 1.3})
        style.band(ax, at, (low, high), look, policy in BANDS)
    ax.set(xscale="log", yscale="log")
    style.log_ticks(ax.yaxis, 6)
    ax.set_xticks(at, [f"{b:g}" for b in at])
    ax.minorticks_off()


def main():
    options = output.parser(__doc__, "losses", "DIR|TABLE.csv", "FIGS", "+").parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    rows = summary_of(options.source[0]) or tabulate(options.source, options.out)
    output.save(options.out, "losses", lambda: draw(rows))


def summary_of(path):
    """The rows of a summary; None of anything else."""
    if not path.is_file():
        return None
    with path.open(newline="", encoding="utf-8") as file:
        rows = list(csv.reader(file))
    return rows if rows and rows[0][0] == HEADER[0] else None


def tabulate(given, out):
    """Writes and prints the tables of a folder of runs or of its table of losses; returns the rows
    of the summary."""
    study = runs.Study(*given)
    if study.missing:
        print(f"not run: {', '.join(study.missing)}")
    runs.write(out / "losses.csv", runs.Study(given[0]).rows())
    budgets = plan.BUDGETS
    policies = list(dict.fromkeys(policy for run in study.runs for policy in run.policies)) + [plan.FLOOR]
    rows = [HEADER]
    for length, texts in LENGTHS.items():
        found = {}
        for policy, budget, column, *values in summary(study, texts, policies, budgets):
            found[policy, budget, column] = values
            rows.append([length, policy, budget, column, *(f"{v:.5g}" for v in values)])
        for column, title in (("kl_relative", f"KL relative to {BASE}"), ("kl", "KL, nats"),
                              ("kl_worst", "KL, worst 5 % of the steps, nats"),
                              ("top1", "same most likely token"),
                              ("nll", "NLL difference, nats")):
            markdown(found, [*SHOWN, *(p for p in policies if p not in SHOWN)], budgets, column,
                     f"{length}: {title}")
    runs.write(out / "losses_summary.csv", rows)
    return rows


if __name__ == "__main__":
    main()
