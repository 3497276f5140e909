#include "cli/functions.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cctype>
#include <charconv>
#include <nlohmann/json.hpp>
#include <optional>
#include <string_view>

#include "cli/progress.hpp"
#include "cli/python.hpp"
#include "cli/results_choice.hpp"
#include "io/hdf5.hpp"
#include "sim/core/error.hpp"

namespace kvsim::cli {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

constexpr const char* kScheme = "python:";
constexpr const char* kPreset = "external";
constexpr const char* kForm = "python:FILE.py:FUNCTION";

bool names_function(const std::string& text) { return text.starts_with(kScheme); }

/// The function's name becomes part of a file's name.
void check_name(const std::string& function) {
  const std::string name = function.substr(function.rfind(':') + 1);
  const bool plain = !name.empty() && std::ranges::all_of(name, [](unsigned char c) {
    return c == '_' || std::isalnum(c) != 0 || c >= 0x80;
  });
  if (!plain)
    usage_error(
        {.what = "no name of a function", .where = function, .found = name, .expected = kForm});
}

/// "python:NAME": of a Python process that is gone.
bool names_file(const std::string& function) {
  return function.find(':', std::string(kScheme).size()) != std::string::npos;
}

/// What a scores file says of the function that computed it; nothing when none did.
std::optional<Json> described_function(const std::string& file) {
  std::error_code fault;
  if (!fs::is_regular_file(file, fault)) return std::nullopt;  // results that came from elsewhere
  const h5::InputFile opened(file, "file of scores");
  if (!opened.exists("function")) return std::nullopt;
  const auto dataset = opened.dataset("function");
  dataset.expect_shape({1}, "[1]");
  Json json = Json::parse(dataset.read_text().front(), nullptr, false);
  const bool named = json.is_object() && json.contains("title") && json["title"].is_string() &&
                     names_function(json["title"].get<std::string>());
  if (!named) dataset.fail("not a description of a function", "another text", "JSON with a title");
  return json;
}

/// `external,scores=FILE,key=value` under the name of the function: `python:...,key=value`.
std::string named(const std::string& record, const std::string& file, const std::string& title) {
  const std::string scores = ",scores=" + file;
  const size_t at = record.find(scores);
  if (!record.starts_with(kPreset) || at == std::string::npos) return record;
  const size_t preset = std::string(kPreset).size();
  return title + record.substr(preset, at - preset) + record.substr(at + scores.size());
}

/// Passes the package's words on: how far it is, and the line it ends with when it fails.
class Conversation {
 public:
  Conversation(const std::string& trace, const std::string& function)
      : function_(function), progress_(fs::path(trace).filename().string()) {}

  /// "progress 0.25 WHAT", or "error TEXT".
  void hear(const std::string& line) {
    const std::string_view all(line);
    constexpr std::string_view kProgress = "progress ", kError = "error ";
    if (all.starts_with(kError)) said_ = all.substr(kError.size());
    if (!all.starts_with(kProgress)) return;
    const std::string_view rest = all.substr(kProgress.size());
    double share = 0;
    const auto [end, fault] = std::from_chars(rest.data(), rest.data() + rest.size(), share);
    if (fault != std::errc()) return;
    progress_.update(std::clamp(share, 0.0, 1.0), std::string(end, rest.data() + rest.size()));
  }
  void end(int status) {
    progress_.clear();
    if (status == 0) return;
    const bool known = status == static_cast<int>(Fault::usage) ||
                       status == static_cast<int>(Fault::bad_data);
    const Fault fault = known ? static_cast<Fault>(status) : Fault::failure;
    if (!said_.empty()) throw Error(fault, {.what = said_});
    throw Error(fault,
                {.what = fmt::format("Python ended with status {}", status), .where = function_});
  }

 private:
  std::string function_;
  std::string said_;
  Progress progress_;
};

Json config_of(const Dataset& results) {
  Json config = Json::parse(attribute(results, "config"), nullptr, false);
  const bool known = config.is_object() && config.contains("policies") &&
                     config["policies"].is_array();
  return known ? config : Json{{"policies", Json::array()}};
}

/// A text of a JSON object; empty where there is none.
std::string text_in(const Json& object, const char* key) {
  const bool there = object.is_object() && object.contains(key) && object[key].is_string();
  return there ? object[key].get<std::string>() : "";
}

/// The digest that results have of the function of a record; empty when they have none.
std::string digest_of(const Json& config, const std::string& record) {
  for (const Json& policy : config["policies"]) {
    if (text_in(policy, "record") == record && policy.contains("function"))
      return text_in(policy["function"], "sha256");
  }
  return "";
}

}  // namespace

std::string with_functions(const std::string& policy) {
  if (!names_function(policy)) return policy;
  const size_t comma = std::min(policy.find(','), policy.size());
  if (comma == std::string(kScheme).size() || policy[comma - 1] == ':')
    usage_error(
        {.what = "no function is named", .where = "--policy", .found = policy, .expected = kForm});
  return fmt::format("{},scores={}", kPreset, policy);
}

