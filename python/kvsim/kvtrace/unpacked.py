"""Small models in GGUF form, unpacked once, since reading their header takes transformers longer
than all that a short run does: four times, name by name of the vocabulary."""

import contextlib
import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Callable
from importlib import metadata
from pathlib import Path

from ..program import cache_folder

LARGEST = 128 << 20   # bytes of a GGUF file; unpacked, in float32, it is four to eight times that


def home() -> Path:
    """Where they lie. Whatever is there may be deleted at any time."""
    return cache_folder() / "models"


def unpacked(gguf: Path, load: Callable[[], tuple]) -> Path | None:
    """The folder of a GGUF file's model, made with `load`, which returns (model in float32,
    tokenizer), where it is missing. None for a large file, or where nothing can be written."""
    if not gguf.is_file() or gguf.stat().st_size > LARGEST:
        return None
    # Another transformers may read the same bytes in another way.
    digest = hashlib.sha256(json.dumps([metadata.version(one) for one in ("transformers", "gguf")])
                            .encode())
    digest.update(gguf.read_bytes())
    target = home() / f"{gguf.stem}-{digest.hexdigest()[:16]}"
    return target if target.is_dir() or _made(target, *load()) else None


def _made(target: Path, model, tokenizer) -> bool:
    """Saves both under a temporary name; true when the folder is there, whoever made it."""
    with contextlib.ExitStack() as stack:
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            temporary = tempfile.mkdtemp(prefix=f".{target.name}.", dir=target.parent)
            stack.callback(shutil.rmtree, temporary, ignore_errors=True)
            model.save_pretrained(temporary)
            tokenizer.save_pretrained(temporary)
            for one in Path(temporary).iterdir():
                with one.open("rb") as file:
                    os.fsync(file.fileno())
            os.rename(temporary, target)
        except OSError:   # a full disk, a home that is read only; or another run was first
            pass
    return target.is_dir()
