#!/usr/bin/env python3
"""Captures what a Hugging Face causal LM puts into its attention layers: a kvtrace v1 file."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "python"))

from kvsim.kvtrace.capture_command import main  # noqa: E402

if __name__ == "__main__":
    sys.exit(main())
