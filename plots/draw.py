#!/usr/bin/env python3
"""Draws the figures of results files, as `kvsim plot` does: draw.py RESULTS.nc [MORE.nc ...] -o figs/"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "python"))

from kvsim.plots.draw import main  # noqa: E402

if __name__ == "__main__":
    sys.exit(main())
