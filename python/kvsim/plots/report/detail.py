"""Steps, layers, heads, texts and kept sets of one trace, reduced to what a page can hold.

Nothing is of size entries x steps. Bounds, in numbers before compression, are below; what exceeds
them is averaged or left out, and the page says so (docs/report.md).
"""

import re
from dataclasses import dataclass, field

import numpy as np

from ...errors import line_of
from .. import load
from . import sources as inputs
from .verdict import better, extreme, mean

LAYER_VALUES = 600_000        # of a measure by policy, budget, layer and part of the steps
HEAD_VALUES = 400_000         # of a measure by head as well
SHARE_VALUES = 3_000_000      # shares of what steps looked for; more: pooled over the KV heads
STEP_VALUES = 4_000_000       # of a measure by policy, budget and step; more: parts of the steps
MASK_BYTES = 40_000_000       # kept sets by head; more: numbers of heads, all layers together
STEPS_A_BLOCK = 32            # of what steps looked for
# An absolute path, where one may begin: /folder/file, C:\\folder\\file, file:///folder/file.
PATH = re.compile(r"(?<![\w.~/\\-])(?:file://)?(?:[A-Za-z]:)?[/\\][^\s\"',;/\\]+[/\\][^\s\"',;]*")
KEPT, MERGED = 1, 2           # values of kept_mask


@dataclass
class Detail:
    """One trace on its way into the page."""

    source: inputs.Source
    blocks: object
    prefix: str
    left_out: list = field(default_factory=list)

    @property
    def results(self):
        return self.source.results


def describe(source, blocks, number):
    """The part of one results file that the page reads; its numbers go into `blocks`."""
    detail = Detail(source, blocks, f"t{number}")
    results = source.results
    content = {
        "name": source.name,
        "file": results.path.name,
        "model": results.model,
        "prompt": source.prompt,
        "steps": [int(step) for step in results.steps],
        "layers": results.layers,
        "policies": results.policies,
        "budgets": results.budget_labels(),
        "ratios": [float(one) for one in results.budgets],
        "kvHeads": int(results.data.sizes.get("kv_head", 0)),
        "heads": int(results.data.sizes.get("head", 0)),
        "record": record(results),
        "parameters": {policy: keys for policy, keys in load.parameters(results).items()
                       if policy in results.policies},
        "spans": span_list(results),
        "tokens": tokens(detail),
        "series": step_series(detail),
        "maps": layer_maps(detail),
        "heads_kept": kept_shares(detail),
        "kept": kept_sets(detail),
        "looked": looked_for(detail),
        "spanRates": span_rates(detail),
        "changing": changing(results),
    }
    content["leftOut"] = detail.left_out
    return content


def record(results):
    """[name, text] of every attribute of the run but the configuration, which has its own place."""
    return [[str(name), without_folders(str(value))] for name, value in results.data.attrs.items()
            if name not in ("config", "trace_path") and not str(name).startswith("_")]


def without_folders(text):
    """Absolute paths lose their folders: whoever reads the page has another machine."""
    return PATH.sub(lambda found: found[0].replace("\\", "/").rstrip("/").rpartition("/")[2], text)


def changing(results):
    """Policies whose kept sets change over the steps: the page has the last ones."""
    return [policy for policy, keys in load.parameters(results).items()
            if keys.get("schedule", "prefill") != "prefill"]


def span_list(results):
    if not results.has("span_begin", "span_end") or results.data.sizes.get("span", 0) == 0:
        return []
    begins, ends = (results.variable(name, "span").values for name in ("span_begin", "span_end"))
    return [{"name": str(name), "begin": int(begin), "end": int(end)}
            for name, begin, end in zip(results.data["span"].values, begins, ends)]


def tokens(detail):
    found = detail.source.find("token_text")
    if found is None:
        detail.left_out.append("The texts of the tokens: the trace was not at hand, or has none.")
        return None
    return detail.blocks.text(f"{detail.prefix}-tokens", [str(one) for one in found.values])


