"""Numbers about merging over several traces, with 95 % intervals (t) over the traces, from the
results files of studies/reproduce_merging.sh. Prints Markdown tables.

    studies/make.sh merging_numbers build/reproduction NAME...
"""

import sys
from pathlib import Path

import numpy as np

from kvsim.plots import load, statistics


def with_interval(values, form):
    """`values` has one number per trace; an interval needs two at least."""
    values = np.asarray(values, np.float64)
    if np.isnan(values).any():
        return "-"
    mean, (low, high) = statistics.over_traces(values)
    if values.size < 2:
        return form.format(mean)
    return f"{form.format(mean)} [{form.format(low)}, {form.format(high)}]"


def differs(values, base):
    """* where the interval of the difference per trace does not contain 0."""
    _, (low, high) = statistics.over_traces(np.asarray(values) - np.asarray(base))
    return "*" if len(values) > 1 and (low > 0 or high < 0) else ""


def table(head, rows):
    print("| " + " | ".join(head) + " |\n" + "|---" * len(head) + "|")
    for row in rows:
        print("| " + " | ".join(row) + " |")
    print()


def of_policy(results, name, policy, *rest):
    """The variable's values for one policy at the file's first budget."""
    values = results.variable(name, "policy", "budget", "layer", *rest)
    return values.sel(policy=policy).isel(budget=0)


def merging(files):
    columns = (("output_error", "{:.3f}"), ("attention_sag", "{:.3f}"),
               ("attention_shift", "{:.3f}"), ("log_mass_defect", "{:.2f}"),
               ("dropped_attention", "{:.3f}"))
    policies = load.common_policies(files)
    found = {(policy, name): [of_policy(one, name, policy, "step").mean() for one in files]
             for policy in policies for name, _ in columns}
    head = ["policy"] + [name for name, _ in columns]
    table(head, [[f"`{policy}`"] + [with_interval(found[policy, name], form) +
                                   (differs(found[policy, name], found["convex", name])
                                    if name == "output_error" and "convex" in policies else "")
                                   for name, form in columns] for policy in policies])


def bounds(files):
    rows = []
    delays = [int(delay) for delay in files[0].data["delay"].values]
    for policy in load.common_policies(files):
        for bound in files[0].data["bound"].values:
            def values(one, name):
                return of_policy(one, name, policy, "bound", "delay").sel(bound=bound)
            pairs = [float(values(one, "bound_pairs").isel(delay=0).sum()) for one in files]
            if not all(pairs):
                continue

            def over_layers(name, summary):
                return load.stacked([getattr(values(one, name), summary)("layer")
                                     for one in files], "trace").mean("trace").values
            rows.append([f"`{policy}`", bound, f"{int(sum(pairs))}"] + [
                " / ".join(form.format(x) for x in over_layers(name, summary))
                for name, summary, form in (("bound_share_applicable", "mean", "{:.2f}"),
                                            ("bound_share_violated", "max", "{:.2g}"),
                                            ("bound_perturbation", "median", "{:.2g}"),
                                            ("bound_median", "median", "{:.2g}"))])
    table(["policy", "bound", "pairs"] +
          [f"{what} at delays {', '.join(map(str, delays))}" for what in
           ("share applicable", "share violated (worst layer)", "median change",
            "median bound")], rows)


def predictors(files):
    first = files[0].data
    rows = []
    for predictor in first["predictor"].values:
        rows.append([f"`{predictor}`"] + [with_interval(
            [one.variable(f"prediction_error_{name}", "layer", "score", "predictor")
             .sel(score=score, predictor=predictor).median() for one in files], "{:.2f}")
            for score in first["score"].values for name in ("median", "weighted_mean")])
    table(["predictor"] + [f"{score}, {name}" for score in first["score"].values
                           for name in ("median", "weighted")], rows)


def selections(files):
    """Mean error at each budget; * where it differs from that of dropping."""
    labels = files[0].budget_labels()
    rows, dropped = [], None
    for policy in load.common_policies(files):
        error = np.array([one.variable("output_error_mean", "policy", "budget", "layer")
                          .sel(policy=policy).mean("layer") for one in files])
        if "merge=" not in policy:
            dropped = error
        rows.append([f"`{policy}`"] + [
            with_interval(error[:, b], "{:.3f}") + differs(error[:, b], dropped[:, b])
            for b in range(len(labels))])
    table(["policy"] + labels, rows)


def main(folder, names):
    for part, show in (("merges", (merging, bounds, predictors)), ("selection", (selections,)),
                       ("periodic", (selections,)), ("bits", (selections,))):
        paths = [Path(folder) / f"{name}.{part}.nc" for name in names]
        files = [load.open_results(path) for path in paths if path.is_file()]
        if not files:
            continue
        print(f"## {part}: {', '.join(load.names(files))}\n")
        for one in show:
            one(files)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
