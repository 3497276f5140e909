"""The table of docs/study.md: what a study needs of memory, disk and time, by model and machine. Its rates
were measured once, on the machines that it names."""

from kvsim.plain import duration
from kvsim.studies.command import BUDGETS, POLICIES
from kvsim.studies.plan import GB, Shape, memory_bytes, trace_bytes

TFLOP = 1e12
PROMPT_PASSES = 4   # capture, two readings of the probe, closed loop
GPU_ROWS = 2048   # of a batch in the closed loop (kvtrace/closed_loop.py)
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


def text_flop(shape: Shape, prompt: int, steps: int, pairs: int) -> float:
    """Of the model for one text: 2 a parameter and token, 4 d a query, head and entry it sees."""
    seen = 4 * shape.layers * shape.heads * shape.head_dim
    whole = 2 * shape.parameters * prompt + seen * prompt**2 / 2
    later = 2 * shape.parameters * steps + seen * steps * (prompt + steps / 2)
    return PROMPT_PASSES * whole + pairs * later


def table() -> tuple[list[str], list[list[str]]]:
    """Header and rows of the page's table: memory, disk, and the time of TEXTS texts by machine."""
    pairs, rows = len(POLICIES) * len(BUDGETS), []
    for name, shape in MODELS.items():
        memory = " / ".join(f"{memory_bytes(shape, PROMPT, STEPS, size, batch) / GB:.0f} GB"
                            for _, _, size, batch, _ in (MACHINES["32 cores"],
                                                         MACHINES["a GPU and 16 cores"]))
        flop = text_flop(shape, PROMPT, STEPS, pairs)
        replay = HEAD_REPLAY * shape.heads * shape.layers
        times = [duration((flop / rate + replay / cores) * TEXTS / jobs)
                 for rate, cores, _, _, jobs in MACHINES.values()]
        rows.append([name, memory, f"{trace_bytes(shape, PROMPT, STEPS) / GB:.1f} GB",
                     f"{flop / TFLOP:.0f} Tflop", f"{replay / 3600:.1f} core-h", *times])
    return (["model", "memory, CPU / GPU", "disk for one trace", "model, a text", "replay, a text",
             *MACHINES], rows)
