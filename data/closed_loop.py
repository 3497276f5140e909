#!/usr/bin/env python3
"""Runs the model of a trace with the compressed caches of a results file, and writes what it loses."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "python"))

from kvsim.kvtrace.closed_loop_command import main  # noqa: E402

if __name__ == "__main__":
    sys.exit(main())
