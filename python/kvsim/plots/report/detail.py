"""Steps, layers, heads, texts and kept sets of one trace, reduced to what a page can hold.

Nothing is of size entries x steps. Bounds, in numbers before compression, are below; what exceeds
them is averaged or left out, and the page says so (docs/report.md)."""

import io
import re
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import xarray

from ...errors import DataError, line_of
from ...ranking import better
from .. import load
from .pack import Blocks
from .verdict import extreme, mean

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
class Source:
    """One results file with what the trace adds to it, on its way into the page."""

    results: load.Results
    name: str
    details: xarray.Dataset | None
    blocks: Blocks
    prefix: str   # of its blocks
    left_out: list = field(default_factory=list)

    @property
    def prompt(self):
        """n, the number of prompt entries."""
        try:
            return int(self.results.data.attrs["prompt_len"])
        except (KeyError, ValueError):
            raise DataError(f"{self.results.path}: no attribute prompt_len") from None

    def find(self, name):
        """A variable of the results, or of the details; None when neither has it."""
        for data in (self.results.data, self.details):
            if data is not None and name in data.variables:
                return data[name]
        return None

    def by_policy(self, name, kind, values_of):
        """A block of values_of(p) per policy, named NAME-0, NAME-1, ...; returns NAME."""
        for p in range(len(self.results.policies)):
            self.blocks.numbers(f"{self.prefix}-{name}-{p}", values_of(p), kind)
        return f"{self.prefix}-{name}"

    def variable_by_policy(self, name, *dims, over=1):
        """Such blocks of a variable of the results, [budget, *dims] of each."""
        values = self.results.variable(name, "policy", "budget", *dims).values / over
        return self.by_policy(name, "float32", values.__getitem__)


def open_sources(paths, details, blocks):
    """The sources of a page; `details` has a path, or None, per file."""
    opened = [load.open_results(path) for path in paths]
    # From memory: what `kvsim report` hands over has no name any more, and HDF5 wants one.
    found = {id(one): load.read_dataset(io.BytesIO(Path(more).read_bytes()), more)
             for one, more in zip(opened, details) if more}
    several = load.join_loops(opened)
    for results in several:   # parts that the page cannot do without
        if len(set(results.policies)) != len(results.policies):
            raise DataError(f"{results.path}: a policy is there twice")
        if not results.has("retained_importance"):
            raise DataError(f"{results.path}: no variable retained_importance; is this a results file of kvsim replay?")
    return [Source(results, name, found.get(id(results)), blocks, f"t{number}")
            for number, (results, name) in enumerate(zip(several, load.names(several)))]


def last_part(found):
    """An absolute path loses its folders: whoever reads the page has another machine."""
    return found[0].replace("\\", "/").rstrip("/").rpartition("/")[2]


def describe(source):
    """The part of one results file that the page reads; its numbers go into its blocks."""
    results = source.results
    parameters, sizes = load.parameters(results), results.data.sizes
    return {
        "name": source.name, "file": results.path.name, "model": results.model, "prompt": source.prompt,
        "steps": results.steps.tolist(), "layers": results.layers, "policies": results.policies,
        "budgets": results.budget_labels(), "ratios": results.budgets.tolist(),
        "kvHeads": sizes.get("kv_head", 0), "heads": sizes.get("head", 0),
        # Every attribute of the run but the configuration, which has its own place.
        "record": [[str(name), PATH.sub(last_part, str(value))] for name, value in results.data.attrs.items()
                   if name not in ("config", "trace_path") and not str(name).startswith("_")],
        "parameters": parameters, "spans": span_list(results), "tokens": tokens(source),
        "series": step_series(source), "maps": layer_maps(source),
        # By KV head, or by query head where those differ.
        "heads_kept": {dim: source.variable_by_policy(name, "layer", dim, over=source.prompt)
                       for name, dim in (("kept", "kv_head"), ("kept_query", "head")) if results.has(name)},
        "kept": kept_sets(source), "looked": looked_for(source),
        "spanRates": {name: source.variable_by_policy(name, "layer", "span")
                      for name in ("keep_rate", "bias_index", "span_retained_importance")
                      if results.has(name)},
        # Policies whose kept sets change over the steps: the page has the last ones.
        "changing": [policy for policy, keys in parameters.items()
                     if keys.get("schedule", "prefill") != "prefill"],
        "leftOut": source.left_out,
    }


