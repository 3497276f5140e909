"""`kvsim` of an installed package, and `python -m kvsim`: becomes the program."""

import os
import sys

from kvsim.errors import Error
from kvsim.program import find_program


def main() -> None:
    """Hands the words of the command line to the program, which takes this process over."""
    # Figures and functions in Python run where the package is installed.
    os.environ.setdefault("KVSIM_PYTHON", sys.executable)
    try:
        program = find_program()
    except Error as error:
        sys.exit(f"kvsim: {error}")
    os.execv(program, ["kvsim", *sys.argv[1:]])


if __name__ == "__main__":
    main()
