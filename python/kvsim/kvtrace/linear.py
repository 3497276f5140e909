"""Linear layers on a CPU by oneDNN, where PyTorch's own choice is slow. Imports torch.

PyTorch multiplies float32 matrices by MKL, which on processors of other makers than its own runs less
than half as fast as oneDNN, which PyTorch brings along. Results differ by the rounding of sums alone."""

import functools
from pathlib import Path

import torch

LEAST_ROWS = 8   # of fewer, reading the weights is what takes time


class OneDnnLinear(torch.nn.Linear):
    """A linear layer that multiplies by oneDNN where no gradient is wanted."""

    def forward(self, input):
        if torch.is_grad_enabled() or input.numel() < LEAST_ROWS * input.shape[-1] \
                or input.dtype != torch.float32 or self.weight.dtype != torch.float32 \
                or input.device.type != "cpu":
            return super().forward(input)
        return torch.ops.mkldnn._linear_pointwise(input, self.weight, self.bias, "none", [], "")


@functools.cache
def serves() -> bool:
    """Is PyTorch's own choice MKL, on a processor that is not Intel's, and oneDNN at hand?"""
    if not (torch.backends.mkl.is_available() and torch.backends.mkldnn.is_available()
            and hasattr(torch.ops.mkldnn, "_linear_pointwise")):
        return False
    try:
        return "GenuineIntel" not in Path("/proc/cpuinfo").read_text()
    except OSError:
        return False


def speed_up(model) -> None:
    """Lets the linear layers of a float32 model on a CPU multiply by oneDNN where that is faster."""
    for module in model.modules() if serves() else ():
        if type(module) is torch.nn.Linear and module.weight.dtype == torch.float32 \
                and module.weight.device.type == "cpu":
            module.__class__ = OneDnnLinear
