"""Worked examples of CONTRIBUTING.md as modules, for the tests."""

import sys
import types
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def example(marker: str, name: str) -> types.ModuleType:
    """The code between `marker`:begin and :end, as the module of that name would hold it."""
    page = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    code = page.split(f"<!-- {marker}:begin -->\n```python\n")[1]
    code = code.split(f"```\n<!-- {marker}:end -->")[0]
    module = types.ModuleType(name)
    module.__package__ = name.rpartition(".")[0]
    sys.modules[name] = module
    exec(compile(code, f"CONTRIBUTING.md, {marker}", "exec"), module.__dict__)
    return module
