"""Work that is done unit by unit in a folder: a search and a study go on where they were stopped, share their
work among processes, and end with the same bytes.

A unit is a measurement, an answer, a text. A small one is a line of a file that grows (`Lines`), a large one has
files of its own (`whole_file`). Both are there complete or not at all: what is there is finished, and is not
done again. Locks end with the process that holds them, however it ends."""

import contextlib
import fcntl
import json
import os
import socket
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from .errors import UsageError

#: Told: what is worked on, and the share of all that is done.
Tell = Callable[[str, float], None]
#: Does one unit, and tells what it does and the share of its job that is done.
Unit = Callable[[Tell], None]
#: (I, N): one of N processes that share the work of a folder.
Shard = tuple[int, int]
T = TypeVar("T")


def work_off(jobs: Sequence[Iterable[Unit]], tell: Tell) -> None:
    """Does what is left of all jobs, one after the other: texts, tasks with their questions, a search with its
    groups of candidates."""
    for number, job in enumerate(jobs):
        def told(what: str, share: float, number: int = number) -> None:
            place = f"[{number + 1}/{len(jobs)}] " if len(jobs) > 1 else ""
            tell(place + what, (number + share) / len(jobs))

        for unit in job:
            unit(told)


def share_of(units: list[T], shard: Shard | None) -> list[T]:
    """Every N-th of them, from the I-th on."""
    return units[shard[0] - 1 :: shard[1]] if shard else units


def check_same(where: object, known: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    """Refuses to go on with units that were made in another way."""
    for name, value in now.items():
        if known.get(name) != value:
            raise UsageError(f"{where}: made with {name} {known.get(name)!s:.80}: found {value!s:.80}; expected "
                             "the same, or another folder")


class Lines:
    """A file of JSON lines that grows, one for each unit."""

    def __init__(self, path: str | os.PathLike):
        self.path = Path(path)
        self._known: list[Any] = []
        self._end = 0   # of what is known, in bytes

    def read(self) -> list[Any]:
        """Units so far; a line that a stop cut in two counts for nothing."""
        if self.path.is_file():
            with self.path.open("rb") as file:
                file.seek(self._end)
                new = file.read()
            new = new[: new.rfind(b"\n") + 1]
            self._end += len(new)
            for line in new.splitlines():
                with contextlib.suppress(ValueError):
                    self._known.append(json.loads(line))
        return list(self._known)

    def add(self, *units: Any) -> None:
        """Writes them to the disk. Where that fails nothing of them stays."""
        if not units:
            return
        # A file's name that is not UTF-8 becomes an escape, which JSON reads.
        data = "".join(json.dumps(one, ensure_ascii=False) + "\n" for one in units).encode("utf-8", "backslashreplace")
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("ab+", buffering=0) as file:
            with contextlib.suppress(OSError):   # a file system without locks
                fcntl.flock(file, fcntl.LOCK_EX)
            end = _drop_torn_line(file)
            try:
                while data:
                    data = data[file.write(data):]
                os.fsync(file.fileno())
            except OSError:
                file.truncate(end)
                raise


def _drop_torn_line(file) -> int:
    """A process that was killed while it wrote leaves a line without an end. Where the file ends then."""
    end = file.seek(0, os.SEEK_END)
    if end:
        file.seek(end - 1)
        if file.read(1) != b"\n":
            file.seek(0)
            return file.truncate(file.read().rfind(b"\n") + 1)
    return end


class Lock:
    """A lock on a file."""

    def __init__(self, path: Path):
        self.path = path

    def take(self, shared: bool = False, wait: bool = True) -> bool:
        """Is it ours now? Without `wait` not where another process has it."""
        self.file = self.path.open("a+")
        try:
            fcntl.flock(self.file, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError:
            self.release()
            return False
        return True

    def release(self) -> None:
        self.file.close()

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        self.take()
        try:
            yield
        finally:
            self.release()


class Folder:
    """A folder of units."""

    advice = ""   # to who finds another process at work in it

    def __init__(self, path: str | os.PathLike):
        self.path = Path(path)

    def make(self, *inside: Path) -> None:
        """Makes it, and folders in it."""
        try:
            for one in (self.path, *inside):
                one.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise self._unwritable(error) from None

    def _unwritable(self, error: OSError) -> UsageError:
        return UsageError(f"-o {self.path}: no folder that can be written: {error.strerror}")

    @contextlib.contextmanager
    def at_work(self, shard: Shard | None = None) -> Iterator[None]:
        """Keeps others out while this process works here: all others, or with a shard those of the same
        shard and who works on the whole."""
        self.make()
        wanted = {".lock": bool(shard)}   # is it shared?
        if shard:
            wanted[f".lock-{shard[0]}-of-{shard[1]}"] = False
        with contextlib.ExitStack() as stack:
            for name, shared in wanted.items():
                lock = Lock(self.path / name)
                try:
                    free = lock.take(shared, wait=False)
                except OSError as error:
                    if error.filename:
                        raise self._unwritable(error) from None
                    continue   # a file system without locks
                if not free:
                    raise UsageError(f"{self.path}: another process works here; wait for it, or take another "
                                     f"folder{self.advice}")
                stack.callback(lock.release)
            yield


class Worker:
    """This process among those that share a folder's units: alive as long as it holds its lock."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.name = f"{socket.gethostname()}-{os.getpid()}-{uuid.uuid4().hex[:8]}"
        self.lock = Lock(folder / f"{self.name}.lock")
        self.lock.take()

    def is_alive(self, name: str) -> bool:
        """Does the process of this name hold its lock?"""
        lock = Lock(self.folder / f"{name}.lock")
        if not lock.path.exists():
            return False
        if not lock.take(wait=False):
            return True
        lock.release()
        return False

    def close(self) -> None:
        self.lock.path.unlink(missing_ok=True)
        self.lock.release()
