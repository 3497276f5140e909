"""HDF5 files as others left them: why one cannot be opened, and links that lead out of it."""

import errno
import fcntl
import os
from pathlib import Path

import h5py
import numpy as np

from .errors import DataError

_LEAST_HEADER = 96   # bytes of the first superblock, the root group's entry in it


class LinkedElsewhere(ValueError):
    """`str` says what leads there."""


def open_hdf5(path: str | os.PathLike, expected: str) -> h5py.File:
    """The file, opened for reading. `expected` is what it should be, "results file of kvsim".

    Raises DataError with one line that tells apart what the program tells apart: no such file, no
    permission, locked, not HDF5, truncated, damaged.
    """
    check_regular(path)
    try:
        return h5py.File(path, "r")
    except OSError as error:
        raise DataError(f"{path}: {_why(Path(path), str(error), expected)}") from None


def check_regular(path: str | os.PathLike) -> None:
    """DataError unless the path is a regular file that may be read."""
    path = Path(path)
    try:
        regular = path.is_file()
        if not regular and path.exists():
            raise DataError(f"{path}: not a regular file")
        if not regular:
            raise DataError(f"{path}: no such file")
        path.open("rb").close()
    except OSError as error:
        raise DataError(f"{path}: {error.strerror}") from None


def _locked(path: Path) -> bool:
    """Does another process hold the file open for writing? HDF5's writers lock what they write."""
    with path.open("rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError as error:
            return error.errno == errno.EWOULDBLOCK
    return False


def _why(path: Path, said: str, expected: str) -> str:
    """In the program's words why the library did not open a file; `said` is its own line."""
    size = path.stat().st_size
    complete = f"found {size} bytes, expected a complete {expected} (HDF5)"
    if _locked(path):
        return (f"locked: another program has it open for writing: expected a {expected} that "
                "nobody is writing (wait until it is closed)")
    if "unable to lock file" in said:
        return ("its file system cannot lock files (HDF5_USE_FILE_LOCKING=FALSE in the environment "
                "reads without locks)")
    if size == 0:
        return f"an empty file: expected a complete {expected} (HDF5)"
    if "already open for" in said:
        return ("its writer has not closed it (wait for the writer; if it was killed, write the "
                "file again)")
    signature = h5py.is_hdf5(path)
    if "truncated file" in said or signature and size < _LEAST_HEADER:
        return f"truncated: {complete}"
    what = "damaged: the HDF5 library cannot open it" if signature else "not an HDF5 file"
    return f"{what}: {complete}"


def scalar(attributes: h5py.AttributeManager, name: str):
    """An attribute as a number or a text of Python's; netCDF knows no scalars, and h5netcdf and
    xarray write arrays of one. Raises KeyError when absent, ValueError for more than one value."""
    value = np.asarray(attributes[name])
    if value.size != 1:
        raise ValueError(f"attribute {name}: found {value.size} values, expected one")
    value = value.reshape(-1)[0]
    return value.decode() if isinstance(value, bytes) else getattr(value, "item", lambda: value)()


def refuse_links(group: h5py.Group, seen: set | None = None) -> None:
    """Raises LinkedElsewhere where a link, a virtual dataset or external storage leads elsewhere."""
    seen = set() if seen is None else seen
    for name in group:
        path = f"{group.name.rstrip('/')}/{name}"
        link = group.get(name, getlink=True)
        if isinstance(link, h5py.SoftLink):
            continue   # stays in the file; what it passes is looked at where it stands
        item = None if isinstance(link, h5py.ExternalLink) else group[name]
        if item is None or isinstance(item, h5py.Dataset) and (item.external or item.is_virtual):
            raise LinkedElsewhere(f"{path[1:]}: not allowed: found a link to another file, expected "
                                  "an object of this file")
        if isinstance(item, h5py.Group) and (address := h5py.h5o.get_info(item.id).addr) not in seen:
            seen.add(address)
            refuse_links(item, seen)
