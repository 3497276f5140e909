"""Loads model and tokenizer, and describes them so that a trace can be told from another's."""

import contextlib
import gc
import hashlib
import json
import logging
import os
import sys
import tempfile
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from ..errors import DataError, Error, line_of
from .built_in import BUILT_IN
from .gguf_file import GgufFile
from .gguf_tokenizer import make_tokenizer, read_tokenizer
from .unpacked import unpacked

# Keys that tell one model shape from another, spelled alike in every version of transformers.
CONFIG_KEYS = ("model_type", "vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads",
               "num_key_value_heads", "head_dim", "sliding_window", "tie_word_embeddings")


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

    def record(self) -> dict:
        """Where the model was found, of which revision where a hub has several, how it computes, and
        with what: as traces and results name it."""
        versions = {"python": ".".join(map(str, sys.version_info[:3]))}
        for package in ("torch", "transformers", "tokenizers", "gguf", "h5py", "numpy"):
            with contextlib.suppress(metadata.PackageNotFoundError):
                versions[package] = metadata.version(package)
        told = {"model_source": self.source, "model_dtype": str(self.model.dtype).removeprefix("torch."),
                "libraries": versions}
        if revision := getattr(self.model.config, "_commit_hash", None):
            told["model_revision"] = str(revision)
        return told


def of_caller(model, tokenizer=None) -> LoadedModel:
    """A model that somebody holds."""
    kind = type(model).__name__
    return LoadedModel(model, tokenizer, str(getattr(model, "name_or_path", "")) or kind, f"{kind} of the caller")


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


def find_model(model: str, gguf: str | None) -> tuple[list[Path], str, str]:
    """Looks for a built-in model, a file, a folder, or a name of Hugging Face's hub: the parts of a GGUF file,
    if it is one, `name` and `source` of LoadedModel."""
    if built_in := BUILT_IN.get(model):
        parts = built_in.paths(gguf)
        return parts, built_in.name, built_in.source(parts[0].name.partition(".part")[0])
    path, inside = Path(model), f", {gguf}" if gguf else ""
    if path.is_file():
        if path.suffix != ".gguf":
            raise DataError(f"{model}: expected a folder, a Hugging Face name or a .gguf file")
        return [path], path.stem, path.name
    if path.is_dir():
        if gguf and not (path / gguf).is_file():
            raise DataError(f"{path / gguf}: no such file")
        name = path.resolve().name
        return [path / gguf] if gguf else [], name, name + inside
    if model.startswith((".", "/", "~")):
        raise DataError(f"{model}: no such folder")
    from transformers.utils import cached_file

    return [Path(cached_file(model, gguf))] if gguf else [], model, model + inside


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
        raise Error(f"{error}; capturing needs: pip install -r data/requirements.txt") from None
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    huggingface_hub.utils.logging.set_verbosity_error()
    logging.getLogger("gguf").setLevel(logging.ERROR)
    if threads > 0:
        torch.set_num_threads(threads)
    return torch, transformers


@contextlib.contextmanager
def no_collections() -> Iterator[None]:
    """What imports and a loaded model leave behind stays: to look for garbage in it, again and again,
    takes a sixth of the time and finds nearly none."""
    collected = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collected:
            gc.enable()


def check_tokenizer(tokenizer, model: str) -> None:
    """Where its files are missing transformers makes a tokenizer that knows no words."""
    words = tokenizer("Which words are known?", add_special_tokens=False)["input_ids"]
    if set(words) <= set(tokenizer.all_special_ids):
        raise DataError(f"{model}: its tokenizer knows no words: found none of tokenizer.json, "
                        "tokenizer.model and vocab.json; copy them from where the model is from")


@no_collections()
def load_model(model: str, gguf: str | None, dtype: str, device: str, threads: int,
               layers: list[int] | None = None) -> LoadedModel:
    """Loads a causal LM by Hugging Face name, folder, .gguf file or the name of a built-in model. `layers` that it
    does not have are refused before its weights are read. A small GGUF file is unpacked first (unpacked.py)."""
    torch, transformers = import_torch(threads)

    from safetensors import SafetensorError
    from transformers import modeling_gguf_pytorch_utils as gguf_utils

    bar, gguf_utils.tqdm = gguf_utils.tqdm, lambda items, **_: items   # it would cut the line of ours
    said = "cannot load" if Path(model).exists() or model in BUILT_IN else \
        "no such file or folder here, and as a name on Hugging Face it cannot be loaded"
    try:
        parts, name, source = find_model(model, gguf)
        tokenizer, loaded = _load_gguf(GgufFile(parts), model, dtype, layers) if parts else \
            (_read(transformers.AutoTokenizer, model), _read_model(model, dtype, layers))
    except (OSError, ValueError, ImportError, KeyError, SafetensorError) as error:
        raise DataError(f"{model}: {said}: {line_of(error)[:300]}") from None
    finally:
        gguf_utils.tqdm = bar
    check_tokenizer(tokenizer, model)
    loaded = loaded.to(device).eval()
    from .linear import speed_up

    speed_up(loaded)
    return LoadedModel(loaded, tokenizer, name, source)


def _read(part, target, **options):
    """Code beside the weights is never run."""
    return part.from_pretrained(target, trust_remote_code=False, **options)


def _read_model(target, dtype: str, layers: list[int] | None = None, **gguf):
    """Weights that are pickles are never read; those of a GGUF file become plain matrices."""
    import torch
    import transformers

    if layers:
        last = int(_read(transformers.AutoConfig, target, **gguf).get_text_config().num_hidden_layers) - 1
        if wrong := [layer for layer in layers if layer > last]:
            raise DataError(f"layer {wrong[0]}: the model has layers 0..{last}")
    if not gguf:
        gguf = {"use_safetensors": True}
    elif hasattr(transformers, "GgufConfig"):
        gguf["quantization_config"] = transformers.GgufConfig(dequantize=True)
    return _read(transformers.AutoModelForCausalLM, target, dtype=getattr(torch, dtype), **gguf)


def _load_gguf(file: GgufFile, called: str, dtype: str, layers: list[int] | None) -> tuple:
    """Tokenizer and model of a GGUF file, from its unpacked form where there is one."""
    import transformers

    def read(folder):
        ahead.join()
        return read_tokenizer(folder), _read_model(folder, dtype, layers)

    # What any model needs is imported while bytes are hashed, which holds no lock of Python.
    ahead = threading.Thread(target=getattr, args=(transformers, "PreTrainedModel"))
    ahead.start()
    if found := unpacked(file, called, lambda path: _read_model(path.parent, "float32", gguf_file=path.name), read):
        return found
    with contextlib.ExitStack() as stack:
        whole = file.whole(stack)
        temporary = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        make_tokenizer(file, called, temporary, lambda: whole)
        return read_tokenizer(temporary), _read_model(whole.parent, dtype, layers, gguf_file=whole.name)
