#!/usr/bin/env python3
"""Makes larger real traces, one per kind of text, into a folder outside of git."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "python"))

from kvsim.kvtrace.make_traces_command import main  # noqa: E402

if __name__ == "__main__":
    sys.exit(main())
