"""GGUF files: what their header says, and a copy whose header leaves the vocabulary out.

The reader of the package gguf makes several arrays for every token: half a minute for a vocabulary
of 262144, and transformers calls it four times. The copy is what transformers reads in a second.
Format: github.com/ggml-org/ggml, docs/gguf."""

import contextlib
import functools
import mmap
import struct
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from ..errors import DataError

MAGIC, VERSIONS, DEFAULT_ALIGNMENT = b"GGUF", (2, 3), 32
UINT32, STRING, ARRAY = 4, 8, 9
NUMBERS = {0: "B", 1: "b", 2: "H", 3: "h", UINT32: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
# Keys that a tokenizer needs and a model does not.
VOCABULARY = {f"tokenizer.ggml.{name}" for name in ("tokens", "scores", "token_type", "merges")}
BLOCK = 1 << 22


class GgufFile:
    """A file that may lie in several parts. Its header is read when it is first asked for: a model
    that is unpacked already needs none of it."""

    def __init__(self, parts: Sequence[Path]):
        self.parts = list(parts)
        self._entries: list[tuple[str, int, int]] = []   # key and byte range, its name included

    @functools.cached_property
    def values(self) -> dict[str, object]:
        """What the header holds by key, strings as bytes."""
        try:
            with self.parts[0].open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
                return self._read(data)
        except OSError as error:
            raise DataError(f"{self.parts[0]}: {error.strerror}") from None
        except (struct.error, ValueError) as error:
            raise DataError(f"{self.parts[0]}: not a whole GGUF file: {error}") from None

    def _read(self, data) -> dict[str, object]:
        if data[:4] != MAGIC:
            raise ValueError(f"found {data[:4]!r} at its begin, expected {MAGIC!r}")
        version, self._tensors, entries = struct.unpack_from("<IQQ", data, 4)
        if version not in VERSIONS:
            raise ValueError(f"found version {version}, expected 2 or 3")
        at, values = 24, {}
        for _ in range(entries):
            begin = at
            name, at = _string(data, at)
            kind, = struct.unpack_from("<I", data, at)
            key = name.decode()
            values[key], at = _value(data, at + 4, kind)
            self._entries.append((key, begin, at))
        self._tensor_table = at
        for _ in range(self._tensors):
            _, at = _string(data, at)
            dimensions, = struct.unpack_from("<I", data, at)
            at += 4 + 8 * dimensions + 12
        alignment = values.get("general.alignment", DEFAULT_ALIGNMENT)
        if not isinstance(alignment, int) or alignment < 1 or at > len(data):
            raise ValueError(f"found alignment {alignment!r:.20} and a header of {at} bytes in {len(data)}")
        self._alignment, self._table_end = alignment, at
        self._data = -(-at // alignment) * alignment
        return values

    def text(self, key: str, default: str | None = None) -> str | None:
        """A string of the header."""
        found = self.values.get(key)
        return found.decode(errors="replace") if isinstance(found, bytes) else default

    def number(self, key: str, default=None):
        """A number or truth value of the header."""
        found = self.values.get(key)
        return found if isinstance(found, (int, float)) else default

    def array(self, name: str) -> list:
        """An array of the tokenizer; empty where there is none."""
        found = self.values.get(f"tokenizer.ggml.{name}")
        return list(found) if isinstance(found, (list, tuple)) else []

    def blocks(self, begin: int = 0) -> Iterator[bytes]:
        """The file's bytes from `begin` on."""
        for part in self.parts:
            size = part.stat().st_size
            if begin < size:
                with part.open("rb") as file:
                    file.seek(begin)
                    while block := file.read(BLOCK):
                        yield block
            begin = max(0, begin - size)

    def write_without_vocabulary(self, target: Path) -> None:
        """Writes all tensors behind a header that has the vocabulary's size in its place."""
        architecture = self.text("general.architecture", "")
        with self.parts[0].open("rb") as file:
            head = file.read(self._table_end)
        kept = [head[begin:end] for key, begin, end in self._entries if key not in VOCABULARY]
        size = f"{architecture}.vocab_size"
        if size not in self.values and (tokens := self.array("tokens")):
            kept.append(struct.pack("<Q", len(size)) + size.encode() + struct.pack("<II", UINT32, len(tokens)))
        with target.open("wb") as file:
            file.write(MAGIC + struct.pack("<IQQ", 3, self._tensors, len(kept)))
            file.write(b"".join(kept) + head[self._tensor_table:])
            file.write(bytes(-file.tell() % self._alignment))
            for block in self.blocks(self._data):
                file.write(block)

    def whole(self, stack: contextlib.ExitStack) -> Path:
        """The path of all parts in one file, which lives as long as `stack` where there are many."""
        if len(self.parts) == 1:
            return self.parts[0]
        target = Path(stack.enter_context(tempfile.TemporaryDirectory())) / "model.gguf"
        with target.open("wb") as file:
            for block in self.blocks():
                file.write(block)
        return target


def _string(data, at: int) -> tuple[bytes, int]:
    length, = struct.unpack_from("<Q", data, at)
    end = at + 8 + length
    if end > len(data):
        raise ValueError(f"found a string of {length} bytes at byte {at}, of {len(data)}")
    return data[at + 8 : end], end


def _value(data, at: int, kind: int):
    """A value and where the next one begins."""
    if kind == STRING:
        return _string(data, at)
    if kind in NUMBERS:
        form = "<" + NUMBERS[kind]
        return struct.unpack_from(form, data, at)[0], at + struct.calcsize(form)
    if kind != ARRAY:
        raise ValueError(f"found a value of type {kind} at byte {at}")
    kind, count = struct.unpack_from("<IQ", data, at)
    at += 12
    if kind == STRING:
        strings = []
        for _ in range(count):
            one, at = _string(data, at)
            strings.append(one)
        return strings, at
    if kind not in NUMBERS:
        raise ValueError(f"found an array of type {kind} at byte {at}")
    width = struct.calcsize("<" + NUMBERS[kind])
    if count * width > len(data) - at:
        raise ValueError(f"found {count} numbers at byte {at}, of {len(data)}")
    return struct.unpack_from(f"<{count}{NUMBERS[kind]}", data, at), at + count * width
