"""Writes the reference in docs/python.md from the docstrings of the package, so that it can be read in
the repository. Between `<!-- reference: NAME... -->` and `<!-- end -->` stands what is made here;
CLASS.METHOD names a method. Nothing is imported: PyTorch need not be there.

usage: python3 scripts/reference.py [--check]
"""

import ast
import re
import sys
import textwrap
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "python.md"
PACKAGE = ROOT / "python" / "kvsim"
SECTIONS = ("Args:", "Attributes:", "Returns:", "Raises:")


def homes() -> dict[str, ast.AST]:
    """Every public name with the node that defines it."""
    listed = [node for node in ast.parse((PACKAGE / "__init__.pyi").read_text(encoding="utf-8")).body
              if isinstance(node, ast.ImportFrom)]
    found = {}
    for home, names in ((one.module, [name.name for name in one.names]) for one in listed):
        body = tree_of(home).body
        # `press = LivePress`: the class under the name of a function.
        called = {node.value.id: node.targets[0].id for node in body if isinstance(node, ast.Assign)
                  and isinstance(node.value, ast.Name) and isinstance(node.targets[0], ast.Name)}
        for node in body:
            if getattr(node, "name", None) in called:
                node.name = called[node.name]
            if getattr(node, "name", None) in names:
                found[node.name] = node
            elif isinstance(node, ast.ImportFrom):   # handed on from another module
                for one in {alias.name for alias in node.names} & set(names):
                    found[one] = next(other for other in tree_of(node.module).body
                                      if getattr(other, "name", None) == one)
    return found


def tree_of(module: str) -> ast.Module:
    return ast.parse((PACKAGE / f"{module.replace('.', '/')}.py").read_text(encoding="utf-8"))


def signature(name: str, node: ast.AST) -> str:
    """ "replay(trace, policies=None, *, seed=0)": types stand in the source."""
    function = node
    if isinstance(node, ast.ClassDef):
        function = next((one for one in node.body if getattr(one, "name", "") == "__init__"), None)
        if function is None:
            return name
    if any(getattr(one, "id", "") == "property" for one in function.decorator_list):
        return name
    arguments = function.args
    for one in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs,
                *filter(None, (arguments.vararg, arguments.kwarg))):
        one.annotation = None
    text = re.sub(r"^(self|cls)(, )?(/, )?", "", ast.unparse(arguments))
    return f"{name}({text})"


def plain(text: str) -> str:
    """Roles and double backticks of reStructuredText as Markdown has them."""
    text = re.sub(r":(?:func|class|meth|attr):`(?:kvsim\.)?([^`]+)`", r"`\1`", text)
    return text.replace("``", "`")


def joined(text: str) -> str:
    """A paragraph on one line."""
    return " ".join(plain(text).split())


def body(doc: str) -> list[str]:
    """A docstring in Google's style as Markdown."""
    lines: list[str] = []

    def paragraph(text: str) -> None:
        if lines and lines[-1] and not lines[-1].startswith("```"):
            lines.append("")
        lines.append(joined(text))

    for part in re.split(r"\n\s*\n", doc.strip()):
        head, _, items = part.partition("\n")
        if head.strip() in SECTIONS:
            whole = textwrap.dedent(items)
            found = [whole] if head.strip() == "Returns:" else re.split(r"\n(?=\S)", whole)
            for item in found:
                name, colon, told = item.partition(": ")
                named = colon and re.fullmatch(r"[\w, *`.\"]+", name)
                what = "" if head.strip() in ("Args:", "Attributes:") else f"{head.strip()} "
                lines.append("- " + what + joined(f"`{name}`: {told}" if named else item))
        elif ">>>" in part:
            before = part[:part.index(">>>")].strip()
            if before:
                paragraph(before)
            lines += ["```pycon", *textwrap.dedent(part[part.index(">>>"):]).splitlines(), "```"]
        else:
            paragraph(part)
    return [*lines, ""]


def entry(name: str, nodes: dict[str, ast.AST]) -> list[str]:
    first, _, method = name.partition(".")
    node = nodes[first]
    if method:
        node = next(one for one in node.body if getattr(one, "name", "") == method)
    doc = ast.get_docstring(node)
    if doc is None:
        raise SystemExit(f"kvsim.{name}: no docstring")
    lines, title = body(doc), f"**`kvsim.{signature(name, node)}`**"
    if len(lines) == 2:   # a sentence and nothing else
        return [f"- {title}: {lines[0]}"]
    return [f"{title}  ", *lines]


def made(page: str) -> str:
    nodes = homes()

    def block(found: re.Match) -> str:
        lines: list[str] = []
        for one in (entry(name, nodes) for name in found[1].split()):
            if lines and lines[-1].startswith("- **") and not one[0].startswith("- "):
                lines.append("")
            lines += one
        return f"<!-- reference: {found[1]} -->\n\n" + "\n".join(lines).rstrip() + "\n<!-- end -->"

    return re.sub(r"<!-- reference: ([^>]*?) -->.*?<!-- end -->", block, page, flags=re.S)


def main() -> int:
    page = PAGE.read_text(encoding="utf-8")
    wanted = made(page)
    if "--check" in sys.argv:
        if page != wanted:
            print("docs/python.md: not what the docstrings say; python3 scripts/reference.py writes it")
        return int(page != wanted)
    PAGE.write_text(wanted, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