std::string file_of_function(const std::string& function) {
  const size_t begin = std::string(kScheme).size();
  const size_t colon = function.rfind(':');
  return colon < begin ? "" : function.substr(begin, colon - begin);
}

bool is_function(const Record& record) {
  return record.preset == kPreset && names_function(record.settings.text("scores"));
}

void refuse_function(const std::string& policy) {
  if (names_function(policy))
    usage_error({.what = "this command calls no function",
                 .where = "--policy",
                 .found = policy,
                 .expected = "a preset; replay, sweep and explain take functions"});
}

FunctionScores::FunctionScores(std::string folder, bool keep)
    : folder_(fs::path(std::move(folder)) / "scores"), keep_(keep) {}

FunctionScores::~FunctionScores() {
  std::error_code ignored;
  for (auto path = made_.rbegin(); path != made_.rend(); ++path) fs::remove(*path, ignored);
}

std::string FunctionScores::target(const std::string& function, const std::string& trace) {
  const std::string name = function.substr(function.rfind(':') + 1) + ".h5";
  if (folder_.empty()) {
    temporary_.push_back(
        std::make_unique<TemporaryFile>((fs::temp_directory_path() / ("kvsim-" + name)).string()));
    return temporary_.back()->path();
  }
  // Two files may have functions of one name.
  const std::string file = fs::path(function.substr(std::string(kScheme).size())).stem().string();
  const fs::path place = folder_ / fs::path(trace).stem();
  std::vector<fs::path> missing;
  for (fs::path at = place; !at.empty() && !fs::exists(at); at = at.parent_path())
    missing.push_back(at);
  std::error_code fault;
  fs::create_directories(place, fault);
  if (fault)
    usage_error(
        {.what = "the folder cannot be made", .where = place.string(), .found = fault.message()});
  const fs::path path = place / (file + "-" + name);
  if (!keep_) {
    made_.insert(made_.end(), missing.rbegin(), missing.rend());
    if (!fs::exists(path)) made_.push_back(path);
  }
  return path.string();
}

FunctionNames FunctionScores::compute(std::vector<Record>& records, const std::string& trace,
                                      const std::vector<int>& layers) {
  FunctionNames names;
  std::map<std::string, std::string> files;
  for (Record& record : records) {
    if (!is_function(record)) continue;
    const std::string function = record.settings.text("scores");
    if (!names_file(function))
      usage_error({.what = function.ends_with(".py")
                               ? "a file without the name of a function"
                               : "no file with this function: only the Python process that "
                                 "replayed it knows one by its name alone",
                   .where = function,
                   .expected = kForm});
    std::string& file = files[function];
    if (file.empty()) {
      check_name(function);
      file = target(function, trace);
      Conversation conversation(trace, function);
      const std::string chosen = fmt::format("{}", fmt::join(layers, ","));
      conversation.end(
          run_python({find_python({"numpy", "h5py"}, function.c_str(), Interpreter::users),
                      find_module("scoring.py", function.c_str()), trace, function, file, chosen},
                     [&](const std::string& line) { conversation.hear(line); }));
    }
    const std::string name = named(record.canonical(), function, function);
    record.settings.set("scores", file);
    names[record.canonical()] = name;
  }
  return names;
}

FunctionNames name_functions(Dataset& results) {
  FunctionNames names;
  Json config = config_of(results);
  for (Json& policy : config["policies"]) {
    const std::string record = text_in(policy, "record");
    if (record.empty() || !policy.contains("parameters")) continue;
    const std::string file = text_in(policy["parameters"], "scores");
    const std::optional<Json> function = described_function(file);
    if (!function) continue;
    const std::string title = (*function)["title"];
    names[record] = named(record, file, title);
    policy["record"] = names[record];
    policy["parameters"]["scores"] = title;
    policy["function"] = *function;
  }
  if (names.empty()) return names;
  results.set_attribute("config", config.dump());
  for (std::string& name : std::get<std::vector<std::string>>(results.at("policy").values))
    if (const auto found = names.find(name); found != names.end()) name = found->second;
  return names;
}

void restore_function(Dataset& results, int64_t policy, bool asked, const std::string& trace,
                      FunctionScores& scores) {
  const auto place = static_cast<size_t>(policy);
  std::string& name = std::get<std::vector<std::string>>(results.at("policy").values)[place];
  if (!names_function(name)) return;
  if (!asked)
    usage_error({.what = "a function in Python is run only when it is named",
                 .where = name,
                 .hint = "--policy " + name});
  const auto& layers = std::get<std::vector<int32_t>>(results.at("layer").values);
  std::vector<Record> record = {Record::parse(with_functions(name))};
  scores.compute(record, trace, {layers.begin(), layers.end()});
  const std::string& file = record.front().settings.text("scores");
  const std::string was = digest_of(config_of(results), name);
  const std::string now = text_in(described_function(file).value_or(Json::object()), "sha256");
  if (!was.empty() && was != now)
    bad_data({.what = "the function is not what it was",
              .where = name,
              .found = "another source",
              .expected = "the one that the results' record has"});
  name = record.front().canonical();
}

}  // namespace kvsim::cli
