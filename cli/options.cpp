#include <fmt/format.h>

#include <boost/algorithm/string.hpp>
#include <charconv>
#include <nlohmann/json.hpp>

#include "analysis/dataset.hpp"
#include "analysis/measure.hpp"
#include "cli/command.hpp"
#include "cli/terminal.hpp"
#include "run/study/study.hpp"
#include "sim/backend/cuda_backend.hpp"

namespace kvsim::cli {
namespace {

constexpr int64_t kMostItems = 10000;  // of one range; more is a slip of the keyboard

std::string trimmed(std::string_view text) {
  return boost::trim_copy_if(std::string(text), boost::is_any_of(" \t"));
}

std::vector<std::string> split(std::string_view text, const char* separator) {
  std::vector<std::string> parts;
  boost::split(parts, text, boost::is_any_of(separator));
  std::ranges::transform(parts, parts.begin(), trimmed);
  return parts;
}

std::string in_quotes(std::string_view text) { return "\"" + std::string(text) + "\""; }

/// How the numbers of a range are written.
struct Kind {
  bool percent = false;
  bool point = false;
};

Decimal parse_number(std::string_view text, const std::string& option) {
  const auto number = Decimal::parse(text);
  if (!number) usage_error({"not a number", option, in_quotes(text), "0.2, 20% or 512"});
  return *number;
}

std::string in_kind(const Decimal& number, Kind kind) {
  std::string text = number.text();
  if (kind.point && text.find('.') == std::string::npos) text += ".0";
  return kind.percent ? text + "%" : text;
}

/// Decimal::parse turns 20% into 0.2; inside a percent range the numbers stay percents.
Decimal without_percent(std::string_view text, const std::string& option) {
  if (!text.empty() && text.back() == '%') text.remove_suffix(1);
  return parse_number(text, option);
}

void expand_range(std::string_view item, const std::string& option,
                  std::vector<std::string>& items) {
  const auto parts = split(item, ":");
  if (parts.size() != 3)
    usage_error({"bad range", option, in_quotes(item), "FIRST:LAST:STEP, e.g. 0.1:0.9:0.1"});
  Kind kind;
  size_t percents = 0;
  for (const std::string& part : parts) {
    percents += part.ends_with('%') ? 1 : 0;
    kind.point = kind.point || contains(part, '.');
  }
  kind.percent = percents > 0;
  if (percents == 1 && !parts[0].ends_with('%') && !parts[1].ends_with('%'))
    usage_error({"bad range", option, in_quotes(item), "% at FIRST and LAST, too"});
  const Decimal first = without_percent(parts[0], option);
  const Decimal last = without_percent(parts[1], option);
  const Decimal step = without_percent(parts[2], option);
  if (!(Decimal(0) < step) || last < first)
    usage_error({"bad range", option, in_quotes(item), "FIRST <= LAST and STEP > 0"});
  for (int64_t i = 0;; ++i) {
    const auto number = first.advanced(step, i);
    if (!number || last < *number) return;
    if (i == kMostItems)
      usage_error({"range too long", option, in_quotes(item),
                   "at most " + std::to_string(kMostItems) + " numbers"});
    items.push_back(in_kind(*number, kind));
  }
}

/// A bound at the end of what a double can hold is none.
std::string between(double least, double most) {
  constexpr double kHuge = 1e300;
  if (most < kHuge) return shortest(least) + " to " + shortest(most);
  return least > 0 && least < 1 / kHuge ? "a number above 0" : shortest(least) + " or more";
}

const std::vector<Option>& shared_options() {
  static const std::vector<Option> table = {
      {"threads", "N", "threads to use (default: all cores)"},
      {"progress", "auto|json",
       "a bar or a line now and then, or lines of JSON for programs (default: auto)"},
      {"quiet,q", "", "no progress, no notes, no table of results"},
      {"verbose,v", "", "say more on standard error"},
      {"help,h", "", "this text"},
      {"version", "", "print the version"},
      {"overwrite", "", "replace an existing file"},
      {"seed", "N", "seed of everything random (default: 0)"},
      {"layers", "LIST", "layers to use, e.g. 0,5,10-15 (default: all)"},
      {"later", "PROBE", "measure on this probe's tokens in the place of the trace's later ones"},
      {"budget", "LIST",
       "entries kept per KV head: ratios 0.2 or 20%, counts 512; lists by comma, ranges "
       "0.1:0.9:0.1; repeatable",
       true},
      {"policy", "RECORD",
       std::string(kRecords) + ". python:FILE.py:FUNCTION stands for a preset that scores by it",
       true},
      {"scores", "FOLDER",
       "scores of functions in Python, computed already (the package gives this)"},
      {"metric", "LIST",
       fmt::format("further metrics to compute, repeatable: {}",
                   fmt::join(metrics_on_request(), ", ")),
       true},
      {"backend", "auto|cpu|cuda", "where to compute (default: auto)"},
      {"json", "", "print one JSON document on standard output"},
      {"csv", "FILE", "also write the summaries as a tidy table"},
      {"table", "text|md|tex",
       "form of the table: for the terminal, or Markdown or LaTeX (booktabs) to paste, with a "
       "caption (default: text)"}};
  return table;
}

}  // namespace

std::vector<std::string> split_list(std::string_view text, const std::string& option) {
  std::vector<std::string> items = split(text, ",");
  if (contains(items, "")) usage_error({"empty item in a list", option, in_quotes(text)});
  return items;
}

std::vector<int> parse_layers(std::string_view text, const std::string& option) {
  constexpr int64_t kMostLayers = 100000;
  std::vector<int> layers;
  for (const std::string& item : split_list(text, option)) {
    const size_t dash = item.find('-', 1);
    const int64_t first = parse_count(item.substr(0, dash), option, 0, kMostLayers);
    const int64_t last = dash == std::string::npos
                             ? first
                             : parse_count(item.substr(dash + 1), option, 0, kMostLayers);
    if (last < first)
      usage_error(
          {"bad range of layers", option, in_quotes(item), "FIRST-LAST with FIRST <= LAST"});
    for (int64_t layer = first; layer <= last; ++layer) layers.push_back(static_cast<int>(layer));
  }
  std::sort(layers.begin(), layers.end());
  layers.erase(std::unique(layers.begin(), layers.end()), layers.end());
  return layers;
}

std::vector<std::string> expand_numbers(std::string_view text, const std::string& option) {
  std::vector<std::string> items;
  for (const std::string& item : split_list(text, option)) {
    if (item.find(':') != std::string::npos) {
      expand_range(item, option, items);
    } else {
      parse_number(item, option);
      items.push_back(item);
    }
  }
  return items;
}

int64_t parse_count(std::string_view typed, const std::string& option, int64_t least,
                    int64_t most) {
  int64_t value = 0;
  const std::string text = trimmed(typed);
  const auto [end, fault] = std::from_chars(text.data(), text.data() + text.size(), value);
  const std::string range = "a whole number from " + std::to_string(least) + " to " +
                            std::to_string(most);
  if (fault != std::errc() || end != text.data() + text.size() || text.empty())
    usage_error({"not a whole number", option, in_quotes(text), range});
  if (value < least || value > most) usage_error({"out of range", option, in_quotes(text), range});
  return value;
}

double parse_real(std::string_view text, const std::string& option, double least, double most) {
  const auto number = Decimal::parse(trimmed(text));
  if (!number) usage_error({"not a number", option, in_quotes(text)});
  const double value = number->value();
  if (!std::isfinite(value) || value < least || value > most)
    usage_error({"out of range", option, in_quotes(text), between(least, most)});
  return value;
}

void add_options(po::options_description& to, const std::vector<Option>& options) {
  for (const Option& given : options) {
    const Option& option = given.meaning.empty()
                               ? *std::ranges::find(shared_options(), given.name, &Option::name)
                               : given;
    if (option.value.empty())
      to.add_options()(option.name.c_str(), option.meaning.c_str());
    else if (option.many)
      to.add_options()(option.name.c_str(),
                       po::value<std::vector<std::string>>()->value_name(option.value)->composing(),
                       option.meaning.c_str());
    else
      to.add_options()(option.name.c_str(), po::value<std::string>()->value_name(option.value),
                       option.meaning.c_str());
  }
}

TableForm table_form(const std::string& name, const std::string& where) {
  const std::map<std::string, TableForm> forms = {
      {"text", TableForm::text}, {"md", TableForm::markdown}, {"tex", TableForm::latex}};
  const auto found = forms.find(name);
  if (found == forms.end())
    usage_error({"unknown form of a table", where, name, "text, md or tex"});
  return found->second;
}

TableForm table_form(const Values& values) {
  const TableForm form = has(values, "table") ? table_form(text(values, "table"), "--table")
                                              : TableForm::text;
  if (form != TableForm::text && values.count("json") > 0)
    usage_error({"--json and --table exclude each other", "--table"});
  return form;
}

bool has(const Values& values, const std::string& name) { return values.count(name) > 0; }

std::string text(const Values& values, const std::string& name) {
  return has(values, name) ? values[name].as<std::string>() : std::string();
}

std::vector<std::string> texts(const Values& values, const std::string& name) {
  return has(values, name) ? values[name].as<std::vector<std::string>>()
                           : std::vector<std::string>();
}

int64_t count_of(const Values& values, const std::string& name, int64_t otherwise, int64_t least,
                 int64_t most) {
  if (!has(values, name)) return otherwise;
  return parse_count(text(values, name), "--" + name, least, most);
}

double real_of(const Values& values, const std::string& name, double otherwise, double least,
               double most) {
  if (!has(values, name)) return otherwise;
  return parse_real(text(values, name), "--" + name, least, most);
}

uint64_t seed(const Values& values) {
  return static_cast<uint64_t>(count_of(values, "seed", 0, 0, std::numeric_limits<int64_t>::max()));
}

std::unique_ptr<Backend> chosen_backend(const Values& values) {
  const std::string name = has(values, "backend") ? text(values, "backend") : "auto";
  if (name == "cuda") return make_cuda_backend();
  if (name == "auto" && has_cuda_backend()) {
    try {
      return make_cuda_backend();
    } catch (const Error& error) {
      note("computing on the CPU, since CUDA has " + error.parts().what +
           (error.parts().found.empty() ? "" : ": " + error.parts().found));
    }
  }
  if (name == "auto" || name == "cpu") return make_cpu_backend();
  usage_error({"unknown backend", "--backend", name,
               has_cuda_backend() ? "auto, cpu or cuda" : "auto or cpu"});
}

std::vector<int> chosen_layers(const Values& values, const TraceInfo& info) {
  if (!has(values, "layers")) return info.layers;
  const std::vector<int> layers = parse_layers(text(values, "layers"), "--layers");
  for (const int layer : layers) {
    if (std::binary_search(info.layers.begin(), info.layers.end(), layer)) continue;
    bad_data({"the trace does not have the layer asked for", info.path,
              "--layers with " + std::to_string(layer),
              fmt::format("layers among {}", fmt::join(info.layers, ","))});
  }
  return layers;
}

std::vector<Record> records_of(const Values& values, const std::vector<std::string>& otherwise) {
  const std::vector<std::string> typed = texts(values, "policy");
  std::vector<Record> records;
  for (const std::string& one : typed.empty() ? otherwise : typed)
    records.push_back(Record::parse(one));
  return records;
}

std::vector<Budget> budgets_of(const Values& values, const std::vector<std::string>& otherwise) {
  std::vector<std::string> items;
  for (const std::string& list : texts(values, "budget"))
    for (std::string& item : expand_numbers(list, "--budget")) items.push_back(std::move(item));
  std::vector<Budget> budgets;
  for (const std::string& item : items.empty() ? otherwise : items)
    budgets.push_back(Budget::parse(item));
  return budgets;
}

std::vector<std::string> chosen_names(const std::vector<std::string>& lists,
                                      const std::string& name,
                                      const std::vector<std::string>& known,
                                      const std::vector<std::string>& shown) {
  std::vector<std::string> chosen;
  for (const std::string& list : lists)
    for (std::string& item : split_list(list, "--" + name)) {
      if (!contains(known, item))
        usage_error({"unknown " + name, "--" + name, item,
                     fmt::format("some of {}", fmt::join(shown, ", ")), did_you_mean(item, known)});
      if (!contains(chosen, item)) chosen.push_back(std::move(item));
    }
  return chosen;
}

void read_measure_options(const Values& values, StudyOptions& options) {
  for (const StudyOption& option : study_options()) {
    if (!has(values, option.flag)) continue;
    const std::string where = "--" + option.flag;
    if (option.type == OptionType::names) {
      std::vector<std::string> names = texts(values, option.flag);
      if (option.known != nullptr)
        names = chosen_names(names, option.flag, option.known(), metrics_on_request());
      for (const std::string& name : names) option.add_name(options, name);
    } else if (option.type == OptionType::flag) {
      option.set_number(options, 1);
    } else {
      const std::string typed = text(values, option.flag);
      if (option.type == OptionType::word) {
        if (!option.set(options, typed))
          usage_error({"unknown value", where, typed, option.expected()});
      } else if (option.type == OptionType::count)
        option.set_number(
            options, static_cast<double>(parse_count(typed, where, static_cast<int64_t>(option.low),
                                                     static_cast<int64_t>(option.high))));
      else
        option.set_number(options, parse_real(typed, where, option.low, option.high));
    }
  }
  check_together(options, "replay");
}

}  // namespace kvsim::cli
