"""A trace that its model can run on once more: tokens, and the checks that the model is the same."""

import hashlib
from pathlib import Path

import numpy as np

from ..errors import DataError, UsageError
from ..hdf5_file import reads_file
from ..trace import Trace
from .built_in import BUILT_IN
from .model import config_digest, token_digest
from .writer import as_array

# A cache that differs by more than this from the trace's is another model's. A bfloat16 trace
# rounds to 0.4 %, and lower precision in the model's own arithmetic adds a few times that.
SAME_CACHE = 0.1


class TokenTrace(Trace):
    """A trace that a model can run on once more: it holds all tokens.

    `later` names a probe whose tokens take the place of the later ones."""

    def __init__(self, path: Path, later: str = ""):
        super().__init__(path)
        self.later = later
        ids = self.tokens
        if ids is None or ids.ndim != 1 or not 0 < self.prompt_len < len(ids):
            raise DataError(f"{path}: tokens/id: found none for every position; a model can "
                            "only run again on tokens that the trace holds")

    @reads_file("a trace")
    def run_tokens(self) -> list[int]:
        """The prompt's tokens and the later ones, or those of the probe in their place."""
        if not self.later:
            return [int(token) for token in self.tokens]
        name = f"probes/{self.later}/token_id"
        if name not in self._file:
            raise DataError(f"{self.path}: {name}: missing; a model can only run again on tokens that the trace holds")
        return [int(token) for token in (*self.tokens[: self.prompt_len], *self._file[name][()])]

    @reads_file("a trace")
    def answer_begin(self) -> int | None:
        """Position of the answer's first token, where it is known."""
        if not self.later:
            begin = self.source.get("answer_begin")
            return None if begin is None else int(begin)
        begin = self._file[f"probes/{self.later}"].attrs.get("answer_begin")
        return None if begin is None else self.prompt_len + int(begin)

    def check(self, results, inputs) -> None:
        """Refuses tokens that are not the captured ones, results of another trace, and inputs where there were
        others: images and sounds are not in a trace, so that they must be given again."""
        import xxhash

        known = self.source.get("token_ids_sha256")
        if known is None or "config_sha256" not in self.source:
            raise DataError(f"{self.path}: attribute source lacks the digests of tokens and "
                            "model configuration that kvsim capture writes")
        if token_digest(self.tokens) != known:
            raise DataError(f"{self.path}: tokens/id: other tokens than the captured ones (digest differs from source)")
        names = self.source.get("inputs", [])
        if bool(names) != (inputs is not None):
            raise UsageError(
                f"{self.path}: captured with {', '.join(names)} beside its tokens, which no trace holds: "
                "give them again, kvsim.closed_loop(model, results, inputs=inputs)" if names else
                f"{self.path}: captured from text alone: expected no inputs")
        if inputs is not None and inputs.ids != [int(one) for one in self.tokens[: self.prompt_len]]:
            raise UsageError(f"{self.path}: inputs: found other tokens than the trace's prompt")
        with open(self.path, "rb") as file:
            digest = hashlib.file_digest(file, xxhash.xxh3_128).hexdigest()
        if results.trace_digest != f"xxh3-128:{digest}":
            raise DataError(f"{results.path}: made from another trace than {self.path} "
                            f"(its digest is {results.trace_digest})")

    def model_name(self) -> str:
        source = str(self.source.get("model_source", ""))
        for name, one in BUILT_IN.items():
            if source.startswith(f"pip {one.package} "):
                return name
        if source.endswith(" of the caller") and not Path(self.model).is_dir() and self.model.count("/") != 1:
            raise UsageError(f"{self.path}: captured in Python from a model that has no name to load it by ({self.model}): "
                             "--model NAME|FOLDER says where it is, --gguf FILE which file; or run "
                             "kvsim.closed_loop(model, results) in Python")
        return self.model

    def check_model(self, loaded) -> None:
        if config_digest(loaded.config) != self.source["config_sha256"]:
            raise DataError(f"{self.path}: captured from another model ({self.model}) than "
                            f"{loaded.name}: the digests of their configurations differ")

    def check_cache(self, loop) -> None:
        """Equal configurations are not equal weights: the cache must be the captured one, too."""
        layer = self.layers[-1]
        keys = self.layer(layer).keys[:, :self.prompt_len].astype(np.float64)
        found = as_array(loop.prompt[layer][0][0])
        if found.shape != keys.shape:
            raise DataError(f"{self.path}: cannot compare the keys of layer {layer}: found "
                            f"{list(keys.shape)}, expected {list(found.shape)}")
        difference = np.linalg.norm(found - keys) / np.linalg.norm(keys)
        if not difference < SAME_CACHE:
            other = "weights or inputs" if loop.inputs else "weights"
            raise DataError(f"{self.path}: captured from other {other}: the keys of layer "
                            f"{layer} differ by {difference:.2g} (relative)")
