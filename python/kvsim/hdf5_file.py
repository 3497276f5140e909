"""HDF5 files as others left them: they are opened, and links that lead out of them refused."""

import functools
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from .errors import DataError, Error
from .program import run

#: Errors of h5py, numpy and json on a damaged or odd file.
_ODD = (ArithmeticError, AttributeError, LookupError, MemoryError, OSError, RuntimeError, TypeError, ValueError)


def unreadable(path: str | os.PathLike, kind: str, error: Exception) -> DataError:
    """Error of a file that cannot be read as a `kind`: in the program's words, or else in those of `error`."""
    try:
        run(["inspect", path, "-q"], progress=False)
    except Error as said:
        if isinstance(said, DataError):
            return said
    reason = " ".join(str(error).strip("\"'").split()) or type(error).__name__
    return DataError(f"{path}: not {kind}: {reason}")


def reads_file(kind: str) -> Callable:
    """For a method that reads `self.path`: whatever a damaged or odd file raises there is one line."""
    def wrapped(method: Callable) -> Callable:
        @functools.wraps(method)
        def reading(self, *args: Any, **named: Any) -> Any:
            try:
                return method(self, *args, **named)
            except Error:
                raise
            except _ODD as error:
                raise unreadable(self.path, kind, error) from None
        return reading
    return wrapped


def open_hdf5(path: str | os.PathLike) -> h5py.File:
    """The file, opened for reading; DataError with one line, the program's, where that cannot be."""
    check_regular(path)
    try:
        return h5py.File(path, "r")
    except OSError as error:
        raise unreadable(path, "an HDF5 file", error) from None


def check_regular(path: str | os.PathLike) -> None:
    """DataError unless the path is a regular file that may be read."""
    path = Path(path)
    try:
        if not path.is_file():
            raise DataError(f"{path}: {'not a regular file' if path.exists() else 'no such file'}")
        path.open("rb").close()
    except OSError as error:
        raise DataError(f"{path}: {error.strerror}") from None


def scalar(attributes: h5py.AttributeManager, name: str):
    """An attribute as a number or a text of Python's; netCDF knows no scalars, and h5netcdf and
    xarray write arrays of one. Raises KeyError when absent, ValueError for more than one value."""
    value = np.asarray(attributes[name])
    if value.size != 1:
        raise ValueError(f"attribute {name}: found {value.size} values, expected one")
    value = value.reshape(-1)[0]
    return value.decode() if isinstance(value, bytes) else getattr(value, "item", lambda: value)()


def refuse_links(group: h5py.Group, seen: set | None = None) -> None:
    """Raises ValueError where a link, a virtual dataset or external storage leads elsewhere."""
    seen = set() if seen is None else seen
    for name in group:
        path = f"{group.name.rstrip('/')}/{name}"
        link = group.get(name, getlink=True)
        if isinstance(link, h5py.SoftLink):
            continue   # stays in the file; what it passes is looked at where it stands
        item = None if isinstance(link, h5py.ExternalLink) else group[name]
        if item is None or isinstance(item, h5py.Dataset) and (item.external or item.is_virtual):
            raise ValueError(f"{path[1:]}: not allowed: found a link to another file, expected an object of this file")
        if isinstance(item, h5py.Group) and (address := h5py.h5o.get_info(item.id).addr) not in seen:
            seen.add(address)
            refuse_links(item, seen)
