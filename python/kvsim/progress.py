"""How far work is, on standard error: a bar where somebody looks, lines of JSON for programs, now and then a
line for who reads a log."""

import importlib.util
import json
import sys
import time

from .plain import duration, printable

SHORT = 1.0    # seconds; work that takes less shows no bar
OFTEN = 30.0   # seconds between two lines of a log about one part of the work


def _tqdm():
    """The bar of notebooks where their widgets are installed: without them it would warn."""
    if "ipykernel" in sys.modules and importlib.util.find_spec("ipywidgets"):
        from tqdm.notebook import tqdm
    else:
        from tqdm import tqdm
    return tqdm


class Progress:
    """How far one command or call is."""

    def __init__(self, wanted: bool | None = None, quiet: bool = False, json: bool = False, log: str = ""):
        """`wanted`: a bar (True), nothing (False, `quiet`), or a bar on a terminal and in notebooks, else lines of
        `log`, the name of a command (None). `json`: lines of JSON whatever else is wanted."""
        wanted = False if quiet else wanted
        looked_at = sys.stderr.isatty() or "ipykernel" in sys.modules
        self.json = json
        self.draws = not json and (looked_at if wanted is None else wanted)
        self.log = log if wanted is None and not looked_at else ""
        self.bar = None
        self.said = self.begin = time.monotonic()
        self.part, self.done = "", 1.0

    def show(self, share: float, what: str, part: str = "") -> None:
        """`share` in [0, 1] is done, `what` being worked on, a `part` of the work."""
        if self.json:
            print(json.dumps({"progress": share, "what": what}), file=sys.stderr, flush=True)
        elif self.draws:
            if self.bar is None:
                self.bar = _tqdm()(total=100, delay=SHORT, unit="%", leave=False, dynamic_ncols=True,
                                   bar_format="{percentage:3.0f}% {desc}|{bar}| {elapsed}<{remaining}")
            self.bar.set_description(printable(what), refresh=False)
            self.bar.update(100 * share - self.bar.n)
        elif self.log and (part != self.part or time.monotonic() - self.said > OFTEN):
            self.said, self.part = time.monotonic(), part
            print(printable(f"{self.log}: {what}, {share:.0%}"), file=sys.stderr, flush=True)

    def tell(self, what: str, share: float) -> None:
        """Shows "PART: STAGE" of long work; a log gets the time that is left."""
        if share < self.done:   # another kind of work
            self.begin = time.monotonic()
            if self.bar is not None:
                self.bar.reset()
        self.done, spent = share, time.monotonic() - self.begin
        left = f" ({duration(spent / share - spent)} left)" if self.log and share > 0 else ""
        self.show(share, what + left, what.split(":")[0])

    def steps(self, stage: str, done: int, total: int) -> None:
        """Shows a stage of the work, and takes the bar away when it is done."""
        self.show(done / max(total, 1), f"{stage} {done}/{total}")
        if done == total:
            self.close()

    def close(self) -> None:
        """Takes the bar away."""
        if self.bar is not None:
            self.bar.close()
            self.bar = None
