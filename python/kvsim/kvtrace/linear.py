"""Linear layers on a CPU by oneDNN, where PyTorch's own choice is slow.

PyTorch multiplies float32 matrices by MKL, which on processors of other makers than its own runs less
than half as fast as oneDNN, which PyTorch brings along. Results differ by the rounding of sums alone.
"""

import functools
import types
from pathlib import Path

LEAST_ROWS = 8   # of fewer, reading the weights is what takes time


@functools.cache
def serves() -> bool:
    """Is PyTorch's own choice MKL, on a processor that is not Intel's, and oneDNN at hand?"""
    import torch

    if not (torch.backends.mkl.is_available() and torch.backends.mkldnn.is_available()
            and hasattr(torch.ops.mkldnn, "_linear_pointwise")):
        return False
    try:
        return "GenuineIntel" not in Path("/proc/cpuinfo").read_text()
    except OSError:
        return False


def _forward(module, rows):
    import torch

    if torch.is_grad_enabled() or rows.numel() < LEAST_ROWS * rows.shape[-1] \
            or rows.dtype != torch.float32:
        return type(module).forward(module, rows)
    return torch.ops.mkldnn._linear_pointwise(rows, module.weight, module.bias, "none", [], "")


def speed_up(model) -> None:
    """Lets the linear layers of a float32 model on a CPU multiply by oneDNN where no gradient is
    wanted."""
    import torch

    for module in model.modules() if serves() else ():
        if type(module) is torch.nn.Linear and module.weight.dtype == torch.float32 \
                and module.weight.device.type == "cpu":
            module.forward = types.MethodType(_forward, module)


def slow_down(model) -> None:
    """Undoes :func:`speed_up`: for comparisons with what PyTorch does."""
    for module in model.modules():
        vars(module).pop("forward", None)
