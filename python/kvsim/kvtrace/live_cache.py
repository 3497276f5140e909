"""Attention over caches that no mask can describe, from `kvsim attend`, for a model that runs.

Merged, rounded or moved entries, and sets that are chosen anew at later steps, are replayed by the
program that replays traces: layer by layer it is handed the run's own queries, keys and values."""

import contextlib
import shutil
import subprocess
import tempfile
from dataclasses import dataclass

import numpy as np

from ..errors import DataError, Error
from ..program import find_program, options
from .kept_sets import ResultsFile
from .token_trace import TokenTrace

READY, UNCHANGED, CHANGED = 1, 0, 1   # cli/attend.cpp


@dataclass
class LiveCache:
    """One (policy, budget) whose cache the program holds; `number`: of both among those served."""

    policy: str
    budget: str
    number: tuple[int, int]

    def digest(self) -> str:
        return f"{self.policy} {self.budget}"


class LiveAttention:
    """A running `kvsim attend` for policies and budgets of results, by their numbers. A context manager:
    the program ends with it."""

    def __init__(self, trace: TokenTrace, results: ResultsFile, policies: list[int], budgets: list[int],
                 program: str | None = None, threads: int = 0):
        self.records = [results.policies[one] for one in policies]
        self.budgets = [results.budget_labels[one] for one in budgets]
        self.layers = results.layers
        #: Positions whose queries are asked for: those that the trace stores, or all of the prompt.
        self.prompt_queries = trace.query_positions[trace.query_positions < trace.prompt_len]
        try:
            found = find_program(program)
        except Error:
            if program or not (found := shutil.which("kvsim")):
                raise
        command = [found, "attend", str(trace.path), "-q", *options(
            layers=",".join(map(str, self.layers)), seed=results.seed, importance=results.importance,
            later=results.later or None, policy=self.records, budget=self.budgets,
            threads=threads or None)]
        self.said = tempfile.TemporaryFile()
        try:
            self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.said)
        except OSError as error:
            self.said.close()
            raise Error(f"{found}: cannot be run: {error}") from None

    def __enter__(self) -> "LiveAttention":
        try:
            if self._number() != READY:
                self._fail()
            #: First position whose query may miss entries: the prompt's length but for prompts that come
            #: in chunks, of which all queries are asked for.
            self.first = self._number()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_) -> None:
        for pipe in (self.process.stdin, self.process.stdout):
            with contextlib.suppress(OSError):
                pipe.close()
        try:
            self.process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.said.close()

    def cache(self, policy: str, budget: str) -> LiveCache:
        return LiveCache(policy, budget, (self.records.index(policy), self.budgets.index(budget)))

    def attend(self, cache: LiveCache, layer: int, query, key, value) -> np.ndarray | None:
        """Outputs [Hq, t, dv] of the newest t queries; None where the layer keeps all as it is.

        query [Hq, M, d] of the stored prompt positions, or all, and all later ones, key
        [Hkv, N, d], value [Hkv, N, dv], float32 arrays."""
        head = np.array([*cache.number, layer], dtype=np.int32)
        try:
            for part in (head, query, key, value):
                self.process.stdin.write(np.ascontiguousarray(part).data)
            self.process.stdin.flush()
        except OSError:
            self._fail()
        if self._number() == UNCHANGED:
            return None
        first = self._number()
        shape = (query.shape[0], value.shape[1] - first, value.shape[2])
        return self._read(int(np.prod(shape)), np.float32).reshape(shape)

    def _number(self) -> int:
        return int(self._read(1, np.int32)[0])

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
        raise DataError(f"kvsim attend: {said}", code if code > 0 else 1)
