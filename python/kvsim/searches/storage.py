"""Where a study lives: a folder with Optuna's journal, locks of the processes that work on it."""

import fcntl
import json
import os
import socket
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from optuna.storages import BaseStorage, JournalStorage
from optuna.storages.journal import JournalFileBackend

from ..errors import UsageError

NAME = "search"


class FileLock:
    """A lock that the system gives back when its process dies, however it dies."""

    def __init__(self, path: Path):
        self.path = path

    def acquire(self, how: int = 0) -> bool:
        """Waits for it; not with LOCK_NB, where another process has it."""
        self.file = self.path.open("a")
        try:
            fcntl.lockf(self.file, fcntl.LOCK_EX | how)
        except BlockingIOError:
            self.file.close()
            return False
        return True

    def release(self) -> None:
        self.file.close()

    @contextmanager
    def held(self) -> Iterator[None]:
        self.acquire()
        try:
            yield
        finally:
            self.release()


class Log(JournalFileBackend):
    """Optuna's journal. A line that could not be written leaves nothing behind, and nothing follows it:
    the next run goes on from there as after a kill."""

    def __init__(self, path: Path, lock: FileLock):
        super().__init__(str(path), lock_obj=lock)
        self.path, self.lock = path, lock
        self.broken: OSError | None = None

    def append_logs(self, logs: list[dict[str, Any]]) -> None:
        if self.broken:
            raise self.broken
        lines = "".join(json.dumps(one, separators=(",", ":")) + "\n" for one in logs).encode()
        with self.lock.held(), self.path.open("ab", buffering=0) as file:
            before = file.seek(0, os.SEEK_END)
            try:
                while lines:
                    lines = lines[file.write(lines):]
                os.fsync(file.fileno())
            except OSError as error:
                self.broken = error
                file.truncate(before)
                raise


class Folder:
    """The folder of a study: `study.journal`, `workers/`, and what reports write."""

    def __init__(self, path: str | os.PathLike):
        self.path = Path(path)
        self.workers = self.path / "workers"
        self.journal = self.path / "study.journal"
        self.turn = FileLock(self.path / "turn.lock")   # who asks for candidates, one at a time

    def open(self) -> BaseStorage:
        """Optuna's storage of this folder, made when absent."""
        try:
            self.workers.mkdir(parents=True, exist_ok=True)
        except (FileExistsError, FileNotFoundError, NotADirectoryError) as error:
            raise UsageError(f"{self.path}: no folder can be made here: {error.strerror}; "
                             "expected the folder of a study, or a new name") from None
        lock = FileLock(self.path / "journal.lock")
        with lock.held():
            _drop_torn_line(self.journal)
        return JournalStorage(Log(self.journal, lock))

    def pending(self, worker: str) -> Path:
        """Measurements that a worker is about to tell the study."""
        return self.workers / f"{worker}.json"


def _drop_torn_line(journal: Path) -> None:
    """A process that was killed while it wrote leaves a line without an end."""
    if journal.exists():
        os.truncate(journal, journal.read_bytes().rfind(b"\n") + 1)


class Worker:
    """This process among those that work on a study: alive as long as it holds its lock."""

    def __init__(self, folder: Folder):
        self.folder = folder
        self.name = f"{socket.gethostname()}-{os.getpid()}-{uuid.uuid4().hex[:8]}"
        self.lock = FileLock(folder.workers / f"{self.name}.lock")
        self.lock.acquire()

    def is_alive(self, name: str) -> bool:
        """Does the process of this name still hold its lock?"""
        lock = FileLock(self.folder.workers / f"{name}.lock")
        if name == self.name or not lock.path.exists():
            return name == self.name
        if not lock.acquire(fcntl.LOCK_NB):
            return True
        lock.release()
        return False

    def close(self) -> None:
        self.lock.path.unlink(missing_ok=True)
        self.lock.release()