def read(array, *dims):
    """The numbers in the order of `dims`. Read first: xarray transposes what is on disk slowly."""
    try:
        return array.compute().transpose(*dims).values
    except (OSError, RuntimeError) as error:
        raise load.data_error(f"cannot read {array.name}: {line_of(error)}") from error


def by_policy(detail, name, kind, values_of, policies):
    """A block per policy, named NAME-0, NAME-1, ...; returns NAME."""
    for p in range(policies):
        detail.blocks.numbers(f"{detail.prefix}-{name}-{p}", values_of(p), kind)
    return f"{detail.prefix}-{name}"


def parts_of(steps, most):
    """Bounds of at most `most` nearly equal parts of the steps: [parts + 1]."""
    parts = max(1, min(steps, most))
    return np.round(np.linspace(0, steps, parts + 1)).astype(int)


def over_parts(name, values, bounds, fold):
    """Mean, or worst, of each part of the steps along the last axis."""
    if bounds.size == values.shape[-1] + 1:
        return values
    reduce = mean if fold == "mean" else lambda part: extreme(name, part)
    return np.stack([reduce(values[..., a:b]) for a, b in zip(bounds, bounds[1:])], axis=-1)


def step_series(detail):
    """Measures over the later steps: pooled over layers at every step, and by layer in parts."""
    results, listed = detail.results, []
    sizes = results.data.sizes
    cells = sizes["policy"] * sizes["budget"]
    bounds = parts_of(results.steps.size, max(16, LAYER_VALUES // (cells * sizes["layer"])))
    fine = parts_of(results.steps.size, max(256, STEP_VALUES // cells))
    for loop in detail.source.loops:
        for name in loop.data.variables:
            if loop.data[name].dims == ("policy", "budget", "step") and \
                    all(one["id"] != name for one in listed):
                listed.append(pooled_series(detail, name, loop.data[name], fine,
                                            inputs.loop_values(detail.source, name)))
    for name in map(str, results.data.variables):
        array = results.data[name]
        if array.dtype.kind != "f" or name in {one["id"] for one in listed}:
            continue
        if set(array.dims) == {"policy", "budget", "step"}:
            listed.append(pooled_series(detail, name, array, fine,
                                        results.variable(name, "policy", "budget", "step").values))
        elif set(array.dims) == {"policy", "budget", "layer", "step"}:
            listed.append(layered_series(detail, name, array, fine, bounds))
    if fine.size <= results.steps.size:
        detail.left_out.append(f"Single steps: curves are drawn from {fine.size - 1} parts of "
                               f"{results.steps.size} steps.")
    elif bounds.size <= results.steps.size and any(one["layered"] for one in listed):
        detail.left_out.append(f"Single steps of single layers: means and worst of "
                               f"{bounds.size - 1} parts of {results.steps.size} steps instead.")
    return listed


def described(name, array):
    return {"id": name, "label": str(array.attrs.get("long_name", name)).split(": ")[0],
            "unit": str(array.attrs.get("units", "")), "better": better(name)}


def pooled_series(detail, name, array, fine, values):
    blocks = by_policy(detail, f"steps-{name}", "float16",
                       lambda p: over_parts(name, values[p], fine, "worst"), values.shape[0])
    return {**described(name, array), "layered": False, "mean": blocks, "worst": None,
            "bounds": fine.tolist()}


def layered_series(detail, name, array, fine, bounds):
    names = {fold: f"{detail.prefix}-steps-{name}-{fold}" for fold in ("mean", "worst")}
    exact = bounds.size == array.sizes["step"] + 1
    for p in range(array.sizes["policy"]):
        values = read(array.isel(policy=p), "budget", "layer", "step").astype(np.float64)
        by_step = np.moveaxis(values, 1, -1)
        pooled = {"mean": mean(by_step), "worst": extreme(name, by_step)}
        for fold, blocks in names.items():
            detail.blocks.numbers(f"{blocks}-{p}", over_parts(name, pooled[fold], fine, fold),
                                  "float16")
            if fold == "mean" or not exact:
                detail.blocks.numbers(f"{blocks}-layer-{p}",
                                      over_parts(name, values, bounds, fold), "float16")
    return {**described(name, array), "layered": True, "mean": names["mean"],
            "worst": names["worst"], "bounds": fine.tolist(), "layerBounds": bounds.tolist(),
            "layerExact": exact}


def layer_maps(detail):
    """Measures by layer and head, in parts of the steps."""
    results, listed = detail.results, []
    for data in (results.data, detail.source.details):
        for name in map(str, data.variables if data is not None else ()):
            array = data[name]
            if array.dtype.kind != "f" or any(one["id"] == name for one in listed):
                continue
            dims = set(array.dims)
            if dims == {"policy", "budget", "layer", "head", "step"}:
                listed.append(head_map(detail, name, array))
            elif dims == {"policy", "budget", "layer"} and not summary_of_steps(name, data):
                blocks = by_policy(
                    detail, f"layer-{name}", "float32",
                    lambda p, a=array: read(a.isel(policy=p), "budget", "layer"),
                    array.sizes["policy"])
                listed.append({**described(name, array), "heads": 0, "blocks": blocks,
                               "bounds": None})
    return listed


def summary_of_steps(name, data):
    """Is it a mean or an extreme of a variable whose steps are in the page?"""
    stem, _, last = name.rpartition("_")
    return last in ("mean", "min", "max", "p01", "p99") and stem in data.variables


def head_map(detail, name, array):
    sizes = array.sizes
    cells = sizes["policy"] * sizes["budget"] * sizes["layer"] * sizes["head"]
    bounds = parts_of(sizes["step"], HEAD_VALUES // cells)
    blocks = by_policy(
        detail, f"head-{name}", "float16",
        lambda p: over_parts(name, read(array.isel(policy=p), "budget", "layer", "head", "step"),
                             bounds, "mean"), sizes["policy"])
    if bounds.size <= sizes["step"]:
        detail.left_out.append(f"Single steps of {described(name, array)['label']}: means of "
                               f"{bounds.size - 1} parts of {sizes['step']} steps instead.")
    return {**described(name, array), "heads": sizes["head"], "blocks": blocks,
            "bounds": bounds.tolist()}


def kept_shares(detail):
    """Share of the prompt that each head keeps: by KV head, or by query head where those differ."""
    results, found = detail.results, {}
    for name, dim in (("kept", "kv_head"), ("kept_query", "head")):
        if not results.has(name):
            continue
        values = results.variable(name, "policy", "budget", "layer", dim).values
        values = values / detail.source.prompt
        found[dim] = by_policy(detail, name, "float32", lambda p, v=values: v[p], values.shape[0])
    return found


def owners_of(detail, mask):
    """Per policy whether its kept sets are those of query heads."""
    if mask.get("head") is None:
        return [False] * len(detail.results.policies)
    # 255, the fill value, which xarray reads as NaN.
    first = mask["kv_head"].isel(budget=0, layer=0, kv_head=0, position=0).values
    return [bool(value not in (0, KEPT, MERGED)) for value in first]


def kept_masks(detail):
    """Fate of each entry, by the heads whose kept sets they are; None where unknown."""
    return {dim: detail.source.find(name)
            for dim, name in (("kv_head", "kept_mask"), ("head", "kept_mask_query"))}


def kept_sets(detail):
    """Which heads keep each prompt entry: bits by layer, a block per policy and budget."""
    mask = kept_masks(detail)
    if mask["kv_head"] is None:
        detail.left_out.append("Kept sets: --save-keep was not given, and the trace was not at "
                               "hand to find them again.")
        return None
    query = owners_of(detail, mask)
    sizes = detail.results.data.sizes
    counts = [int(mask["head" if one else "kv_head"].sizes["head" if one else "kv_head"])
              for one in query]
    size = sum(-(-count // 8) for count in counts) * sizes["budget"] * sizes["layer"] * \
        detail.source.prompt
    pooled = size > MASK_BYTES
    if pooled:
        detail.left_out.append("Kept sets of single layers and heads: the text is coloured by all "
                               "of them together.")
    merged = []
    for p, by_query in enumerate(query):
        dim = "head" if by_query else "kv_head"
        merged.append(one_policy(detail, mask[dim].isel(policy=p), dim, p, pooled))
    return {"blocks": f"{detail.prefix}-kept", "pooled": pooled, "merged": merged,
            "owners": [{"query": one, "count": count} for one, count in zip(query, counts)]}


def one_policy(detail, mask, dim, number, pooled):
    """The blocks of one policy; returns whether it merges entries."""
    merges = False
    for b, values in enumerate(read(mask, "budget", "layer", "position", dim)):
        name = f"{detail.prefix}-kept-{number}-{b}"
        if pooled:
            share = (values == KEPT).mean(axis=(0, 2))
            detail.blocks.numbers(name, np.round(share * 255), "uint8")
            continue
        detail.blocks.numbers(name, np.packbits(values == KEPT, axis=2, bitorder="little"), "uint8")
        merged = values == MERGED
        if merged.any():
            merges = True
            detail.blocks.numbers(f"{name}-merged",
                                  np.packbits(merged, axis=2, bitorder="little"), "uint8")
    return merges


def looked_for(detail):
    """Entries that the worst steps looked for, by layer and head: blocks of a few steps each."""
    details = detail.source.details
    if details is None or "entry" not in details.variables:
        detail.left_out.append("What steps looked for: that needs the trace.")
        return None
    steps = details["looked_step"].values
    entry = read(details["entry"], "looked_step", "layer", "rank")
    share = read(details["share"], "looked_step", "layer", "head", "rank")
    mask = kept_masks(detail)
    pooled = share.size > SHARE_VALUES and mask["head"] is None
    group = share.shape[2] // max(1, int(detail.results.data.sizes.get("kv_head", 1)))
    for k, first in enumerate(range(0, steps.size, STEPS_A_BLOCK)):
        part = slice(first, first + STEPS_A_BLOCK)
        values = share[part]
        if pooled:
            values = values.reshape(*values.shape[:2], -1, group, values.shape[-1]).sum(axis=3)
        detail.blocks.numbers(f"{detail.prefix}-entry-{k}", entry[part], "int32")
        detail.blocks.numbers(f"{detail.prefix}-share-{k}", values, "float16")
    if steps.size < detail.results.steps.size:
        detail.left_out.append(f"What steps looked for: only the {steps.size} worst of "
                               f"{detail.results.steps.size} steps.")
    heads = share.shape[2] // (group if pooled else 1)
    return {"steps": [int(step) for step in steps], "ranks": share.shape[3],
            "heads": int(heads), "pooled": bool(pooled), "stepsABlock": STEPS_A_BLOCK,
            "entry": f"{detail.prefix}-entry", "share": f"{detail.prefix}-share"}


def span_rates(detail):
    """Keep rate, bias and class score of the labelled spans."""
    results, listed = detail.results, {}
    for name in ("keep_rate", "bias_index", "span_retained_importance"):
        if results.has(name) and results.data.sizes.get("span", 0):
            values = results.variable(name, "policy", "budget", "layer", "span").values
            listed[name] = by_policy(detail, name, "float32", lambda p, v=values: v[p],
                                     values.shape[0])
    return listed


def sources_of(presets):
    """{preset title: {summary, source}} of the presets that `kvsim policies --json` prints."""
    return {one["preset"]: {"summary": one["summary"], "source": one["source"]} for one in presets}
