"""Small models in GGUF form, unpacked once: weights in float32 and a tokenizer, in a folder that
transformers loads in a second."""

import contextlib
import hashlib
import json
import mmap
import os
import shutil
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from importlib import metadata
from pathlib import Path

from ..commands import cache_folder
from .gguf_file import GgufFile
from .gguf_tokenizer import make_tokenizer

LARGEST = 512 << 20   # bytes of a GGUF file; unpacked, in float32, it is four to eight times that
LAYOUT = 6            # of these folders; another number makes them anew
DIGEST = "xxh3"       # of all files, in one of this name


def home() -> Path:
    """Where they lie. Whatever is there may be deleted at any time."""
    return cache_folder() / "models"


def unpacked(gguf: GgufFile, called: str, load: Callable[[Path], object], read: Callable[[Path], object]):
    """What `read` makes of the folder of a GGUF file's model, which is made where it is missing or torn: `load`
    reads the model, in float32, from a file without vocabulary. None for a large file, or where nothing can be
    written. `called` is how errors name the file."""
    if sum(part.stat().st_size for part in gguf.parts) > LARGEST:
        return None
    # Another transformers may read the same bytes in another way.
    digest = hashlib.sha256(json.dumps(
        [LAYOUT, *map(metadata.version, ("transformers", "tokenizers", "gguf"))]).encode())
    for part in gguf.parts:
        _update(digest, part)
    stem = gguf.parts[0].name.partition(".gguf")[0]
    target = home() / f"{stem}-{digest.hexdigest()[:16]}"
    if target.is_dir():
        # Bytes are checked while they are read, which takes one thread of Python; what came of torn ones goes.
        with ThreadPoolExecutor(1) as beside:
            whole = beside.submit(_whole, target)
            try:
                found = read(target)
            except Exception:   # whatever a torn file makes a library raise
                if whole.result():
                    raise
            else:
                if whole.result():
                    return found
    return read(target) if _made(target, gguf, called, load) else None


def _update(digest, file: Path) -> None:
    """Adds a file's bytes in one call, during which other threads of Python run."""
    with file.open("rb") as opened:
        if file.stat().st_size:   # of none there is no map
            with mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ) as data:
                digest.update(data)


def _digest(folder: Path) -> str:
    import xxhash

    digest = xxhash.xxh3_128()
    for one in sorted(folder.iterdir()):
        if one.name != DIGEST:
            digest.update(one.name.encode())
            _update(digest, one)
    return digest.hexdigest()


def _whole(folder: Path) -> bool:
    """Is all there as it was written? Nobody waits until a gigabyte is on the disk."""
    try:
        return (folder / DIGEST).read_text() == _digest(folder)
    except OSError:
        return False


def _made(target: Path, gguf: GgufFile, called: str, load: Callable[[Path], object]) -> bool:
    """Saves both under a temporary name; true when the folder is there, whoever made it."""
    with contextlib.ExitStack() as stack:
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            temporary = Path(tempfile.mkdtemp(prefix=f".{target.name}.", dir=target.parent))
            stack.callback(shutil.rmtree, temporary, ignore_errors=True)
            slim = temporary / "slim.gguf"
            gguf.write_without_vocabulary(slim)
        except OSError:   # a full disk, a home that is read only
            return False
        make_tokenizer(gguf, called, temporary, lambda: gguf.whole(stack))
        try:
            model = load(slim)
        except (KeyError, TypeError):   # of a transformers that wants the vocabulary itself
            model = load(gguf.whole(stack))
        with contextlib.suppress(OSError):   # another run may be first
            slim.unlink()
            model.save_pretrained(temporary)
            (temporary / DIGEST).write_text(_digest(temporary))
            if target.is_dir() and not _whole(target):
                shutil.rmtree(target)
            os.rename(temporary, target)
            return True
    return _whole(target)
