"""kvsim: what each later token would have lost if the KV cache had been compressed this way.

>>> import kvsim
>>> results = kvsim.replay(kvsim.sample(), ["snapkv", "h2o"], [0.2, 0.5])
>>> results.kvsim.summary

These arguments mean the same everywhere, and stand in the signatures alone: `threads` of the program (all cores
without), `backend` ("auto", "cpu" or "cuda"), `seed` of everything random, `overwrite` of what is there, `title` of a
page, `pool`: means over files although their layers or lengths differ, and `progress`: show a bar (True), none
(False), or one on a terminal and in notebooks (None). Of models `tokenizer` is that of one that you hold, or its
processor; of one that is loaded by name `device` and `model_dtype` say how it computes.

What is heavy is imported when it is used: the command line must start at once."""

import importlib
import importlib.util
import sys
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from .errors import DataError, Error, UsageError, VerificationError

#: Module -> names that are imported when they are used; __init__.pyi tells type checkers of them.
_NAMES = {
    "api": "policies replay sample sweep synth verify",
    "compact_cache": "CompactCache",
    "comparison": "compare",
    "explanation": "Explanation explain",
    "figures": "Figures figure_names plot report",
    "kvpress": "from_kvpress",
    "kvtrace.engines": "from_engine",
    "kvtrace.writer": "PathNorm TraceWriter",
    "bytes_for_loss": "least_bytes",
    "live_press": "press",
    "model": "capture closed_loop demo_model",
    "policy": "Policy",
    "program": "KvsimWarning",
    "results": "Results open_results",
    "searches.api": "search",
    "studies.api": "choose study",
    "token_dropping": "drop_tokens",
    "trace": "Layer Span Trace",
}
_HOME_OF = {name: module for module, names in _NAMES.items() for name in names.split()}

__all__ = ["DataError", "Error", "UsageError", "VerificationError"]
__all__ += list(_HOME_OF)

# Names that cannot be imported without the packages that run models.
_NEEDS = {"CompactCache": ("torch", "transformers"), "press": ("torch", "transformers", "kvpress")}
for _name, _modules in _NEEDS.items():
    if not all(map(importlib.util.find_spec, _modules)):
        __all__.remove(_name)


def __getattr__(name: str) -> Any:
    if name == "__version__":
        try:
            return version("kvsim")
        except PackageNotFoundError:
            raise AttributeError("kvsim is not installed, so that it has no __version__: "
                                 "in a clone ask build/kvsim --version") from None
    if name not in _HOME_OF:
        raise AttributeError(f"module 'kvsim' has no attribute {name!r}")
    try:
        found = getattr(importlib.import_module(f".{_HOME_OF[name]}", __name__), name)
    except ModuleNotFoundError as error:
        from .commands import advice

        raise ModuleNotFoundError(f"{sys.executable} has no module {error.name}, which kvsim needs: "
                                  f"{advice([str(error.name)])}", name=error.name) from None
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return [*__all__, "__version__"]


if "IPython" in sys.modules:   # results show themselves by their summary table from the first one on
    from .results import show_in_notebooks

    show_in_notebooks()
