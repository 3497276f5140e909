"""Attention over caches that no mask can describe, from `kvsim attend`, for a model that runs.

Merged, rounded or moved entries, and sets that are chosen anew at later steps, are replayed by the
program that replays traces: layer by layer it is handed the run's own queries, keys and values.
"""

import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from .. import program
from ..program import options
from .errors import EXIT_FAILURE, EXIT_USAGE, CaptureError, Error

READY, UNCHANGED, CHANGED = 1, 0, 1   # cli/attend.cpp


@dataclass
class LiveCache:
    """One (policy, budget) whose cache the program holds; `number`: of both among those served."""

    policy: str
    budget: str
    number: tuple[int, int]

    def digest(self) -> str:
        return f"{self.policy} {self.budget}"


def find_program(given: str | None) -> str:
    """The kvsim program: as given, else that of the package or of the clone, else on the PATH."""
    if given is not None:
        found = shutil.which(given)
        if found:
            return found
        raise CaptureError(f"{given}: no such program (--kvsim)", EXIT_USAGE)
    try:
        return program.find_program()
    except Error:
        found = shutil.which("kvsim")
        if found:
            return found
    raise CaptureError(
        "no program kvsim; merging, quantising and stepwise policies need it: build it, or name it "
        "with --kvsim", EXIT_FAILURE)


@dataclass
class Served:
    """Request to the program: `records` and `budgets` as texts, the other options of the
    replay that the results come from, `later` empty where there is none;
    `prompt_queries` positions whose queries the trace stores.
    """

    trace: Path
    records: list[str]
    budgets: list[str]
    layers: list[int]
    seed: int
    importance: str
    later: str
    prompt_queries: np.ndarray
    #: First position whose query may miss entries, as the program says; the prompt's length but for
    #: prompts that come in chunks, of which all queries are asked for then.
    first: int = 0


class LiveAttention:
    """A running `kvsim attend`. A context manager: the program ends with it."""

    def __init__(self, program: str, served: Served, threads: int = 0):
        self.served = served
        command = [program, "attend", str(served.trace), "-q", *options(
            layers=",".join(map(str, served.layers)), seed=served.seed, importance=served.importance,
            later=served.later or None, policy=served.records, budget=served.budgets,
            threads=threads or None)]
        self.said = tempfile.TemporaryFile()
        try:
            self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                            stderr=self.said)
        except OSError as error:
            self.said.close()
            raise CaptureError(f"{program}: cannot be run: {error}", EXIT_FAILURE) from None

    def __enter__(self) -> "LiveAttention":
        try:
            if self._read(1, np.int32)[0] != READY:
                self._fail()
            self.served.first = int(self._read(1, np.int32)[0])
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_) -> None:
        for pipe in (self.process.stdin, self.process.stdout):
            try:
                pipe.close()
            except OSError:
                pass
        try:
            self.process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.said.close()

    def attend(self, cache: LiveCache, layer: int, query, key, value) -> np.ndarray | None:
        """Outputs [Hq, t, dv] of the newest t queries; None where the layer keeps all as it is.

        query [Hq, M, d] of the stored prompt positions, or all, and all later ones, key
        [Hkv, N, d], value [Hkv, N, dv], float32 arrays.
        """
        head = np.array([*cache.number, layer], dtype=np.int32)
        try:
            for part in (head, query, key, value):
                self.process.stdin.write(np.ascontiguousarray(part).data)
            self.process.stdin.flush()
        except OSError:
            self._fail()
        if self._read(1, np.int32)[0] == UNCHANGED:
            return None
        first = int(self._read(1, np.int32)[0])
        shape = (query.shape[0], value.shape[1] - first, value.shape[2])
        return self._read(int(np.prod(shape)), np.float32).reshape(shape)

    def _read(self, count: int, kind) -> np.ndarray:
        size = count * np.dtype(kind).itemsize
        found = self.process.stdout.read(size)
        if len(found) != size:
            self._fail()
        return np.frombuffer(found, dtype=kind)

    def _fail(self):
        """The program has ended: what it said, with its exit code."""
        code = self.process.wait()
        self.said.seek(0)
        lines = self.said.read().decode("utf-8", errors="replace").splitlines()
        said = lines[-1].removeprefix("kvsim: ") if lines else f"ended with status {code}"
        raise CaptureError(f"kvsim attend: {said}", code if code > 0 else EXIT_FAILURE)
