#include <catch2/catch.hpp>

#include "io/paper_table.hpp"

namespace kvsim {
namespace {

PaperTable to_paste() {
  PaperTable table;
  table.title = "What is lost, 50 % of it";
  table.from = {.model = "org/model_1",
                .revision = "abc",
                .source = "file_1.gguf",
                .dtype = "float32",
                .texts = {"a_b.h5"},
                .prompt = {10, 20},
                .later = {5, 5},
                .kept = {"0.1", "25%", "512"},
                .n = "2 texts",
                .seeds = {"0", "1"},
                .versions = "kvsim 1.0"};
  table.columns = {{"policy", true}, {"kept"}, {"stream error"}};
  table.rows = {{{"a,b_c=1"}, {"25%"}, {"0.5", Mark::best}},
                {{""}, {"0.1"}, {"0.6", Mark::equal}},
                {{"h|2"}, {"25%"}, {"0.7", Mark::more}},
                {{""}, {"0.1"}, {"0.8", Mark::less}}};
  table.notes = {"bold: least; †: not told apart"};
  return table;
}

}  // namespace

TEST_CASE("a table in LaTeX: escaped, best bold, dagger, kept and removed", "[tables]") {
  const std::string text = table_text(to_paste(), TableForm::latex);
  CHECK(text ==
        "% \\usepackage{booktabs}\n"
        "\\begin{table}\n"
        "\\centering\\footnotesize\n"
        "\\caption{What is lost, 50 \\% of it. Model: org/model\\_1, revision abc. Weights: "
        "file\\_1.gguf, computed in float32. Texts: a\\_b.h5. Tokens: 10 to 20 of the prompt, 5 "
        "later ones. Kept: 0.1, 25\\%, 512. Removed: 0.9, 0.75, all but 512. n: 2 texts. Seeds: "
        "0, 1. Versions: kvsim 1.0.}\n"
        "\\setlength{\\tabcolsep}{4pt}\n"
        "\\begin{tabular}{lrr}\n"
        "\\toprule\n"
        "policy & kept & \\shortstack[r]{stream\\\\error} \\\\\n"
        "\\midrule\n"
        "a,b\\_c=1 & 25\\% & \\textbf{0.5} \\\\\n"
        " & 0.1 & 0.6\\rlap{\\textsuperscript{\\dag}} \\\\\n"
        "\\addlinespace\n"
        "h$|$2 & 25\\% & 0.7\\rlap{$^{>}$} \\\\\n"
        " & 0.1 & 0.8\\rlap{$^{<}$} \\\\\n"
        "\\bottomrule\n"
        "\\end{tabular}\n"
        "\\par\\smallskip\n"
        "\\begin{minipage}{\\linewidth}\n"
        "bold: least; \\dag{}: not told apart\n"
        "\\end{minipage}\n"
        "\\end{table}\n");
}

TEST_CASE("every sign of LaTeX is escaped, and control characters are spaces", "[tables]") {
  PaperTable table = to_paste();
  table.rows = {{{"\\ ~ ^ & % $ # _ { } < > | \" ` --"}, {"\x1b"}, {"–"}}};
  CHECK_THAT(table_text(table, TableForm::latex),
             Catch::Contains("\\textbackslash{} \\textasciitilde{} \\textasciicircum{} \\& \\% \\$ "
                             "\\# \\_ \\{ \\} $<$ $>$ $|$ '' \\textasciigrave{} -{}- &   & -- "));
}

TEST_CASE("a wide table takes the page of two columns, a wider one small letters", "[tables]") {
  PaperTable table = to_paste();
  table.rows[0][0].text = std::string(60, 'x');
  const std::string wide = table_text(table, TableForm::latex);
  CHECK_THAT(wide, Catch::Contains("\\begin{table*}\n\\centering\\footnotesize") &&
                       Catch::Contains("\\end{table*}"));
  table.rows[0][0].text = std::string(120, 'x');
  CHECK_THAT(table_text(table, TableForm::latex),
             Catch::Contains("\\begin{table*}\n\\centering\\scriptsize"));
}

TEST_CASE("a table in Markdown: escaped, best bold, dagger", "[tables]") {
  const std::string text = table_text(to_paste(), TableForm::markdown);
  CHECK_THAT(text,
             Catch::StartsWith("**Table.** What is lost, 50 % of it. Model: org/model\\_1, "));
  CHECK_THAT(text, Catch::EndsWith("\n\n"
                                   "| policy | kept | stream error |\n"
                                   "| --- | --: | --: |\n"
                                   "| a,b\\_c=1 | 25% | **0.5** |\n"
                                   "|  | 0.1 | 0.6† |\n"
                                   "| h\\|2 | 25% | 0.7&gt; |\n"
                                   "|  | 0.1 | 0.8&lt; |\n"
                                   "\nbold: least; †: not told apart\n"));
}

TEST_CASE("a table as text has the marks of the terminal", "[tables]") {
  CHECK(table_text(to_paste(), TableForm::text) == "What is lost, 50 % of it\n"
                                                   "policy   kept  stream error\n"
                                                   "a,b_c=1   25%           0.5*\n"
                                                   "          0.1           0.6~\n"
                                                   "h|2       25%           0.7>\n"
                                                   "          0.1           0.8<\n"
                                                   "bold: least; †: not told apart\n");
}

TEST_CASE("several files are one provenance: each part once, lengths as a range", "[tables]") {
  Provenance one = to_paste().from, other = one;
  other.texts = {"c.h5"};
  other.prompt[0] = 4;
  other.later[1] = 9;
  other.kept = {"0.1", "0.5"};
  const Provenance all = joined({one, other}, 2);
  CHECK(all.model == "org/model_1");
  CHECK(all.texts == std::vector<std::string>{"a_b.h5", "c.h5"});
  CHECK(all.kept == std::vector<std::string>{"0.1", "25%", "512", "0.5"});
  CHECK(all.prompt[0] == 4);
  CHECK(all.prompt[1] == 20);
  CHECK(all.later[1] == 9);
  CHECK(all.n == "2 texts");
}

}  // namespace kvsim
