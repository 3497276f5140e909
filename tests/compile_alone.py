"""Compiles every file of a build by itself, as far as the compiler's checks go. Run: tests/compile_alone.py FOLDER

FOLDER was configured with CMake. Its precompiled headers are made, and what files include of what the build makes.
"""

import json
import os
import shlex
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path


# Memory is plenty for files of this size: the compiler need not look for what it may free.
KEEP_ALL = ["--param", "ggc-min-expand=1000", "--param", "ggc-min-heapsize=4000000"]


def run(entry, words):
    """What the compiler says of a file, or ""."""
    done = subprocess.run(words + KEEP_ALL, cwd=entry["directory"], capture_output=True, text=True)
    return done.stderr if done.returncode else ""


def made(entry):
    """A precompiled header, by its own command: the build would first make all that its target is linked with."""
    return run(entry, shlex.split(entry["command"]))


def compiled(entry):
    words = shlex.split(entry["command"])
    words[words.index("-o"):words.index("-o") + 2] = ["-fsyntax-only"]
    return run(entry, words)


def main():
    folder = Path(sys.argv[1])
    subprocess.run(["ninja", "-C", folder, "kvsim_version_header"], check=True, stdout=subprocess.DEVNULL)
    entries = json.loads((folder / "compile_commands.json").read_text())
    headers = [one for one in entries if one["file"].endswith(".hxx.cxx")]
    files = [one for one in entries if one not in headers]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        faults = [said for said in pool.map(made, headers) if said] or \
            [said for said in pool.map(compiled, files) if said]
    print(*faults, f"{len(files)} files, {len(faults)} with faults", sep="\n")
    return bool(faults) or len(files) < 200 or not headers


if __name__ == "__main__":
    sys.exit(main())
