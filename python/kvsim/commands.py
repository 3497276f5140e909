"""Commands that Python serves, by the table commands.json: the program hands its word over to
`python -m kvsim WORD ...`. A command may need packages that this Python lacks and another has."""

import importlib
import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from .errors import Error

HERE = Path(__file__).resolve().parent
PACKAGED = (HERE / "bin" / "kvsim").exists()   # a wheel, which brings the program along
COMMANDS: dict[str, dict] = json.loads((HERE / "commands.json").read_text(encoding="utf-8"))

#: Words by which a command tells about itself: they take no packages.
TELLS = ("-h", "--help", "--list")
CHECK = "import importlib.util as u, sys; sys.exit(not all(map(u.find_spec, sys.argv[1:])))"


def cache_folder() -> Path:
    """Where the scripts install and the package keeps what can be made again."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "kvsim"


def environment() -> dict[str, str]:
    """Variables with which another Python finds this package."""
    path = os.environ.get("PYTHONPATH")
    return {**os.environ, "PYTHONPATH": f"{HERE.parent}{os.pathsep + path if path else ''}"}


def python_with(modules: Iterable[str]) -> str | None:
    """This Python if it has all these modules; else, unless KVSIM_PYTHON or a wheel fixes it, one of
    the scripts' or the shell's that has. None where there is none."""
    modules = list(modules)
    if all(map(importlib.util.find_spec, modules)):
        return sys.executable
    if os.environ.get("KVSIM_PYTHON") or PACKAGED:
        return None
    for one in (*(str(cache_folder() / venv / "bin" / "python") for venv in ("plots", "torch")), "python3"):
        try:
            if subprocess.run([one, "-c", CHECK, *modules], env=environment(), check=False,
                              capture_output=True).returncode == 0:
                return one
        except OSError:
            continue
    return None


def advice(modules: Sequence[str]) -> str:
    """What brings modules that a Python lacks."""
    if PACKAGED:
        return "pip install 'kvsim[capture,search]'"
    if {"torch", "transformers", "kvpress"}.intersection(modules):
        return ("~/.cache/kvsim/plots/bin/pip install -r data/requirements.txt; KVSIM_PYTHON names another Python")
    return "scripts/quickstart.sh sets one up; KVSIM_PYTHON names another"


def shipped(words: Sequence[str]) -> list[str]:
    """data/... where this folder has no such file is what came with kvsim; not as a target."""
    found = list(words)
    for at, word in enumerate(words):
        if not word.startswith("data/") or Path(word).exists() or words[at - 1] in ("-o", "--out"):
            continue
        for home in (HERE, HERE.parents[1]):   # of a wheel; of a clone, or what was installed
            if (home / word).is_file():
                found[at] = str(home / word)
    return found


def run(name: str, words: Sequence[str]) -> int:
    """Runs a command of the table, here or in the Python that has what it needs."""
    needs = [] if any(one in TELLS for one in words) else COMMANDS[name]["needs"]
    python = python_with(needs)
    if python is None:
        lacking = [one for one in needs if importlib.util.find_spec(one) is None]
        raise Error(f"{name}: no Python has {', '.join(needs)}: {sys.executable} lacks "
                    f"{', '.join(lacking)} ({advice(needs)})")
    if python != sys.executable:
        os.execvpe(python, [python, "-P", "-m", "kvsim", name, *words], environment())
    try:
        return importlib.import_module(f"{__package__}.{COMMANDS[name]['module']}").main(shipped(words))
    except ModuleNotFoundError as error:
        raise Error(f"{name}: {sys.executable} lacks {error.name} ({advice([str(error.name)])})") from None
