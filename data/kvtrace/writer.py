"""Writes a kvtrace v1 file piece by piece, under a temporary name until it is complete."""

import os
from pathlib import Path

import h5py
import numpy as np

from .errors import EXIT_FAILURE, EXIT_USAGE, CaptureError

STORED_TYPES = ("float16", "float32", "bfloat16")


def bfloat16_bits(values: np.ndarray) -> np.ndarray:
    """The upper half of each float32, rounded to nearest, ties to even."""
    bits = np.ascontiguousarray(values, dtype=np.float32).view(np.uint32)
    rounding = np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))
    return ((bits + rounding) >> np.uint32(16)).astype(np.uint16)


def check_target(path: Path, overwrite: bool, inputs: list[Path]) -> None:
    """Refuses, before any work, a target that must not be replaced."""
    if not path.parent.is_dir():
        raise CaptureError(f"{path}: folder {path.parent} does not exist", EXIT_USAGE)
    if not path.exists():
        return
    if not path.is_file():
        raise CaptureError(f"{path}: exists and is not a regular file", EXIT_USAGE)
    if any(other.exists() and path.samefile(other) for other in inputs):
        raise CaptureError(f"{path}: is one of the inputs", EXIT_USAGE)
    if not overwrite:
        raise CaptureError(f"{path}: exists; --overwrite replaces it", EXIT_USAGE)


class TraceWriter:
    """A context manager: leaves a complete file behind, or none.

    Datasets are contiguous, which is what readers map fastest. Nothing is kept in memory.
    """

    def __init__(self, path: Path, stored_type: str):
        self.path = path
        self.stored_type = stored_type
        self.temporary = path.with_name(f".{path.name}.{os.getpid()}.partial")

    def __enter__(self) -> "TraceWriter":
        try:
            self.file = h5py.File(self.temporary, "w")
        except OSError as error:
            raise CaptureError(f"{self.path}: cannot write: {error}", EXIT_FAILURE) from None
        return self

    def __exit__(self, kind, error, trace) -> None:
        try:
            self.file.close()
            if kind is None:
                os.replace(self.temporary, self.path)
        finally:
            self.temporary.unlink(missing_ok=True)

    def attribute(self, name: str, value, group: str = "/") -> None:
        self.file.require_group(group).attrs[name] = value

    def array(self, name: str, values: np.ndarray) -> None:
        """Writes integers, float32 or float64 as they are."""
        self.file.create_dataset(name, data=np.ascontiguousarray(values))

    def strings(self, name: str, values: list[str]) -> None:
        self.file.create_dataset(name, data=values, dtype=h5py.string_dtype("utf-8"))

    def tensor(self, name: str, values: np.ndarray) -> None:
        """Writes float32 [..] in the stored type. NaN, infinity and overflow are errors."""
        if not np.isfinite(values).all():
            raise CaptureError(f"{name}: the model computed NaN or infinity", EXIT_FAILURE)
        if self.stored_type == "bfloat16":
            # A finite float32 above the largest bfloat16 would round to infinity.
            stored = bfloat16_bits(values)
            fits = not ((stored & 0x7F80) == 0x7F80).any()
        else:
            with np.errstate(over="ignore"):
                stored = np.ascontiguousarray(values, dtype=self.stored_type)
            fits = np.isfinite(stored).all()
        if not fits:
            largest = float(np.abs(values).max())
            raise CaptureError(
                f"{name}: {largest:.6g} does not fit {self.stored_type}; use --dtype float32",
                EXIT_FAILURE,
            )
        dataset = self.file.create_dataset(name, data=stored)
        if self.stored_type == "bfloat16":
            dataset.attrs["encoding"] = "bfloat16"
