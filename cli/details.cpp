#include <fmt/format.h>

#include <filesystem>

#include "cli/command.hpp"
#include "cli/progress.hpp"
#include "cli/results_choice.hpp"
#include "cli/terminal.hpp"
#include "io/results_writer.hpp"
#include "run/explain/looked_for.hpp"
#include "run/study/known_results.hpp"
#include "sim/core/error.hpp"

namespace kvsim::cli::details_command {
namespace {

namespace fs = std::filesystem;

void describe(po::options_description& options) {
  options.add_options()("out,o", one("FOLDER"), "folder of what is found, made when absent")(
      "trace", several("FILE"),
      "a trace of the results; repeatable (default: the one that each file names, beside it, in "
      "this folder or in data/)");
}

/// The trace of the results: one of --trace by name, or the one that lies where explain looks.
std::string find_trace(const Values& values, const Dataset& results, const std::string& path,
                       size_t files) {
  const std::vector<std::string> given = texts(values, "trace");
  const std::string name = attribute(results, "trace");
  if (given.size() == 1 && files == 1) return given[0];
  for (const std::string& one : given)
    if (fs::path(one).filename() == name) return one;
  po::variables_map nothing;
  return trace_beside(nothing, results, path);
}

/// Writes what is found of one file; nothing where its trace is not here.
void write_details(const Values& values, const std::string& path, size_t files,
                   const std::string& target) {
  const Dataset results = open_netcdf(path);
  for (const char* name :
       {"policy", "budget_label", "layer", "head", "step", "retained_importance"})
    if (!results.has(name)) return;  // what a closed loop found
  check_known_results(results, path);
  const std::string trace = find_trace(values, results, path, files);
  if (trace.empty()) {
    note(fmt::format("{}: the trace {} is not here: no texts, kept sets only where --save-keep "
                     "wrote them",
                     printable(path), printable(attribute(results, "trace"))));
    return;
  }
  const TraceReader reader(trace, attribute(results, "later"));
  if (attribute(results, "trace_digest") != reader.digest()) {
    bad_data({.what = "not the trace of these results",
              .where = trace,
              .found = "another content",
              .expected = attribute(results, "trace_digest"),
              .hint = "`kvsim report --no-trace` does without"});
  }
  Progress progress(fs::path(trace).filename().string());
  const DetailHooks hooks = {
      .message = [&](const std::string& text) { note(path + ": " + text); },
      .progress = [&](double done, const std::string& what) { progress.update(done, what); }};
  const std::unique_ptr<Backend> backend = make_cpu_backend();
  const Dataset found = details_of(results, reader, *backend, hooks);
  progress.clear();
  write_results(found, target);
}

int run(const Values& values) {
  const auto files = values["results"].as<std::vector<std::string>>();
  if (!has(values, "out"))
    usage_error({.what = "missing -o",
                 .where = "details",
                 .expected = "kvsim details RESULTS.nc... -o FOLDER"});
  std::error_code fault;
  fs::create_directories(text(values, "out"), fault);
  if (fault)
    usage_error({.what = "the folder cannot be made",
                 .where = text(values, "out"),
                 .found = fault.message()});
  for (size_t number = 0; number < files.size(); ++number)
    write_details(values, files[number], files.size(),
                  (fs::path(text(values, "out")) / fmt::format("{}.nc", number + 1)).string());
  return kDone;
}

const bool registered = register_command(
    {.name = "details",
     .summary = "what a trace adds to results: texts, kept sets, what the worst steps looked for",
     .arguments = {{.name = "results",
                    .meaning = "results files; what closed loops found has no details",
                    .many = true}},
     .description =
         "Writes FOLDER/1.nc, 2.nc, ... for the first, second, ... results file: the prompt's "
         "texts,\n"
         "kept sets where the results lack them (the record is replayed for them), and what the\n"
         "worst steps looked for. `kvsim report` asks for it.",
     .describe = describe,
     .examples = {"kvsim details sample.nc -o details",
                  "kvsim details sample.nc --trace data/sample.h5 -o details"},
     .run = run});

}  // namespace
}  // namespace kvsim::cli::details_command
