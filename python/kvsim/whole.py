"""Files that are there complete or not at all (docs/security.md 1)."""

import os
import secrets
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from .errors import UsageError


@contextmanager
def whole_file(target: str | os.PathLike) -> Iterator[Path]:
    """A temporary name to write under. It becomes the target's when the block ends well; whatever
    happens, nothing else is left behind."""
    path = Path(target)
    # Drawn: processes of two machines, or of two containers, may have one id and one folder.
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}.partial")
    try:
        yield temporary
        # A name must never reach the disk before the bytes do; a full disk may show only here.
        with temporary.open("rb") as file:
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except OSError as error:
        if error.filename == str(temporary):   # the user knows the target alone
            error.filename = str(path)
        raise
    finally:
        temporary.unlink(missing_ok=True)


def check_target(path: Path, overwrite: bool, inputs: Iterable[Path]) -> None:
    """Refuses, before any work, a target that must not be replaced."""
    if not path.parent.is_dir():
        raise UsageError(f"{path}: folder {path.parent} does not exist")
    if not path.exists():
        return
    if path.is_dir():
        raise UsageError(f"{path}: a folder stands where a file is to be written")
    if not path.is_file():
        raise UsageError(f"{path}: exists and is not a regular file")
    if any(other.exists() and path.samefile(other) for other in inputs):
        raise UsageError(f"{path}: is one of the inputs")
    if not overwrite:
        raise UsageError(f"{path}: exists; --overwrite replaces it")


def write_bytes(target: str | os.PathLike, data: bytes | memoryview) -> None:
    """The bytes as a whole file."""
    with whole_file(target) as temporary:
        temporary.write_bytes(data)


def write_text(target: str | os.PathLike, text: str) -> None:
    """The text as a whole file, UTF-8 with plain line ends."""
    write_bytes(target, text.encode("utf-8"))


def create_hdf5(path: str | os.PathLike):
    """A new HDF5 file (h5py.File) whose every call answers for the bytes that it writes.

    Left to itself the library keeps data until a dataset is closed, and h5py closes datasets where
    nothing can be said of a failure."""
    import h5py

    access = h5py.h5p.create(h5py.h5p.FILE_ACCESS)
    access.set_fclose_degree(h5py.h5f.CLOSE_STRONG)
    access.set_sieve_buf_size(0)
    access.set_cache(0, 1, 0, 1.0)   # of chunks
    access.set_libver_bounds(h5py.h5f.LIBVER_EARLIEST, h5py.h5f.LIBVER_LATEST)
    creation = h5py.h5p.create(h5py.h5p.FILE_CREATE)
    creation.set_obj_track_times(False)   # the same data give the same bytes
    return h5py.File(h5py.h5f.create(os.fsencode(path), h5py.h5f.ACC_TRUNC, creation, access))
