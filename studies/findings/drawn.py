"""Tables of studies/reproduction/ that say in numbers what a figure there shows.

studies/reproduce.sh draws these figures of several traces, and studies/figures.sh copies them
with the CSV files of their numbers. Means and 95 % intervals (t) are over traces.
"""

import csv


NAN = "undefined"   # rank correlation of scores that are all alike
RISKS = {"one query": "one query", "mean over the window": "mean",
         "maximum": "max over queries and heads", "maximum, prior": "max with prior head-mean",
         "defensivekv": "`defensivekv` (norm after the prior)"}
RISK_MEASURES = ("Spearman with true risk", "median of ln(estimate / true)", "underestimated entries")
# Measure and row of attention_traces.csv -> what the table calls them.
DYNAMICS = {
    ("attention held by the largest entries", "largest 1 %"): "attention held by the largest 1 %",
    ("attention held by the largest entries", "largest 5 %"): "attention held by the largest 5 %",
    **{("evicted share of a query's top 20 %", policy):
       f"of the most attended fifth at a step, evicted by `{policy}`"
       for policy in ("h2o", "snapkv", "streaming", "defensivekv", "random")},
    ("locality in time (0: white noise)", "locality, mean over heads"):
        "locality in time, where white noise has 0",
    ("drift of the best entries, either way", "attention: median head"):
        "drift of the best entries at the median head, tokens",
    ("drift of the best entries, either way", "attention: widest window"):
        "widest adaptive window",
    ("key norms: rank correlations", "norm and attention"): "rank correlation of key norm and attention",
    **{("importance, Pearson with the full cache", policy):
       f"correlation of the importance kept by `{policy}` with the full cache's"
       for policy in ("h2o", "defensivekv", "snapkv", "random")},
}
NEEDLES = {"needles1-kept": "one fact: kept", "needles1-importance": "its importance kept",
           "needles4-kept": "four facts: kept", "needles4-importance": "their importance kept"}


def read(folder, name):
    with (folder / f"{name}.csv").open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def cell(row, form="{:.2f}", mean="mean"):
    """Mean and interval of a row."""
    ends = [float(row[key]) for key in (mean, "low", "high")]
    if ends[0] != ends[0]:
        return NAN
    return "{} [{}, {}]".format(*map(form.format, ends)).replace("-", "−")


def order_of_rules(folder, budgets=(0.5, 0.2, 0.1)):
    """Rank correlation of the spans' class scores with those at the largest budget."""
    found = {(row["policy"], float(row["budget"])): row for row in read(folder, "span_order_traces")}
    policies = sorted(dict.fromkeys(policy for policy, _ in found),
                      key=lambda policy: -float(found[policy, budgets[0]]["mean"]))
    return (["policy", *(f"budget {budget:g}" for budget in budgets)],
            [[f"`{policy}`", *(cell(found[policy, budget]) for budget in budgets)]
             for policy in policies])


def risk(folder):
    """What estimates say of the true risk."""
    found = {(row["measure"], row["row"]): row for row in read(folder, "risk_traces")}
    return (["estimate", *RISK_MEASURES],
            [[name, *(cell(found[measure, row]) for measure in RISK_MEASURES)]
             for row, name in RISKS.items()])


def dynamics(folder):
    """Attention of the full cache, and what policies leave of it."""
    found = {(row["measure"], row["row"]): row for row in read(folder, "attention_traces")}
    return (["measure", "mean over traces"],
            [[name, cell(found[key])] for key, name in DYNAMICS.items() if key in found])


def needles(folder):
    """Keep rate and importance of hidden facts."""
    tables = {title: {row["policy"]: cell(row, mean="value") for row in read(folder, name)
                      if row["depth"] == "all"}
              for name, title in NEEDLES.items() if (folder / f"{name}.csv").is_file()}
    return (["policy", *tables], [[f"`{policy}`", *(own[policy] for own in tables.values())]
                                  for policy in next(iter(tables.values()))])
