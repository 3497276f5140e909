"""Needs of a study of memory, disk and work: from a model's shape, and rates that were measured.

`kvsim study --plan` tries one text on the machine at hand; the table of docs/study.md is made with the
rates below.
"""

from dataclasses import dataclass

from .settings import BUDGETS, POLICIES

ENTRY_BYTES = 2   # of a number in a trace
PROMPT_PASSES = 4   # capture, two readings of the probe, closed loop
# Rows of a batch in the closed loop on a GPU, over which logits and masks are spread.
GPU_ROWS = 2048
GB, TFLOP = 1e9, 1e12


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
    looked_up = 0 if getattr(config, "tie_word_embeddings", False) else \
        config.vocab_size * config.hidden_size
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


def text_flop(shape: Shape, prompt: int, steps: int, pairs: int) -> float:
    """Of the model for one text: 2 a parameter and token, 4 d a query, head and entry it sees."""
    seen = 4 * shape.layers * shape.heads * shape.head_dim
    whole = 2 * shape.parameters * prompt + seen * prompt**2 / 2
    later = 2 * shape.parameters * steps + seen * steps * (prompt + steps / 2)
    return PROMPT_PASSES * whole + pairs * later


# The table of the page: three models, a prompt of 8192 and 256 later tokens, the default policies.
PROMPT, STEPS, TEXTS = 8192, 256, 14
MODELS = {
    "0.6B (Qwen3-0.6B)": Shape(0.6e9, 28, 16, 8, 128, 151936),
    "8B (Llama-3.1-8B)": Shape(7.5e9, 32, 32, 8, 128, 128256),
    "32B (Qwen3-32B)": Shape(32e9, 64, 64, 8, 128, 151936),
}
# Measured on two virtual cores of an AMD EPYC (Zen 3): one pass of SmolLM2-135M in float32 over 704
# tokens takes 2.97 s. Replay of eight query heads on two KV heads, d = 128, D = 4096, at PROMPT
# and STEPS, the default policies and budgets: 22.7 s of a core.
CORE_FLOPS = 2 * 134.5e6 * 704 / 2.97 / 2
HEAD_REPLAY = 22.7 / 8
# Not measured, no GPU was at hand: a fifth of what an H100 can do at best in bfloat16.
GPU_FLOPS = 200 * TFLOP
MACHINES = {   # name -> (flop/s of the model, cores of the replay, bytes of a number, rows, jobs)
    "2 cores": (2 * CORE_FLOPS, 2, 4, 512, 1),
    "32 cores": (32 * CORE_FLOPS, 32, 4, 512, 1),
    "a GPU and 16 cores": (GPU_FLOPS, 16, 2, GPU_ROWS, 1),
    "14 such jobs": (GPU_FLOPS, 16, 2, GPU_ROWS, TEXTS),
}


def words(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 90 else f"{seconds / 60:.0f} min" if seconds < 5400 else \
        f"{seconds / 3600:.1f} h" if seconds < 172800 else f"{seconds / 86400:.1f} days"


def table() -> tuple[list[str], list[list[str]]]:
    """Header and rows of the page's table: memory, disk, and the time of TEXTS texts by machine."""
    pairs, rows = len(POLICIES) * len(BUDGETS), []
    for name, shape in MODELS.items():
        memory = " / ".join(f"{memory_bytes(shape, PROMPT, STEPS, size, batch) / GB:.0f} GB"
                            for _, _, size, batch, _ in (MACHINES["32 cores"],
                                                         MACHINES["a GPU and 16 cores"]))
        flop = text_flop(shape, PROMPT, STEPS, pairs)
        replay = HEAD_REPLAY * shape.heads * shape.layers
        times = [words((flop / rate + replay / cores) * TEXTS / jobs)
                 for rate, cores, _, _, jobs in MACHINES.values()]
        rows.append([name, memory, f"{trace_bytes(shape, PROMPT, STEPS) / GB:.1f} GB",
                     f"{flop / TFLOP:.0f} Tflop", f"{replay / 3600:.1f} core-h", *times])
    return (["model", "memory, CPU / GPU", "disk for one trace", "model, a text", "replay, a text",
             *MACHINES], rows)
