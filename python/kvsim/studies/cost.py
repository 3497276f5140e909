"""Needs of a study of memory, disk and work, from a model's shape: for `kvsim study --plan`, and for the
table of docs/study.md (tests/python/study_costs.py)."""

from dataclasses import dataclass

ENTRY_BYTES = 2   # of a number in a trace
GB = 1e9


@dataclass(frozen=True)
class Shape:
    """Sizes of a model that a study's cost follows from. `parameters` without those of embeddings
    that are only looked up."""

    parameters: float
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    vocabulary: int


def shape_of(loaded) -> Shape:
    """Of a model that is held."""
    config = loaded.config
    heads = config.num_attention_heads
    total = sum(one.numel() for one in loaded.model.parameters())
    looked_up = 0 if getattr(config, "tie_word_embeddings", False) else config.vocab_size * config.hidden_size
    return Shape(total - looked_up, config.num_hidden_layers, heads,
                 getattr(config, "num_key_value_heads", heads),
                 getattr(config, "head_dim", None) or config.hidden_size // heads, config.vocab_size)


def trace_bytes(shape: Shape, prompt: int, steps: int, probes: int = 1) -> float:
    """Queries, keys and values of every layer, and the queries of probes as long as the prompt."""
    rows = (prompt + steps) * (shape.heads + 2 * shape.kv_heads) + probes * prompt * shape.heads
    return shape.layers * shape.head_dim * ENTRY_BYTES * rows


def kept_bytes(shape: Shape, prompt: int, steps: int) -> float:
    """Of a results file, a policy and budget: a byte per entry before compression, and numbers of each
    step."""
    return shape.layers * (shape.kv_heads * prompt + 40 * steps)


def memory_bytes(shape: Shape, prompt: int, steps: int, number_bytes: int, rows: int) -> float:
    """Weights, the prompt's cache, and of the largest batch of the closed loop the masks of a layer and
    logits beside those of the full cache. Libraries take about 1 GB more."""
    total, batch = prompt + steps, max(1, rows // steps)
    cache = 2 * shape.layers * shape.kv_heads * shape.head_dim * total * number_bytes
    masks = batch * shape.heads * steps * total * (number_bytes + 1)
    logits = (batch + 3) * steps * shape.vocabulary * 4
    return shape.parameters * number_bytes + cache + masks + logits
