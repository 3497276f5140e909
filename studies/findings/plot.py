"""`kvsim plot` with the figures of studies/figures beside its own: studies/make.sh plot RESULTS.nc... -o DIR"""

import sys
from pathlib import Path

from kvsim.plots import draw, figures

figures.__path__.append(str(Path(__file__).resolve().parents[1] / "figures"))

if __name__ == "__main__":
    sys.exit(draw.main())
