"""`kvsim` of an installed package, and `python -m kvsim`: the commands that Python serves, and the
program's own, which take this process over."""

import os
import sys

from kvsim.commands import COMMANDS, run
from kvsim.errors import Error
from kvsim.plain import printable
from kvsim.program import find_program


def main() -> None:
    """Runs the command line."""
    words = sys.argv[1:]
    # NumPy's products are small here, and its threads wait in loops that take a processor from PyTorch's.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    try:
        if words and words[0] in COMMANDS:
            sys.exit(run(words[0], words[1:]))
        # Functions in Python run where the package is installed.
        os.environ.setdefault("KVSIM_PYTHON", sys.executable)
        os.execv(find_program(), ["kvsim", *words])
    except Error as error:
        print(printable(f"kvsim: {error}"), file=sys.stderr)
        sys.exit(error.exit_code)


if __name__ == "__main__":
    main()
