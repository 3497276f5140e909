"""Numbers about merging over several traces, with 95 % bootstrap intervals over the traces, from the
results files of scripts/reproduce_merging.sh. Prints Markdown tables.

    ~/.cache/kvsim/plots/bin/python scripts/merging_numbers.py build/reproduction NAME...
"""

import sys
from pathlib import Path

import numpy as np

sys.path[:0] = [str(Path(__file__).resolve().parents[1] / "python")]

from kvsim.plots import load, statistics, style  # noqa: E402


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
    return values[results.policies.index(policy), 0]


def merging(files):
    columns = (("output_error", "{:.3f}"), ("attention_sag", "{:.3f}"),
               ("attention_shift", "{:.3f}"), ("log_mass_defect", "{:.2f}"),
               ("dropped_attention", "{:.3f}"))
    policies = load.common_policies(files)
    found = {(policy, name): [style.mean_over(of_policy(one, name, policy, "step"), None)
                              for one in files]
             for policy in policies for name, _ in columns}
    head = ["policy"] + [name for name, _ in columns]
    table(head, [[f"`{policy}`"] + [with_interval(found[policy, name], form) +
                                   (differs(found[policy, name], found["convex", name])
                                    if name == "output_error" and "convex" in policies else "")
                                   for name, form in columns] for policy in policies])


def bounds(files):
    rows = []
    delays = [int(delay) for delay in files[0].data["delay"].values]
    names = [str(name) for name in files[0].data["bound"].values]
    for policy in load.common_policies(files):
        for b, bound in enumerate(names):
            pairs = [np.nansum(of_policy(one, "bound_pairs", policy, "bound", "delay")[:, b, 0])
                     for one in files]
            if not all(pairs):
                continue

            def over_layers(name, summary=style.middle):
                return np.array([summary(of_policy(one, name, policy, "bound", "delay")[:, b], 0)
                                 for one in files])
            rows.append([f"`{policy}`", bound, f"{int(sum(pairs))}"] + [
                " / ".join(form.format(x) for x in style.mean_over(values, 0)) for form, values in
                (("{:.2f}", over_layers("bound_share_applicable", style.mean_over)),
                 ("{:.2g}", over_layers("bound_share_violated", style.most)),
                 ("{:.2g}", over_layers("bound_perturbation")),
                 ("{:.2g}", over_layers("bound_median")))])
    table(["policy", "bound", "pairs"] +
          [f"{what} at delays {', '.join(map(str, delays))}" for what in
           ("share applicable", "share violated (worst layer)", "median change",
            "median bound")], rows)


def predictors(files):
    kinds = [str(name) for name in files[0].data["score"].values]
    rows = []
    for k, predictor in enumerate(str(name) for name in files[0].data["predictor"].values):
        row = [f"`{predictor}`"]
        for kind in range(len(kinds)):
            for name in ("median", "weighted_mean"):
                row.append(with_interval([style.middle(
                    one.variable(f"prediction_error_{name}", "layer", "score", "predictor")
                    [:, kind, k], 0) for one in files], "{:.2f}"))
        rows.append(row)
    table(["predictor"] + [f"{kind}, {name}" for kind in kinds for name in ("median", "weighted")],
          rows)


def selections(files):
    """Mean error at each budget; * where it differs from that of dropping."""
    labels = files[0].budget_labels()
    rows, dropped = [], None
    for policy in load.common_policies(files):
        error = np.array([style.mean_over(
            one.variable("output_error_mean", "policy", "budget", "layer")
            [one.policies.index(policy)], 1) for one in files])
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
