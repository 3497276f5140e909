"""Writes small made-up results files in the format of docs/results.md, for the tests of the plots.

The numbers only look like those of a replay: retained importance falls with the budget, differs
between policies and layers, and drops sharply at some steps.
"""

import numpy as np
import xarray

POLICIES = ("full", "random", "streaming", "knorm", "tova", "snapkv,window=16", "h2o",
            "importance", "oracle-mean")
BUDGETS = tuple(round(0.1 * k, 1) for k in range(1, 10))


def write(path, policies=POLICIES, budgets=BUDGETS, layers=range(8), steps=150, prompt_len=400,
          spans=("defense", "directive"), residual=True, labels=None, drop=(), edit=None, seed=0):
    """Writes `path`. `drop` names variables left out; `edit` changes the dataset before writing."""
    generator = np.random.default_rng(seed)
    shape = (len(policies), len(budgets), len(layers), steps)
    retained, error = curves(generator, policies, np.array(budgets), shape)
    per_step = ("policy", "budget", "layer", "step")
    per_layer, per_span = per_step[:3], ("policy", "budget", "layer", "span")
    variables = {
        "retained_importance": (per_step, retained),
        "retained_importance_mean": (per_layer, mean_of(retained)),
        "retained_importance_min": (per_layer, retained.min(axis=3)),
        "outlier_count": (per_layer, np.sum(retained < 0.5, axis=3).astype(np.float64)),
        "output_error": (per_step, error),
        "output_error_mean": (per_layer, mean_of(error)),
        "output_error_max": (per_layer, error.max(axis=3)),
        "budget_label": (("budget",), np.array(labels or [f"{b:g}" for b in budgets], object)),
    }
    if residual:
        variables["residual_error"] = (per_step, 0.3 * error)
        variables["residual_error_max"] = (per_layer, 0.3 * error.max(axis=3))
        variables["residual_error_mean"] = (per_layer, 0.3 * mean_of(error))
        stream = 0.1 * np.sqrt(np.sum(error ** 2, axis=2))
        variables["stream_error"] = (("policy", "budget", "step"), stream)
        variables["stream_error_rms"] = (per_step[:2], np.sqrt(np.mean(stream ** 2, axis=2)))
    if spans:
        keep, line = keep_rates(generator, policies, np.array(budgets), len(layers), len(spans))
        variables["keep_rate"] = (per_span, keep)
        variables["bias_index"] = (per_span, keep - line)
        variables["bias_spread"] = (per_layer, keep.max(axis=3) - keep.min(axis=3))
        variables["span_retained_importance"] = (per_span, np.sqrt(keep))
        places = np.linspace(3, prompt_len - 20, len(spans)).astype(np.int64)
        variables["span_begin"] = (("span",), places)
        variables["span_end"] = (("span",), places + 10)
    coordinates = {"policy": np.array(policies, object),
                   "budget": np.array(budgets, np.float64),
                   "layer": np.array(layers, np.int32),
                   "step": np.arange(prompt_len, prompt_len + steps, dtype=np.int64)}
    if spans:
        coordinates["span"] = np.array(spans, object)
    attributes = {"model": "example/tiny-360M", "trace": "/data/example.h5",
                  "prompt_len": prompt_len, "total_len": prompt_len + steps,
                  "num_layers": len(layers)}
    data = xarray.Dataset(variables, coordinates, attributes).drop_vars(drop)
    for name in data.variables:
        data[name].attrs["units"] = "count" if name == "outlier_count" else "1"
    if edit:
        data = edit(data)
    data.to_netcdf(path, engine="h5netcdf")
    return path


def curves(generator, policies, budgets, shape):
    """(retained importance, output error), each policy x budget x layer x step."""
    skill = np.linspace(0.35, 0.97, len(policies))[:, None, None, None]
    layer = generator.normal(0, 0.04, shape[2])[None, None, :, None]
    noise = generator.normal(0, 0.03, shape)
    # Steps that are hard for every policy, the same in all of them, and hardest for the weak.
    hard = (generator.random(shape[2:]) < 0.04) * generator.uniform(0.1, 0.6, shape[2:])
    lost = (1 - budgets[None, :, None, None]) ** (0.6 + 3 * skill)
    lost = lost + (1 - budgets)[None, :, None, None] * (layer + noise + hard * (1.3 - skill))
    retained = np.clip(1 - lost, 0, 1)
    for i, policy in enumerate(policies):
        if policy == "full":
            retained[i] = 1
    return retained, 0.9 * (1 - retained) ** 0.8


def keep_rates(generator, policies, budgets, layers, spans):
    """(keep rate, unbiased line), each policy x budget x layer x span."""
    bias = generator.uniform(-0.6, 0.6, (len(policies), 1, 1, spans))
    line = np.broadcast_to(budgets[None, :, None, None], (len(policies), len(budgets), layers, 1))
    keep = line + bias * line * (1 - line)
    keep = keep + generator.normal(0, 0.02, keep.shape) * (1 - line)
    return np.clip(keep, 0, 1), line


def mean_of(values):
    return values.mean(axis=3)


def add_attention(data, seed=1):
    """Adds the measures of the attention itself, as `--metric` would."""
    generator = np.random.default_rng(seed)
    sizes = {**data.sizes, "head": 4, "kv_head": 2, "estimator": 3, "sample": 40, "share": 6,
             "indicator": 2, "row": 5, "part": 12}
    coordinates = {"estimator": ["single", "max_prior", "defensivekv"],
                   "share": [0.01, 0.02, 0.05, 0.1, 0.2, 0.5], "row": np.arange(395, 400),
                   "indicator": ["output-change", "attention"], "part": 33.0 * np.arange(12)}
    shapes = {"risk_true": "layer sample", "risk_estimate": "layer estimator sample",
              "risk_spearman": "layer estimator", "risk_log_ratio_median": "layer estimator",
              "risk_underestimated": "layer estimator", "risk_prior_exceeds": "layer estimator",
              "attention_cdf_mean": "layer share", "attention_cdf_p05": "layer share",
              "late_share": "policy budget layer", "late_share_chance": "policy budget layer",
              "late_recall": "policy budget layer", "locality": "layer head",
              "locality_within": "layer head", "locality_permuted": "layer head",
              "drift": "indicator budget layer head", "drift_width": "indicator budget layer head",
              "drift_shift": "indicator budget layer head",
              "drift_position": "indicator budget layer head row",
              "output_change_map": "layer row part", "key_norm": "layer kv_head part",
              "key_norm_position": "layer kv_head", "key_norm_attention_spearman": "layer head",
              "importance_pearson": "policy budget layer step",
              "importance_cosine": "policy budget layer step"}
    for name, dims in shapes.items():
        values = generator.random([sizes[dim] for dim in dims.split()])
        data[name] = (tuple(dims.split()), values)
    data["risk_prior_exceeds"][:, 0] = np.nan  # no prior
    data["risk_estimate"][0, 0, :3] = 0
    return data.assign_coords(coordinates)
