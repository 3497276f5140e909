// Inputs that are text: policies, budgets, sweep files, tables, names and tokens.
#include "cli/command.hpp"
#include "cli/terminal.hpp"
#include "io/hdf5.hpp"
#include "io/side_files.hpp"
#include "io/trace_reader.hpp"
#include "run/sweep/sweep.hpp"
#include "sim/core/error.hpp"
#include "sim/policy/record.hpp"
#include "tests/fuzz/targets.hpp"

namespace kvsim::fuzz {
namespace {

/// A record's canonical text means the same record.
void record(Bytes input) {
  const std::string once = Record::parse(text_of(input)).canonical();
  try {
    promise(Record::parse(once).canonical() == once,
            "a canonical record is its own canonical form");
  } catch (const Error&) {
    promise(false, "a canonical record can be parsed");
  }
}
std::vector<std::string> some_records() {
  return {"snapkv",
          "restkv:released,kernel=5",
          "h2o:official,window=8,sinks=4",
          "snapkv,granularity=query,allocate=joint,protect=a+b",
          "keepkv:bias,merge=convex",
          "external,scores=x.h5",
          "tova,schedule=decode",
          "streaming,chunk=16,quantize=int4"};
}

void budget(Bytes input) {
  const Budget parsed = Budget::parse(text_of(input));
  for (const int64_t n : {int64_t{1}, int64_t{7}, int64_t{4096}, int64_t{1} << 40}) {
    const int64_t entries = parsed.entries(n);
    promise(entries >= 0 && entries <= n, "a budget keeps none to all entries");
    const double ratio = parsed.ratio(n);
    promise(ratio >= 0 && ratio <= 1, "a budget is a share");
  }
}
std::vector<std::string> some_budgets() {
  return {"0.2", "20%", "512", "1.0", "0.333333333333333333", "1e-3"};
}

void sweep(Bytes input) { parse_sweep_config(text_of(input), "sweep.toml"); }
std::vector<std::string> some_sweeps() {
  return {"traces = [\"a.h5\"]\nbudgets = [0.1, 0.2, 512]\nseeds = [0, 1]\nlayers = [0, 3]\n"
          "[[policy]]\npreset = \"restkv\"\nema_alpha = [0.1, 0.3]\nkernel = [3, 5]\n"
          "zip = [\"ema_alpha\", \"kernel\"]\n",
          "budgets = [\"20%\"]\nmetric = [\"risk\"]\nwo_steps = 16\nscope = \"prompt\"\n"
          "[[policy]]\npreset = [\"snapkv\", \"h2o\"]\nwindow = 32\n[[policy]]\npreset='tova'\n"};
}

void options(Bytes input) {
  const std::string text(text_of(input));
  const auto tried = [&](auto use) {
    try {
      use();
    } catch (const Error&) {
    }
  };
  tried([&] { cli::parse_layers(text, "--layers"); });
  tried([&] { cli::expand_numbers(text, "--budget"); });
  tried([&] { cli::parse_count(text, "--count", 0, 100); });
  tried([&] { cli::parse_real(text, "--real", -1, 1e300); });
}
std::vector<std::string> some_options() {
  return {"0,5,10-15", "0.1:0.9:0.1", "10%:90%:10%", "7", "-1e-5", "0.1,0.2,512"};
}

void table(Bytes input) {
  const InputOnDisk file(input);
  const Table<double> read = read_table(file.path(), 3, 2);
  promise(read.rows() == 3, "a table has the rows that it was asked for");
}
std::vector<std::string> some_tables() {
  return {"0 1\n2 3\n4 5\n", "# a comment\n1e-3\t-2.5 # more\n\n0 0\n  7   8\n"};
}

/// What is shown on a terminal, in CSV and as text of a token, for any bytes.
void names(Bytes input) {
  const std::string text(text_of(input));
  const std::string repaired = h5::repaired_utf8(text);
  promise(h5::valid_utf8(repaired), "repaired text is UTF-8");
  if (h5::valid_utf8(text)) promise(repaired == text, "valid text stays as it is");
  const std::string shown = cli::printable(text);
  promise(h5::valid_utf8(shown), "what is shown is UTF-8");
  promise(cli::printable(shown) == shown, "what is shown is shown alike again");
  for (const unsigned char c : shown) promise(c >= 0x20 && c != 0x7F, "no control character");
  const std::string cell = csv_line({text});
  promise(cell.back() == '\n', "a line of CSV ends with a line end");
  const char first = cell[0] == '"' ? cell[1] : cell[0];
  promise(first != '=' && first != '@', "no formula in a table");
  span_name_fault(text);
}
std::vector<std::string> some_names() {
  return {"a\x1b[31mb",
          "=1+1",
          "\xE2\x80\xAE"
          "gnp.exe",
          "defense",
          "3-7",
          "\xC3\xA9t\xC3\xA9",
          "-0.5",
          "@SUM(1)",
          "a,b\"c",
          "\xC2\x9B"
          "31m",
          "\xF0\x9F\x91\xA9\xE2\x80\x8D"};
}

const bool text_targets[] = {
    add_target({"budget", [](Bytes input) { answered(budget, input); }, false, some_budgets}),
    add_target({"names", [](Bytes input) { answered(names, input); }, false, some_names}),
    add_target({"options", [](Bytes input) { answered(options, input); }, false, some_options}),
    add_target({"record", [](Bytes input) { answered(record, input); }, false, some_records}),
    add_target({"sweep", [](Bytes input) { answered(sweep, input); }, false, some_sweeps}),
    add_target({"table", [](Bytes input) { answered(table, input); }, false, some_tables})};

}  // namespace
}  // namespace kvsim::fuzz
