#include "run/explain/explain.hpp"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "cli/command.hpp"
#include "cli/tables.hpp"
#include "cli/terminal.hpp"
#include "io/side_files.hpp"
#include "io/temporary_file.hpp"
#include "run/study/study.hpp"

namespace kvsim::cli::explain_commands {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

constexpr size_t kExpectedSteps = 5;

std::string find_trace(const Values& values, const Dataset& results, const std::string& path) {
  const std::string found = trace_beside(text(values, "trace"), results, path);
  if (!found.empty()) return found;
  const std::string name = results.text_attribute("trace");
  if (name.empty()) bad_data({.what = "no trace is named", .where = path, .hint = "give --trace"});
  bad_data({.what = "the trace of the results is not here",
            .where = path,
            .found = name,
            .hint = "give its path with --trace"});
}

std::string span_of(const TraceInfo& info, int64_t position) {
  for (const Span& span : info.spans)
    if (position >= span.begin && position < span.end) return span.name;
  return "";
}

/// Texts that a report needs besides the numbers.
struct Context {
  std::string policy;
  std::string budget;
  int layer = 0;
  int64_t step = 0;
  std::vector<std::string> words;      ///< text of each token; empty: not in the trace
  std::vector<ExpectedLoss> expected;  ///< of this policy and budget
  std::string word(int64_t position) const { return words.empty() ? "" : words[position]; }
};

/// Scores of a policy that is a function in Python. It is called only when the user named it, and
/// must be what it was; nothing else that a results file names is run.
void serve_function(const Values& values, const Dataset& results, const std::string& policy,
                    const std::string& trace) {
  const Record record = Record::parse(policy);
  const std::string& function = record.settings.text("scores");
  if (is_function(function) && !has(values, "policy") && !has(values, "scores"))
    usage_error({.what = "a function in Python is run only when it is named",
                 .where = policy,
                 .hint = "--policy " + policy});
  const auto& layers = results.values<int32_t>("layer");
  serve_functions(values, typed_words(), {record}, {trace}, {layers.begin(), layers.end()});
  if (!is_function(function)) return;
  const auto digest = [](const std::string& described) {
    const Json json = Json::parse(described, nullptr, false);
    return json.is_object() ? json.value("sha256", Json()) : Json();
  };
  const Json config = Json::parse(results.text_attribute("config"), nullptr, false);
  Json was;
  for (const Json& one : config.is_object() ? config.value("policies", Json::array()) : Json())
    if (one.is_object() && one.value("record", Json()) == policy)
      was = digest(one.value("function", Json()).dump());
  if (!was.is_null() && was != digest(described_function(scores_file(function, trace))))
    bad_data({"the function is not what it was", policy, "another source",
              "the one that the results' record has"});
}

Json json_of(const Explanation& found, const Context& context, const TraceInfo& info,
             const std::string& trace, int64_t top) {
  Json document = {{"kvsim", "explain"},       {"trace", fs::path(trace).filename().string()},
                   {"model", info.model},      {"policy", context.policy},
                   {"budget", context.budget}, {"layer", context.layer},
                   {"step", context.step},     {"step_text", context.word(context.step)},
                   {"heads", found.heads},     {"retained_importance", found.retained}};
  document["expected_loss"] = Json::array();
  for (const ExpectedLoss& loss : context.expected)
    document["expected_loss"].push_back({{"step", loss.step},
                                         {"text", context.word(loss.step)},
                                         {"stream_error", loss.stream_error}});
  document["lost"] = Json::array();
  for (const int64_t position : most_lost(found, top)) {
    const ExplainedToken& token = found.tokens[position];
    Json entry = {{"position", position},
                  {"text", context.word(position)},
                  {"lost", token.lost},
                  {"importance", token.importance},
                  {"span", span_of(info, position)},
                  {"kept_heads", token.kept_heads},
                  {"merged_heads", token.merged_heads},
                  {"worst_head", token.worst_head}};
    const bool scored = !std::isnan(token.score);
    entry["score"] = scored ? Json(token.score) : Json(nullptr);
    entry["rank"] = scored ? Json(token.rank) : Json(nullptr);
    entry["ranked"] = scored ? Json(token.ranked) : Json(nullptr);
    document["lost"].push_back(std::move(entry));
  }
  document["prompt"] = Json::array();
  for (const ExplainedToken& token : found.tokens)
    document["prompt"].push_back({{"text", context.word(token.position)},
                                  {"importance", token.importance},
                                  {"lost", token.lost},
                                  {"kept_heads", token.kept_heads},
                                  {"merged_heads", token.merged_heads}});
  return document;
}

void print_table(const Explanation& found, const Context& context, const TraceInfo& info,
                 int64_t top) {
  const std::string word = context.word(context.step);
  fmt::print("{} at budget {}, layer {}, step {}{}\n", printable(context.policy),
             printable(context.budget), context.layer, context.step,
             word.empty() ? "" : " (" + quoted_token(word) + ")");
  if (!context.expected.empty())
    fmt::print("expected to lose most, by stream error, at step {}\n",
               expected_loss_text(context.expected, context.words));
  int64_t dropped = 0;
  for (const ExplainedToken& token : found.tokens) dropped += token.lost > 0;
  fmt::print(
      "retained importance {:.4f}; {} of {} prompt tokens lost something in some of {} "
      "heads\nsorted by lost: the share of the importance at this step that fell on the token in "
      "heads without it\n\n",
      found.retained, dropped, found.tokens.size(), found.heads);
  fmt::print("{:>8} {:>8} {:>6} {:>10} {:>12} {:>4} {:>11}  {:<12} {}\n", "position", "lost",
             "kept", "importance", "score", "head", "rank", "span", "text");
  for (const int64_t position : most_lost(found, top)) {
    const ExplainedToken& token = found.tokens[position];
    const bool scored = !std::isnan(token.score);
    fmt::print("{:>8} {:>8.4f} {:>6} {:>10.4f} {:>12} {:>4} {:>11}  {:<12} {}\n", position,
               token.lost, fmt::format("{}/{}", token.kept_heads, found.heads), token.importance,
               scored ? fmt::format("{:.4g}", token.score) : "none", token.worst_head,
               scored ? fmt::format("{}/{}", token.rank, token.ranked) : "-",
               printable(span_of(info, position)), quoted_token(context.word(position)));
  }
}

int run_explain(const Values& values) {
  const auto path = values["results"].as<std::string>();
  const int64_t top = count_of(values, "top", 20, 1, 1000);
  Dataset results = open_results(
      path, {"policy", "budget_label", "layer", "step", "retained_importance"});
  ExplainedCell cell;
  cell.policy = choice(values, results, "policy", "policy");
  cell.budget = choice(values, results, "budget", "budget_label");
  cell.layer = choice(values, results, "layer", "layer");
  cell.step = choice(values, results, "step", "step");
  cell = worst_cell(results, path, cell);
  const std::string trace = find_trace(values, results, path);
  const TraceReader reader(trace, results.text_attribute("later"));
  if (const std::string digest = results.text_attribute("trace_digest");
      !digest.empty() && digest != reader.digest())
    bad_data({"not the trace of these results", trace, "another content", digest});
  const Context context{results.texts("policy")[cell.policy],
                        results.texts("budget_label")[cell.budget],
                        results.values<int32_t>("layer")[cell.layer],
                        results.values<int64_t>("step")[cell.step],
                        reader.token_text(),
                        expected_losses(results, cell.policy, cell.budget, kExpectedSteps)};
  serve_function(values, results, context.policy, trace);
  const std::unique_ptr<Backend> backend = make_cpu_backend();
  const Explanation found = explain(results, reader, cell, *backend);
  // float32 sums in another order differ by less than this.
  if (!(std::abs(found.retained - found.recorded) < 1e-4))
    note(fmt::format("the results say {:.4f} where the saved sets retain {:.4f}: the policy's sets "
                     "change over the steps, or the run had another --scope",
                     found.recorded, found.retained));
  if (has(values, "json")) {
    fmt::print("{}\n", printable_json(json_of(found, context, reader.info(), trace, top).dump(1)));
  } else {
    print_table(found, context, reader.info(), top);
  }
  return kDone;
}

const bool explain_registered = register_command(
    {.name = "explain",
     .summary = "list the evicted tokens that carried the most importance at one step",
     .arguments = {{.name = "results", .meaning = "a results file written with --save-keep"}},
     .description =
         "Why did it fail there? At one policy, budget, layer and step (default: those of the\n"
         "largest stream error, as `replay` names them, in the layer that retained the least\n"
         "importance there) lists the prompt tokens whose importance was lost, most first: the\n"
         "share lost, the heads that kept them, and score and rank in the head that lost most.\n"
         "`kvsim plot` draws the document that --json prints: the prompt, coloured.",
     .options = {{"trace", "FILE",
                  "the trace (default: the one named in the results, beside them, in "
                  "this folder or in data/)"},
                 {"policy", "RECORD", "policy, as the results name it (default: the worst)"},
                 {"budget", "B", "a budget of the results (default: the worst)"},
                 {"layer", "L", "layer (default: of the least importance retained)"},
                 {"step", "T",
                  "position of the later query (default: of the largest stream error)"},
                 {"top", "N", "tokens to list (default: 20)"},
                 {"scores"},
                 {"json"}},
     .examples = {"kvsim explain sample.nc --policy snapkv --budget 0.2",
                  "kvsim explain sample.nc --trace data/sample.h5 --json > explain.json"},
     .run = run_explain});

/// The trace of the results: one of --trace by name, or the one that lies where explain looks.
std::string trace_of(const Values& values, const Dataset& results, const std::string& path,
                     size_t files) {
  const std::vector<std::string> given = texts(values, "trace");
  const std::string name = results.text_attribute("trace");
  if (given.size() == 1 && files == 1) return given[0];
  for (const std::string& one : given)
    if (fs::path(one).filename() == name) return one;
  return trace_beside("", results, path);
}

/// Writes what is found of one file; nothing where its trace is not here.
void write_details(const Values& values, const std::string& path, size_t files,
                   const std::string& target) {
  const Dataset results = open_netcdf(path);
  for (const char* name :
       {"policy", "budget_label", "layer", "head", "step", "retained_importance"})
    if (!results.has(name)) return;  // what a closed loop found
  check_known_results(results, path);
  const std::string trace = trace_of(values, results, path, files);
  if (trace.empty()) {
    note(fmt::format("{}: the trace {} is not here: no texts, kept sets only where --save-keep "
                     "wrote them",
                     printable(path), printable(results.text_attribute("trace"))));
    return;
  }
  const TraceReader reader(trace, results.text_attribute("later"));
  if (results.text_attribute("trace_digest") != reader.digest())
    bad_data({"not the trace of these results", trace, "another content",
              results.text_attribute("trace_digest"), "`kvsim report --no-trace` does without"});
  Progress progress(fs::path(trace).filename().string());
  const StudyHooks hooks = {
      .message = [&](const std::string& text) { note(path + ": " + text); },
      .progress = [&](double done, const std::string& what) { progress.update(done, what); }};
  const std::unique_ptr<Backend> backend = make_cpu_backend();
  const Dataset found = details_of(results, reader, *backend, hooks);
  progress.clear();
  write_results(found, target);
}

int run_details(const Values& values) {
  const auto files = values["results"].as<std::vector<std::string>>();
  if (!has(values, "out"))
    usage_error({"missing -o", "details", "", "kvsim details RESULTS.nc... -o FOLDER"});
  make_folder(text(values, "out"));
  for (size_t number = 0; number < files.size(); ++number)
    write_details(values, files[number], files.size(),
                  (fs::path(text(values, "out")) / fmt::format("{}.nc", number + 1)).string());
  return kDone;
}

const bool details_registered = register_command(
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
     .options = {{"out,o", "FOLDER", "folder of what is found, made when absent"},
                 {"trace", "FILE",
                  "a trace of the results; repeatable (default: the one that each file names, "
                  "beside it, in "
                  "this folder or in data/)",
                  true}},
     .examples = {"kvsim details sample.nc -o details",
                  "kvsim details sample.nc --trace data/sample.h5 -o details"},
     .run = run_details});

}  // namespace
}  // namespace kvsim::cli::explain_commands
