"""Gates of DuoAttention from a trace, without training: python studies/head_gates.py TRACE... -o FILE

Writes the file `table` of `duo`: one line per layer of the model, one number per KV head. DuoAttention
trains its gates so that the model's outputs stay while heads of low gate see the first and the newest
entries only. Here the gate of a head is what that changes, measured (docs/presets.md says how). The
texts should be others than those that are studied.
"""

import sys
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import numpy as np

from kvsim.errors import DataError
from kvsim.tool import Parser, run_tool
from kvsim.trace import Layer, Trace
from kvsim.whole import write_text

CHUNK = 256   # queries at a time


def streaming(attention: np.ndarray, ages: np.ndarray, sinks: int, recent: int) -> np.ndarray:
    """Attention [..., j, i] to the first and the newest entries alone, `ages` [j, i] being j - i. What
    an attention sink of the layer draws stays."""
    rest = 1 - attention.sum(-1, keepdims=True)
    kept = np.where((np.arange(attention.shape[-1]) < sinks) | (ages < recent), attention, 0)
    return kept / (kept.sum(-1, keepdims=True) + np.maximum(rest, 0))


def usual_wo(layer: Layer) -> np.ndarray:
    """[Hq, dv, D], W*: W_O with gate, norms and multiplier at their usual size, which scores take
    (docs/trace-format.md 8). It is `wo` where there are none."""
    if layer.gate is None and layer.inner is None and layer.outer is None:
        return layer.wo
    stored = int(np.searchsorted(layer.query_positions, layer.prompt_len)) or None
    result = layer.wo.astype(np.float64)
    if layer.gate is not None:
        size = np.sqrt(np.square(layer.gate[:, :stored].astype(np.float64)).mean(1))
        result = result * np.where(size > 0, size, 1)[..., None]
    for norm, shape in ((layer.inner, (*layer.wo.shape[:2], 1)), (layer.outer, (1, 1, -1))):
        if norm is not None:
            result = result * np.asarray(norm.gain, np.float64).reshape(shape)
            if norm.eps is not None:
                result /= np.quantile(norm.rms[:stored], 0.5, method="lower")
    return result.astype(np.float32)


def changes(layer: Layer, sinks: int, recent: int) -> np.ndarray:
    """Root mean square over the prompt's stored queries j >= sinks + recent of what the output of each
    KV head changes by, |sum over its query heads of (Z - Z') W*| [Hkv]."""
    prompt = layer.prompt()
    at = np.flatnonzero(prompt.query_positions >= sinks + recent)
    if not at.size:
        raise DataError(f"layer {layer.index}: no stored query behind {sinks} + {recent} entries; take "
                        "a longer prompt, or smaller --sinks and --recent")
    values, wo = prompt.values.astype(np.float32), usual_wo(prompt).astype(np.float32)
    total = np.zeros(len(values))
    for chosen in np.array_split(at, -(-at.size // CHUNK)):
        part = replace(prompt, queries=prompt.queries[:, chosen],
                       query_positions=prompt.query_positions[chosen], residual_norm=None)
        full = part.attention()
        change = full - streaming(full, part.query_positions[:, None] - part.positions, sinks, recent)
        for head, value in enumerate(values):
            heads = range(head * layer.group_size, (head + 1) * layer.group_size)
            total[head] += np.sum(sum(change[one] @ value @ wo[one] for one in heads) ** 2)
    return np.sqrt(total / at.size)


def gates(traces: Iterable[Trace], sinks: int, recent: int) -> np.ndarray:
    """Gates [layers of the model, Hkv], mean over traces, the largest 1."""
    every = []
    for trace in traces:
        if len(trace) != trace.num_layers:
            raise DataError(f"{trace.path}: found {len(trace)} layers, expected all {trace.num_layers} "
                            "of the model")
        every.append([changes(layer, sinks, recent) for layer in trace])
    mean = np.mean(every, axis=0)
    return mean / mean.max()


def main(argv: list[str] | None = None) -> int:
    parser = Parser(prog="python studies/head_gates.py", description=__doc__)
    parser.add_argument("traces", nargs="+", type=Path, metavar="TRACE.h5")
    parser.add_argument("--sinks", type=int, default=128, help="first entries that stay (128)")
    parser.add_argument("--recent", type=int, default=256, help="newest entries that stay (256)")
    parser.add_argument("-o", "--out", required=True, type=Path, metavar="FILE")
    options = parser.parse_args(argv)

    def work() -> None:
        found = gates(map(Trace, options.traces), options.sinks, options.recent)
        names = " ".join(path.name for path in options.traces)
        lines = [f"# python studies/head_gates.py {names} --sinks {options.sinks} --recent {options.recent}",
                 *(" ".join(f"{one:.4f}" for one in row) for row in found)]
        write_text(options.out, "\n".join(lines) + "\n")
        print(options.out)

    return run_tool("head_gates", work)


if __name__ == "__main__":
    sys.exit(main())
