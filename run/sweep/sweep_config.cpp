#include <fmt/format.h>

#include <cerrno>
#include <nlohmann/json.hpp>

#include "run/sweep/sweep.hpp"
#include "sim/policy/toml.hpp"

namespace kvsim {
namespace {

constexpr size_t kMostRecords = 100000;  // of one grid; more is a slip of the keyboard

/// Keys of a record with the texts of their values.
using Cells = std::vector<std::pair<std::string, std::string>>;

/// A key and its values, a row each; `zip` puts the cells of several keys into one row.
struct Axis {
  std::string key;
  std::vector<Cells> rows;
  bool tied = false;  ///< to another axis
};

/// A value of the file with the place it stands at.
struct Item {
  std::string text;
  nlohmann::ordered_json value;
  const toml::node* node = nullptr;
};

/// toml++ sorts keys by name; the order of axes is the order in which they were typed.
auto in_order(const toml::table& table) {
  std::vector<std::pair<std::string, const toml::node*>> entries;
  for (const auto& [key, node] : table) entries.emplace_back(std::string(key.str()), &node);
  std::ranges::stable_sort(entries, [](const auto& one, const auto& other) {
    return one.second->source().begin < other.second->source().begin;
  });
  return entries;
}

class Parser {
 public:
  explicit Parser(const std::string& path) { config_.path = path; }

  SweepConfig parse(std::string_view text) {
    toml::table root;
    try {
      root = toml::parse(text);
    } catch (const std::runtime_error& error) {
      const auto* told = dynamic_cast<const toml::parse_error*>(&error);
      usage_error(
          {std::string("not TOML: ") + error.what(), told ? place(told->source()) : config_.path});
    }
    for (const auto& [key, node] : in_order(root)) top_level(key, *node);
    if (config_.options.records.empty())
      usage_error({"no [[policy]]", config_.path, "", "at least one table of policies"});
    if (config_.options.budgets.empty())
      usage_error({"no budgets", config_.path, "", "e.g. budgets = [0.1, 0.2, 512]"});
    check_together(config_.options, config_.path);
    if (config_.seeds.empty()) config_.seeds = {0};
    return std::move(config_);
  }

 private:
  std::string place(const toml::source_region& region) const {
    return fmt::format("{}:{}", config_.path, region.begin.line);
  }
  [[noreturn]] void fail(const toml::node& node, Error::Parts parts) const {
    parts.where = place(node.source());
    usage_error(std::move(parts));
  }

  Item item(const toml::node& node) const {
    if (const auto* text = node.as_string()) return {text->get(), text->get(), &node};
    if (const auto* integer = node.as_integer())
      return {std::to_string(integer->get()), integer->get(), &node};
    if (const auto* flag = node.as_boolean())
      return {flag->get() ? "yes" : "no", flag->get(), &node};
    if (const auto* real = node.as_floating_point()) {
      std::string text = shortest(real->get());
      // 1.0 is a ratio or a fraction and 1 is a count: the point must survive.
      if (text.find_first_not_of("-0123456789") == std::string::npos) text += ".0";
      return {text, real->get(), &node};
    }
    fail(node, {.what = "not a value", .expected = "a text, a number, true or false"});
  }

  /// A value, or a list of them.
  std::vector<Item> items(const toml::node& node) const {
    const toml::array* list = node.as_array();
    if (list == nullptr) return {item(node)};
    std::vector<Item> found;
    for (const toml::node& one : *list) found.push_back(item(one));
    if (found.empty()) fail(node, {"an empty list"});
    return found;
  }

  /// Runs `use` and puts file and line into its complaint.
  template <class Use>
  auto at(const toml::node& node, Use use) const {
    try {
      return use();
    } catch (const Error& error) {
      rethrow_at(place(node.source()), error);
    }
  }

  int64_t whole(const Item& item) const {
    if (item.value.is_number_integer() && item.value >= 0) return item.value;
    fail(*item.node,
         {.what = "not a whole number", .found = item.text, .expected = "an integer >= 0"});
  }

  void check_key(const toml::node& node, const std::string& key,
                 const std::vector<std::string>& known, const char* expected,
                 const std::string& hint = "") const {
    if (!contains(known, key))
      fail(node,
           {"unknown key", "", key, expected, hint.empty() ? did_you_mean(key, known) : hint});
  }

  void top_level(const std::string& key, const toml::node& node) {
    std::vector<std::string> known = {"traces", "seeds", "layers", "budgets", "policy"};
    for (const StudyOption& option : study_options()) known.push_back(option.key);
    const bool search = key == "base" || key == "vary";
    check_key(node, key, known, "traces, budgets, seeds, [[policy]] or how to measure",
              search ? "kvsim search runs the file of a search" : "");
    if (key != "policy") {
      for (const Item& one : items(node)) take(key, one);
      return;
    }
    const toml::array* tables = node.as_array();
    if (tables == nullptr || !tables->is_homogeneous(toml::node_type::table))
      fail(node, {.what = "policy is not a list of tables", .expected = "[[policy]]"});
    for (const toml::node& one : *tables) policy(*one.as_table());
  }

