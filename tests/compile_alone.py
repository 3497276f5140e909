"""Compiles every file of a build by itself, as far as the compiler's checks go. Run: tests/compile_alone.py FOLDER

FOLDER was configured with CMake. Its precompiled headers are built, and what files include of what the build makes.
"""

import json
import os
import shlex
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path


def compiled(entry):
    """What the compiler says of a file, or ""."""
    words = shlex.split(entry["command"])
    words[words.index("-o"):words.index("-o") + 2] = ["-fsyntax-only"]
    done = subprocess.run(words, cwd=entry["directory"], capture_output=True, text=True)
    return done.stderr if done.returncode else ""


def main():
    folder = Path(sys.argv[1])
    targets = subprocess.run(["ninja", "-C", folder, "-t", "targets", "all"], check=True, capture_output=True, text=True)
    made = [line.split(":")[0] for line in targets.stdout.splitlines()
            if line.split(":")[0].endswith((".gch", "kvsim_version_header"))]
    subprocess.run(["ninja", "-C", folder, *made], check=True, stdout=subprocess.DEVNULL)
    entries = [one for one in json.loads((folder / "compile_commands.json").read_text())
               if not one["file"].endswith((".hxx.cxx", ".hxx"))]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        faults = [said for said in pool.map(compiled, entries) if said]
    print(*faults, f"{len(entries)} files, {len(faults)} with faults", sep="\n")
    return bool(faults) or len(entries) < 300


if __name__ == "__main__":
    sys.exit(main())
