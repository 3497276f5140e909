"""A command of the package in the process of a test: one of its own would load PyTorch or Optuna again."""

import contextlib
import io
import os
import subprocess

from kvsim import commands


def run_here(*words, folder="."):
    """`kvsim WORDS` with `folder` as the current one, as subprocess.run tells of it."""
    before = os.getcwd()
    os.chdir(folder)
    try:
        with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.redirect_stderr(io.StringIO()) as said:
            try:
                code = commands.run(words[0], list(map(str, words[1:])))
            except SystemExit as ended:   # of the parser of options
                code = ended.code
    finally:
        os.chdir(before)
    return subprocess.CompletedProcess(words, code or 0, out.getvalue(), said.getvalue())
