#include <fmt/format.h>
#include <fmt/ranges.h>

#include <filesystem>
#include <set>

#include "cli/command.hpp"
#include "cli/python.hpp"
#include "cli/results_choice.hpp"
#include "sim/core/error.hpp"

namespace kvsim::cli::plot_command {
namespace {

namespace fs = std::filesystem;

/// Options that are handed to kvsim.plots.draw as they are.
constexpr const char* kPassedOn[] = {"only", "formats", "metric", "budget", "layers"};

/// Names of the files in the folder of figures, in a line for --help; empty where it is not found.
std::string figure_names() {
  std::set<std::string> names;
  try {
    const fs::path folder =
        fs::path(find_module("plots/figures/__init__.py", "plot")).parent_path();
    for (const fs::path& file : fs::directory_iterator(folder))
      if (file.extension() == ".py" && file.stem() != "__init__")
        names.insert(file.stem().string());
  } catch (const Error&) {
    return "";
  }
  return fmt::format(": {}", fmt::join(names, ", "));
}

void describe(po::options_description& options) {
  add_output_options(options, "folder of the figures, made when absent");
  add_policy_option(options);
  const std::string only = "figures to draw, by comma (default: all that the file is enough for)" +
                           figure_names();
  options.add_options()("only", one("LIST"), only.c_str())(
      "formats", one("LIST"), "pdf, png, csv for the numbers of tables (default: pdf,png)")(
      "metric", one("LIST"),
      "measures, by comma, of the figures of sweeps, traces and worst_case: stream_error, "
      "retained_importance, output_error, residual_error (default: the first two)")(
      "budget", one("B"), "budget of the figures that show one (default: 0.5)")(
      "layers", one("LIST"), "layers to draw, e.g. 0,5,10-15 (default: all)");
}

int run(const Values& values) {
  if (!has(values, "out")) {
    usage_error(
        {.what = "missing -o", .where = "plot", .expected = "kvsim plot RESULTS.nc -o DIR"});
  }
  std::vector<std::string> words = {find_python({"matplotlib", "xarray", "h5netcdf"}, "plot"),
                                    find_module("plots/draw.py", "plot")};
  words.push_back("--out=" + text(values, "out"));
  for (const char* option : kPassedOn) {
    if (has(values, option))
      words.push_back(std::string("--") + option + "=" + text(values, option));
  }
  for (const std::string& policy : texts(values, "policy")) words.push_back("--policy=" + policy);
  if (has(values, "overwrite")) words.emplace_back("--overwrite");
  words.emplace_back("--");
  for (const std::string& file : values["results"].as<std::vector<std::string>>()) {
    refuse_trace(file);
    words.push_back(file);
  }
  become(std::move(words));
}

const bool registered = register_command(
    {.name = "plot",
     .summary = "draw the figures of results files",
     .arguments = {{.name = "results", .meaning = "results files", .many = true}},
     .description =
         "Runs kvsim.plots.draw: PDF and PNG per figure, a folder per file when there are "
         "several.\n"
         "Also draws what `kvsim theory --json` and `kvsim explain --json` print (FILE.json).\n"
         "Python is that of KVSIM_PYTHON, of scripts/quickstart.sh, or python3.",
     .describe = describe,
     .examples = {"kvsim plot sample.nc -o figures",
                  "kvsim plot sample.nc -o figures --only retained_importance --budget 0.2"},
     .run = run});

}  // namespace
}  // namespace kvsim::cli::plot_command