def span_list(results):
    if not results.has("span", "span_begin", "span_end"):
        return []
    begins, ends = (results.variable(name, "span").values for name in ("span_begin", "span_end"))
    return [{"name": name, "begin": int(begin), "end": int(end)}
            for name, begin, end in zip(results.spans, begins, ends)]


def tokens(source):
    found = source.find("token_text")
    if found is None:
        source.left_out.append("The texts of the tokens: the trace was not at hand, or has none.")
        return None
    return source.blocks.text(f"{source.prefix}-tokens", [str(one) for one in found.values])


def read(array, *dims):
    """The numbers in the order of `dims`. Read first: xarray transposes what is on disk slowly."""
    try:
        return array.compute().transpose(*dims).values
    except (OSError, RuntimeError) as error:
        raise DataError(f"cannot read {array.name}: {line_of(error)}") from error


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


def described(name, array):
    return {"id": name, "label": str(array.attrs.get("long_name", name)).split(": ")[0],
            "unit": str(array.attrs.get("units", "")), "better": better(name)}


def step_series(source):
    """Measures over the later steps: pooled over layers at every step, and by layer in parts."""
    results, listed = source.results, {}
    sizes, count = results.data.sizes, results.steps.size
    cells = sizes["policy"] * sizes["budget"]
    bounds = parts_of(count, max(16, LAYER_VALUES // (cells * sizes["layer"])))
    fine = parts_of(count, max(256, STEP_VALUES // cells))

    def pooled(name, array, values):
        blocks = source.by_policy(f"steps-{name}", "float16", lambda p: over_parts(name, values[p], fine, "worst"))
        listed[name] = {**described(name, array), "layered": False, "mean": blocks, "worst": None,
                        "bounds": fine.tolist()}

    for loop in results.loops:
        for name, array in loop.data.variables.items():
            if array.dims == ("policy", "budget", "step") and name not in listed:
                pooled(name, array, results.loop_variable(name))
    for name, array in results.data.data_vars.items():
        if array.dtype.kind != "f" or name in listed:
            continue
        if set(array.dims) == {"policy", "budget", "step"}:
            pooled(name, array, results.variable(name, "policy", "budget", "step").values)
        elif set(array.dims) == {"policy", "budget", "layer", "step"}:
            listed[name] = layered_series(source, name, array, fine, bounds)
    if fine.size <= count:
        source.left_out.append(f"Single steps: curves are drawn from {fine.size - 1} parts of {count} steps.")
    elif bounds.size <= count and any(one["layered"] for one in listed.values()):
        source.left_out.append(f"Single steps of single layers: means and worst of "
                               f"{bounds.size - 1} parts of {count} steps instead.")
    return list(listed.values())


def layered_series(source, name, array, fine, bounds):
    names = {fold: f"{source.prefix}-steps-{name}-{fold}" for fold in ("mean", "worst")}
    exact = bounds.size == array.sizes["step"] + 1
    for p in range(array.sizes["policy"]):
        values = read(array.isel(policy=p), "budget", "layer", "step").astype(np.float64)
        by_step = np.moveaxis(values, 1, -1)
        for fold, pooled in (("mean", mean(by_step)), ("worst", extreme(name, by_step))):
            source.blocks.numbers(f"{names[fold]}-{p}", over_parts(name, pooled, fine, fold), "float16")
            if fold == "mean" or not exact:
                source.blocks.numbers(f"{names[fold]}-layer-{p}", over_parts(name, values, bounds, fold), "float16")
    return {**described(name, array), "layered": True, **names, "bounds": fine.tolist(),
            "layerBounds": bounds.tolist(), "layerExact": exact}


def layer_maps(source):
    """Measures by layer and head, in parts of the steps."""
    listed = {}
    for data in (source.results.data, source.details):
        for name, array in data.data_vars.items() if data is not None else ():
            if array.dtype.kind != "f" or name in listed:
                continue
            dims, one = set(array.dims), described(name, array)
            if dims == {"policy", "budget", "layer", "head", "step"}:
                steps = array.sizes["step"]
                bounds = parts_of(steps, HEAD_VALUES // (array.size // steps))
                blocks = source.by_policy(f"head-{name}", "float16", lambda p: over_parts(
                    name, read(array.isel(policy=p), "budget", "layer", "head", "step"), bounds, "mean"))
                if bounds.size <= steps:
                    source.left_out.append(f"Single steps of {one['label']}: means of "
                                           f"{bounds.size - 1} parts of {steps} steps instead.")
                listed[name] = {**one, "heads": array.sizes["head"], "blocks": blocks, "bounds": bounds.tolist()}
            stem, _, last = name.rpartition("_")
            of_steps = last in ("mean", "min", "max", "p01", "p99") and stem in data.variables   # which the page has
            if dims == {"policy", "budget", "layer"} and not of_steps:
                blocks = source.by_policy(f"layer-{name}", "float32", lambda p: read(
                    array.isel(policy=p), "budget", "layer"))
                listed[name] = {**one, "heads": 0, "blocks": blocks, "bounds": None}
    return list(listed.values())


def kept_sets(source):
    """Which heads keep each prompt entry: bits by layer, a block per policy and budget."""
    results = source.results
    mask, of_query = source.find("kept_mask"), source.find("kept_mask_query")
    if mask is None:
        source.left_out.append("Kept sets: --save-keep was not given, and the trace was not at "
                               "hand to find them again.")
        return None
    # Per policy its own mask: that of query heads where the other has 255, the fill value, which xarray reads as NaN.
    first = mask.isel(budget=0, layer=0, kv_head=0, position=0).values
    masks = [(of_query, "head") if of_query is not None and one not in (0, KEPT, MERGED) else (mask, "kv_head")
             for one in first]
    counts = [own.sizes[dim] for own, dim in masks]
    sizes = results.data.sizes
    pooled = MASK_BYTES < sum(-(-count // 8) for count in counts) * sizes["budget"] * sizes["layer"] * source.prompt
    if pooled:
        source.left_out.append("Kept sets of single layers and heads: the text is coloured by all of them together.")
    return {"blocks": f"{source.prefix}-kept", "pooled": pooled,
            "merged": [one_policy(source, own.isel(policy=p), dim, p, pooled)
                       for p, (own, dim) in enumerate(masks)],
            "owners": [{"query": dim == "head", "count": count}
                       for (_, dim), count in zip(masks, counts)]}


def one_policy(source, mask, dim, number, pooled):
    """The blocks of one policy; returns whether it merges entries."""
    merges = False
    for b, values in enumerate(read(mask, "budget", "layer", "position", dim)):
        name = f"{source.prefix}-kept-{number}-{b}"
        if pooled:
            share = (values == KEPT).mean(axis=(0, 2))
            source.blocks.numbers(name, np.round(share * 255), "uint8")
            continue
        for fate, suffix in ((KEPT, ""), (MERGED, "-merged")):
            own = values == fate
            if fate == KEPT or own.any():
                merges |= fate == MERGED
                source.blocks.numbers(name + suffix, np.packbits(own, axis=2, bitorder="little"), "uint8")
    return merges


def looked_for(source):
    """Entries that the worst steps looked for, by layer and head: blocks of a few steps each."""
    details = source.details
    if details is None or "entry" not in details.variables:
        source.left_out.append("What steps looked for: that needs the trace.")
        return None
    steps = details["looked_step"].values
    entry = read(details["entry"], "looked_step", "layer", "rank")
    share = read(details["share"], "looked_step", "layer", "head", "rank")
    pooled = share.size > SHARE_VALUES and source.find("kept_mask_query") is None
    if pooled:
        kv_heads = max(1, source.results.data.sizes.get("kv_head", 1))
        share = share.reshape(*share.shape[:2], kv_heads, -1, share.shape[-1]).sum(axis=3)
    for k, first in enumerate(range(0, steps.size, STEPS_A_BLOCK)):
        part = slice(first, first + STEPS_A_BLOCK)
        source.blocks.numbers(f"{source.prefix}-entry-{k}", entry[part], "int32")
        source.blocks.numbers(f"{source.prefix}-share-{k}", share[part], "float16")
    if steps.size < source.results.steps.size:
        source.left_out.append(f"What steps looked for: only the {steps.size} worst of "
                               f"{source.results.steps.size} steps.")
    return {"steps": steps.tolist(), "ranks": share.shape[3], "heads": share.shape[2],
            "pooled": pooled, "stepsABlock": STEPS_A_BLOCK,
            "entry": f"{source.prefix}-entry", "share": f"{source.prefix}-share"}
