#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "cli/command.hpp"
#include "cli/progress.hpp"
#include "cli/python.hpp"
#include "cli/results_choice.hpp"
#include "cli/terminal.hpp"
#include "io/results_writer.hpp"
#include "io/temporary_file.hpp"
#include "run/explain/looked_for.hpp"
#include "run/measures/known_results.hpp"
#include "sim/core/error.hpp"
#include "sim/policy/presets.hpp"
#include "sim/stages/kind.hpp"

namespace kvsim::cli::report_command {
namespace {

namespace fs = std::filesystem;

constexpr const char* kNoTrace = "-";  // in the list of details that Python is given

void describe(po::options_description& options) {
  add_output_options(options,
                     "the page (default: the first file's name with .html, in this folder)");
  options.add_options()(
      "trace", several("FILE"),
      "a trace of the results; repeatable (default: the one that each file names, beside it, in "
      "this folder or in data/)")(
      "no-trace", "read no traces: kept sets only where --save-keep wrote them, no texts")(
      "title", one("TEXT"), "title of the page");
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

/// A dataset as a file without a name, which goes when the last process closes it: its path there.
std::string nameless_file(const Dataset& dataset) {
  std::string folder = (fs::temp_directory_path() / "kvsim-report.XXXXXX").string();
  if (mkdtemp(folder.data()) == nullptr)
    throw Error(Fault::failure, {.what = "cannot make a temporary folder", .where = folder});
  const std::string path = folder + "/details.nc";
  try {
    write_results(dataset, path);
  } catch (...) {
    fs::remove_all(folder);
    throw;
  }
  const int descriptor = open(path.c_str(), O_RDONLY);  // stays open for Python
  fs::remove_all(folder);
  if (descriptor < 0)
    throw Error(Fault::failure, {.what = "cannot read a temporary file", .where = path});
  return fmt::format("/dev/fd/{}", descriptor);
}

std::string details(const Values& values, const std::string& path, size_t files) {
  const Dataset results = open_netcdf(path);
  for (const char* name :
       {"policy", "budget_label", "layer", "head", "step", "retained_importance"})
    if (!results.has(name)) return kNoTrace;  // what a closed loop found
  check_known_results(results, path);
  const std::string trace = find_trace(values, results, path, files);
  if (trace.empty()) {
    note(fmt::format("{}: the trace {} is not here: no texts, kept sets only where --save-keep "
                     "wrote them",
                     printable(path), printable(attribute(results, "trace"))));
    return kNoTrace;
  }
  const TraceReader reader(trace, attribute(results, "later"));
  if (attribute(results, "trace_digest") != reader.digest()) {
    bad_data({.what = "not the trace of these results",
              .where = trace,
              .found = "another content",
              .expected = attribute(results, "trace_digest"),
              .hint = "--no-trace does without"});
  }
  Progress progress(fs::path(trace).filename().string());
  const DetailHooks hooks = {
      .message = [&](const std::string& text) { note(path + ": " + text); },
      .progress = [&](double done, const std::string& what) { progress.update(done, what); }};
  const std::unique_ptr<Backend> backend = make_cpu_backend();
  const Dataset found = details_of(results, reader, *backend, hooks);
  progress.clear();
  return nameless_file(found);
}

/// Where every method comes from, for the page's record.
std::string presets_json() {
  auto listed = nlohmann::json::array();
  for (const Preset& preset : presets())
    listed.push_back(
        {{"preset", preset_title(preset)}, {"summary", preset.summary}, {"source", preset.source}});
  return listed.dump();
}

/// Kinds that see later queries: policies with one of them rank no one (docs/report.md).
std::string hindsight_json() {
  auto listed = nlohmann::json::array();
  for (const KindInfo* kind : all_kinds())
    if (find_kind(kind->stage, kind->name).looks_ahead())
      listed.push_back({kind->stage, kind->name});
  return listed.dump();
}

std::string target_of(const Values& values, const std::vector<std::string>& files) {
  if (has(values, "out")) return text(values, "out");
  return fs::path(files.front()).stem().string() + ".html";
}

int run(const Values& values) {
  const auto files = values["results"].as<std::vector<std::string>>();
  if (has(values, "no-trace") && has(values, "trace"))
    usage_error({.what = "--trace and --no-trace exclude each other", .where = "report"});
  const std::string target = target_of(values, files);
  check_target(target, has(values, "overwrite"), files);
  std::vector<std::string> words = {find_python({"numpy", "xarray", "h5netcdf"}, "report"),
                                    find_module("plots/report/write.py", "report"),
                                    "--out=" + target};
  words.push_back("--presets=" + presets_json());
  words.push_back("--hindsight=" + hindsight_json());
  if (has(values, "title")) words.push_back("--title=" + text(values, "title"));
  for (const std::string& file : files)
    words.push_back("--details=" +
                    (has(values, "no-trace") ? kNoTrace : details(values, file, files.size())));
  words.emplace_back("--");
  words.insert(words.end(), files.begin(), files.end());
  become(std::move(words));
}

const bool registered = register_command(
    {.name = "report",
     .summary = "write a page on which results can be explored",
     .arguments = {{.name = "results",
                    .meaning = "results files, and what closed loops found",
                    .many = true}},
     .description =
         "Writes one HTML file that opens in any browser, without a network: policies by budget,\n"
         "the prompt coloured by what was kept, steps, layers and heads, spans, and the record.\n"
         "From the trace that the results name come texts, what the worst steps looked for, and\n"
         "kept sets where the results lack them (the record is replayed for them).",
     .describe = describe,
     .examples = {"kvsim report sample.nc -o page.html",
                  "kvsim report sample.nc --trace data/sample.h5 -o page.html --overwrite"},
     .run = run});

}  // namespace
}  // namespace kvsim::cli::report_command
