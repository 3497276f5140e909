"""Files of closed loops with made-up losses, written as `kvsim closed-loop` writes them."""

import numpy as np
import xarray

from kvsim.kvtrace import loop_results


def write(path, losses, steps, digest, *, trace="one.h5", budgets=(0.2, 0.5), answer_begin=None,
          held=None):
    """`losses`: {record: [budgets, steps]}, the KL divergence. Returns `path`."""
    labels = [f"{one:g}" for one in budgets]
    pairs = {(record, label): {"kl_divergence": list(row), "nll_difference": [0.0] * len(steps),
                               "top1_agreement": [1.0] * len(steps)}
             for record, rows in losses.items() for label, row in zip(labels, np.asarray(rows))}
    attributes = {"history": "closed-loop", "trace": trace, "trace_digest": digest,
                  "prompt_len": int(steps[0]), "compressed_layers": [0, 5]}
    if answer_begin is not None:
        attributes["answer_begin"] = answer_begin
    loop_results.write_loop(
        path, {"policy": list(losses), "budget": list(budgets), "budget_label": labels,
               "step": list(map(int, steps))}, pairs, attributes,
        xarray.Dataset({name: (("policy", "budget"), values) for name, values in (held or {}).items()}))
    return path
