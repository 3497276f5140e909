"""Runs the commands of README.md and docs/guide.md as they are printed, in a copy of nothing but the
repository's own files, and checks what the pages say of themselves.

Blocks marked ```sh are run from the repository's root; ```python blocks with the plots venv. A
block after the line `<!-- not run: WHY -->` is left out. build/kvsim must have been built.
"""
import os
import pathlib
import re
import shutil
import subprocess
import sys
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
CACHE = pathlib.Path(os.environ.get("XDG_CACHE_HOME", pathlib.Path.home() / ".cache")) / "kvsim"
BLOCK = re.compile(r"(<!-- not run: [^>]*-->\n)?```(sh|python)\n(.*?)```", re.S)


def blocks():
    """(language, text) of every block that is run, in the order of the pages."""
    return [(m.group(2), m.group(3)) for page in ("README.md", "docs/guide.md")
            for m in BLOCK.finditer((ROOT / page).read_text()) if not m.group(1)]


PRINTED = re.compile(r"```sh\n([^`]*?)```[^`]*?<!-- printed by the command above -->\n"
                     r"```\n(.*?)```", re.S)   # the block of commands next before it
NUMBER = re.compile(r"(?<![\w.])\d+(?:\.\d+)?(?![\w.]\w)")


def run(command, **kwargs):
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=900, **kwargs)


class Readme(unittest.TestCase):
    def test_commands_and_examples_work_in_the_order_of_the_page(self):
        python = str(CACHE / "plots" / "bin" / "python")
        commands = blocks()
        self.assertEqual({kind for kind, _ in commands}, {"sh", "python"})
        # A search goes on with what it finds, and refuses that of an older search.
        shutil.rmtree(ROOT / "build/search", ignore_errors=True)
        for kind, text in commands:
            done = run(["bash", "-euo", "pipefail", "-c", text] if kind == "sh" else
                       [python, "-c", text])
            self.assertEqual(done.returncode, 0, f"{text}\n{done.stdout}\n{done.stderr}")

    def test_printed_tables_are_what_the_commands_print(self):
        text = (ROOT / "README.md").read_text()
        found = PRINTED.findall(re.sub(r"(?<!`)`[^`\n]+`(?!`)", "", text))
        self.assertEqual(len(found), text.count("<!-- printed by the command above -->"))
        self.assertGreater(len(found), 0)
        for command, printed in found:
            done = run(["bash", "-euo", "pipefail", "-c", command])
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertEqual(NUMBER.sub("#", done.stdout), NUMBER.sub("#", printed))
            # Other processors round otherwise, in the last digit.
            for ours, theirs in zip(NUMBER.findall(done.stdout), NUMBER.findall(printed),
                                    strict=True):
                self.assertAlmostEqual(float(ours), float(theirs), delta=0.02 * float(ours) + 2e-3)

    def test_policy_table_is_what_the_program_prints(self):
        page = ROOT / "docs/presets.md"
        before, rest = page.read_text().split("<!-- policies:begin -->\n")
        table, after = rest.split("<!-- policies:end -->")
        printed = run(["build/kvsim", "policies", "--markdown"])
        self.assertEqual(printed.returncode, 0, printed.stderr)
        if os.environ.get("KVSIM_UPDATE_DOCS") and table.strip() != printed.stdout.strip():
            page.write_text(f"{before}<!-- policies:begin -->\n{printed.stdout}"
                            f"<!-- policies:end -->{after}")
            return
        self.assertEqual(table.strip(), printed.stdout.strip(),
                         "stale: KVSIM_UPDATE_DOCS=1 tests/group.sh readme writes it anew")

    def test_links_point_at_files_of_the_repository(self):
        for page in ("README.md", "CONTRIBUTING.md", "docs/guide.md", "docs/presets.md",
                     "docs/speed.md", "studies/README.md"):
            text = (ROOT / page).read_text()
            text = re.sub(r"```.*?```", "", text, flags=re.S)   # code has brackets of its own
            for target in re.findall(r"\]\(([^)#:]+)[^):]*\)", text):
                self.assertTrue(((ROOT / page).parent / target).exists(), f"{page}: {target}")

    def test_the_first_page_is_short(self):
        self.assertLessEqual((ROOT / "README.md").read_text().count("\n"), 180)


if __name__ == "__main__":
    if not (ROOT / "build" / "kvsim").exists():
        sys.exit("build/kvsim is missing: run scripts/quickstart.sh first")
    unittest.main()
