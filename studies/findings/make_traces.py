"""`kvsim make-traces` with the kinds of studies/texts beside its own: studies/reproduce_traces.sh DIR"""

import sys
from pathlib import Path

from kvsim import texts

texts.__path__.append(str(Path(__file__).resolve().parents[1] / "texts"))

from kvsim.texts import orders  # noqa: E402  (found by the path above)

texts.KINDS.update({kind.name: kind for kind in orders.KINDS})

if __name__ == "__main__":
    from kvsim.kvtrace.make_traces_command import main

    sys.exit(main())
