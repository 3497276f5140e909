#pragma once
#include "analysis/dataset.hpp"
#include "analysis/ranking.hpp"

namespace kvsim {

enum class TableForm { text, markdown, latex };

/// Where the numbers of a table come from, for its caption. What is empty or 0 is left out.
struct Provenance {
  std::string model;
  std::string revision;
  std::string source;  ///< where the weights were found
  std::string dtype;   ///< type that the model computed in
  std::vector<std::string> texts;
  int64_t prompt[2] = {0, 0};     ///< tokens of the prompt, least and most
  int64_t later[2] = {0, 0};      ///< later tokens, least and most
  std::vector<std::string> kept;  ///< budgets as typed
  std::string n;                  ///< how many of what the intervals are over
  std::vector<std::string> seeds;
  std::string versions;
};

/// A table to paste: cells as they are shown, with the marks of a ranking.
struct PaperTable {
  struct Column {
    std::string name;
    bool left = false;
  };
  struct Cell {
    std::string text;
    Mark mark = Mark::none;
  };
  std::string title;  ///< one sentence, without its full stop
  Provenance from;
  std::vector<Column> columns;
  /// A row whose first cell is not empty begins a block of rows.
  std::vector<std::vector<Cell>> rows;
  std::vector<std::string> notes;  ///< a line each
};

/// The table in one form, ending in a new line. Markdown and LaTeX (booktabs) have the caption:
/// title and provenance, with budgets as what is kept and as what is removed. The best is bold,
/// what is not told apart from it has a dagger. Text has title and notes, and the marks of the
/// terminal.
std::string table_text(const PaperTable& table, TableForm form);

std::vector<std::string> lines_of(const std::string& text);

/// Of a results file or of the losses of a closed loop.
Provenance provenance(const Dataset& results);

/// Of numbers over several files, `count` texts in all: every part that they have, once.
Provenance joined(const std::vector<Provenance>& parts, size_t count);

/// The table that a replay or a closed loop ends with (`summary_table`), to paste.
PaperTable paper_table(const Dataset& results, const std::string& title);

}  // namespace kvsim
