"""Writes results of the size that a page is bounded for, and what a trace would add to them.

bound_results.py FOLDER: 32 layers, 32 query heads on 8 KV heads, 4000 tokens (3000 of them prompt),
10 policies, 10 budgets; random numbers. Needs the modules of plots/requirements.txt.
"""

import sys
from pathlib import Path

import numpy as np
import xarray

POLICIES, BUDGETS, LAYERS, HEADS, KV_HEADS, PROMPT, STEPS = 10, 10, 32, 32, 8, 3000, 1000
LOOKED, RANKS = 256, 32
WORDS = (" the", " lamp", "\n", "a", "\u0645\u0631", " <b>x", " lantern")


def results(generator):
    budgets = np.linspace(0.1, 0.95, BUDGETS).round(3)
    shape = (POLICIES, BUDGETS, LAYERS, STEPS)
    importance = generator.random(shape, dtype=np.float32) * 0.3 + budgets[:, None, None] * 0.7
    stream = generator.random((POLICIES, BUDGETS, STEPS)) * (1 - budgets[:, None])
    cell, heads = ("policy", "budget", "layer", "step"), ("policy", "budget", "layer", "kv_head")
    kept = generator.random((POLICIES, BUDGETS, LAYERS, KV_HEADS, PROMPT), dtype=np.float32)
    mask = (kept < budgets[:, None, None, None].astype(np.float32)).astype(np.uint8)
    rate = generator.random((*shape[:3], 2))
    variables = {
        "retained_importance": (cell, importance),
        "retained_attention": (cell, np.sqrt(importance)),
        "output_error": (cell, 1 - importance),
        "residual_error": (cell, 0.3 * (1 - importance)),
        "stream_error": (("policy", "budget", "step"), stream),
        "stream_error_rms": (cell[:2], np.sqrt(np.mean(stream ** 2, axis=-1))),
        "retained_importance_mean": (cell[:3], importance.mean(-1).astype(np.float64)),
        "kept": (heads, mask.sum(-1, dtype=np.float64)),
        "kept_mask": ((*heads, "position"), mask),
        "keep_rate": ((*cell[:3], "span"), rate),
        "bias_index": ((*cell[:3], "span"), rate - 0.5),
        "span_begin": (("span",), np.array([10, 2400])),
        "span_end": (("span",), np.array([100, 2460])),
        "budget_label": (("budget",), np.array([f"{one:g}" for one in budgets], object)),
    }
    coordinates = {
        "policy": np.array([f"snapkv,window={16 + k}" for k in range(POLICIES)], object),
        "budget": budgets, "layer": np.arange(LAYERS, dtype=np.int32),
        "head": np.arange(HEADS, dtype=np.int32), "kv_head": np.arange(KV_HEADS, dtype=np.int32),
        "step": np.arange(PROMPT, PROMPT + STEPS), "span": np.array(["defense", "order"], object)}
    attributes = {"model": "example/large", "trace": "large.h5", "trace_digest": "none",
                  "prompt_len": PROMPT, "total_len": PROMPT + STEPS}
    return xarray.Dataset(variables, coordinates, attributes)


def details(generator):
    entry = generator.integers(0, PROMPT, (LAYERS, LOOKED, RANKS))
    share = generator.random((LAYERS, HEADS, LOOKED, RANKS)) / (HEADS * RANKS)
    words = np.array(generator.choice(WORDS, PROMPT + STEPS), object)
    return xarray.Dataset({
        "entry": (("layer", "looked_step", "rank"), entry),
        "share": (("layer", "head", "looked_step", "rank"), share),
        "token_text": (("token",), words),
    }, {"looked_step": PROMPT + np.sort(generator.permutation(STEPS)[:LOOKED])})


if __name__ == "__main__":
    folder, generator = Path(sys.argv[1]), np.random.default_rng(0)
    results(generator).to_netcdf(folder / "bound.nc", engine="h5netcdf")
    details(generator).to_netcdf(folder / "bound-details.nc", engine="h5netcdf")