  void take(const std::string& key, const Item& one) {
    if (key == "traces") {  // looked up from the folder of the file
      const auto folder = std::filesystem::path(config_.path).parent_path();
      config_.traces.push_back((folder / one.text).lexically_normal().string());
      config_.places.emplace(config_.traces.back(), place(one.node->source()));
    } else if (key == "seeds") {
      config_.seeds.push_back(static_cast<uint64_t>(whole(one)));
    } else if (key == "layers") {
      config_.layers.push_back(static_cast<int>(std::min<int64_t>(whole(one), 1 << 30)));
      config_.places.emplace(std::to_string(config_.layers.back()), place(one.node->source()));
    } else if (key == "budgets") {
      config_.options.budgets.push_back(at(*one.node, [&] { return Budget::parse(one.text); }));
    } else {
      const StudyOption& option = *std::ranges::find(study_options(), key, &StudyOption::key);
      const bool name = option.type == OptionType::names;
      if (option.set(config_.options, name ? nlohmann::ordered_json(one.text) : one.value)) return;
      fail(*one.node, {.what = name ? "unknown " + option.flag : "not a value of " + option.key,
                       .found = one.text,
                       .expected = name ? "" : option.expected(),
                       .hint = name ? did_you_mean(one.text, option.known()) : ""});
    }
  }

  void policy(const toml::table& table) {
    std::vector<Axis> axes;
    for (const auto& [key, node] : in_order(table))
      if (key != "zip") axes.push_back({key, rows_of(key, *node)});
    if (!table.contains("preset"))
      fail(table, {.what = "no preset in [[policy]]", .expected = "e.g. preset = \"snapkv\""});
    if (const toml::node* const zip = table.get("zip")) tie(*zip, axes);
    expand(table, axes);
  }

  /// Values are checked one by one here, so that a mistake is found at its own line.
  std::vector<Cells> rows_of(const std::string& key, const toml::node& node) const {
    std::vector<std::string> known = {"preset", "zip"};
    for (const Parameter* p : parameters()) known.push_back(p->key);
    check_key(node, key, known, "a key of `kvsim policies`");
    std::vector<Cells> rows;
    for (const Item& one : items(node)) {
      at(*one.node, [&] {
        return key == "preset" ? Record::parse(one.text).preset
                               : canonical_value(*find_parameter(key), one.text);
      });
      rows.push_back({{key, one.text}});
    }
    return rows;
  }

  /// The cells of all keys that `zip`, or each list in it, names go to the first of them.
  void tie(const toml::node& zip, std::vector<Axis>& axes) const {
    const toml::array* list = zip.as_array();
    if (list == nullptr || list->empty())
      fail(zip, {.what = "zip is not a list of keys", .expected = "e.g. zip = [\"a\", \"b\"]"});
    if (list->front().is_array()) {
      for (const toml::node& one : *list) tie(one, axes);
      return;
    }
    Axis* first = nullptr;
    for (const Item& name : items(zip)) {
      const auto own = std::ranges::find(axes, name.text, &Axis::key);
      if (own == axes.end() || own->tied || &*own == first)
        fail(*name.node, {.what = "zip names what is no free axis of this policy",
                          .found = name.text,
                          .expected = "a key beside zip, once"});
      if (first == nullptr) {
        first = &*own;
        continue;
      }
      if (own->rows.size() != first->rows.size())
        fail(zip, {.what = "zip ties lists of different lengths",
                   .found = fmt::format("{} of {} and {} of {}", first->rows.size(), first->key,
                                        own->rows.size(), own->key)});
      for (size_t row = 0; row < own->rows.size(); ++row)
        first->rows[row].push_back(own->rows[row].front());
      own->rows = {{}};
      own->tied = first->tied = true;
    }
  }

  /// Every combination of the axes, the last one fastest.
  void expand(const toml::table& table, const std::vector<Axis>& axes) {
    size_t combinations = 1;
    for (const Axis& axis : axes)
      combinations = std::min(combinations * axis.rows.size(), kMostRecords + 1);
    if (combinations + config_.options.records.size() > kMostRecords)
      fail(table, {.what = "too many policies",
                   .found = std::to_string(combinations),
                   .expected = fmt::format("at most {} in a sweep", kMostRecords)});
    for (size_t number = 0; number < combinations; ++number) {
      std::string preset, changes;
      size_t each = combinations;  // records with one row of an axis, one after the other
      for (const Axis& axis : axes) {
        each /= axis.rows.size();
        for (const auto& [key, value] : axis.rows[number / each % axis.rows.size()])
          key == "preset" ? preset = value : changes += "," + key + "=" + value;
      }
      config_.options.records.push_back(at(table, [&] { return Record::parse(preset + changes); }));
    }
  }

  SweepConfig config_;
};

}  // namespace

void rethrow_at(const std::string& place, const Error& error) {
  Error::Parts parts = error.parts();
  const bool option = parts.where.starts_with("--");  // of the command line, not typed here
  if (!parts.where.empty() && !option) parts.what = parts.where + ": " + parts.what;
  parts.where = place;
  throw Error(error.fault(), std::move(parts));
}

SweepConfig parse_sweep_config(std::string_view text, const std::string& path) {
  if (text.starts_with("\x89HDF"))
    usage_error({"not the file of a sweep", path, "HDF5, as a trace or results are",
                 "a TOML file that names traces, budgets and policies"});
  return Parser(path).parse(text);
}

SweepConfig read_sweep_config(const std::string& path) {
  std::error_code fault;
  if (std::filesystem::is_directory(path, fault)) bad_data({"a folder", path});
  errno = 0;
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  text << file.rdbuf();
  if (!file.is_open() || file.bad())
    bad_data({errno != 0 ? std::strerror(errno) : "cannot be read", path});
  return parse_sweep_config(text.str(), path);
}

}  // namespace kvsim
