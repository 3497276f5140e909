#include <fmt/format.h>

#include <cerrno>

#include "run/study/study.hpp"
#include "run/sweep/sweep.hpp"
#include "sim/policy/toml.hpp"

namespace kvsim {
namespace {

constexpr size_t kMostRecords = 100000;  // of one grid; more is a slip of the keyboard

/// A key and its values. `leader`: the axis, by its number, that it goes along with; its own number
/// where it is free.
struct Axis {
  std::string key;
  std::vector<std::string> values;
  size_t leader = 0;
};

/// A value of the file with the place it stands at.
struct Item {
  std::string text;
  const toml::node* node = nullptr;
};

class Parser {
 public:
  explicit Parser(const std::string& path) { config_.path = path; }

  SweepConfig parse(std::string_view text) {
    toml::table root;
    try {
      root = toml::parse(text);
    } catch (const toml::parse_error& error) {
      usage_error(
          {"not TOML: " + std::string(error.description()), place(error.source().begin.line)});
    } catch (const std::runtime_error& error) {
      usage_error({std::string("not TOML: ") + error.what(), config_.path});
    }
    for (const auto& [key, node] : in_order(root)) top_level(key, *node);
    if (config_.options.records.empty()) missing("[[policy]]", "at least one table of policies");
    if (config_.options.budgets.empty()) missing("budgets", "e.g. budgets = [0.1, 0.2, 512]");
    check_together(config_.options, config_.path);
    if (config_.seeds.empty()) config_.seeds = {0};
    return std::move(config_);
  }

 private:
  using Entries = std::vector<std::pair<std::string, const toml::node*>>;

  /// Paths in the file are looked up from its folder.
  std::string beside_file(const std::string& path) const {
    namespace fs = std::filesystem;
    return (fs::path(config_.path).parent_path() / path).lexically_normal().string();
  }
  std::string place(int64_t line) const { return fmt::format("{}:{}", config_.path, line); }
  std::string place(const toml::node& node) const { return place(node.source().begin.line); }
  [[noreturn]] void fail(const toml::node& node, Error::Parts parts) const {
    parts.where = place(node);
    usage_error(std::move(parts));
  }
  [[noreturn]] void missing(const char* key, const char* expected) const {
    usage_error({std::string("no ") + key, config_.path, "", expected});
  }

  /// toml++ sorts keys by name; the order of axes is the order in which they were typed.
  static Entries in_order(const toml::table& table) {
    Entries entries;
    for (const auto& [key, node] : table) entries.emplace_back(std::string(key.str()), &node);
    std::ranges::stable_sort(entries, [](const auto& a, const auto& b) {
      const auto x = a.second->source().begin;
      const auto y = b.second->source().begin;
      return std::pair(x.line, x.column) < std::pair(y.line, y.column);
    });
    return entries;
  }

  Item item(const toml::node& node) const {
    if (const auto* text = node.as_string()) return {text->get(), &node};
    if (const auto* integer = node.as_integer()) return {std::to_string(integer->get()), &node};
    if (const auto* flag = node.as_boolean()) return {flag->get() ? "yes" : "no", &node};
    if (const auto* real = node.as_floating_point()) {
      std::string text = shortest(real->get());
      // 1.0 is a ratio or a fraction and 1 is a count: the point must survive.
      if (text.find_first_not_of("-0123456789") == std::string::npos) text += ".0";
      return {text, &node};
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
      Error::Parts parts = error.parts();
      const bool option = parts.where.starts_with("--");  // of the command line, not typed here
      if (!parts.where.empty() && !option) parts.what = parts.where + ": " + parts.what;
      fail(node, std::move(parts));
    }
  }

  int64_t whole(const Item& item, int64_t least) const {
    const auto* integer = item.node->as_integer();
    if (integer == nullptr || integer->get() < least)
      fail(*item.node, {.what = "not a whole number",
                        .found = item.text,
                        .expected = fmt::format("an integer >= {}", least)});
    return integer->get();
  }
  void top_level(const std::string& key, const toml::node& node) {
    if (key == "policy") return policies(node);
    const auto option = std::ranges::find(study_options(), key, &StudyOption::key);
    const bool measures = option != study_options().end();
    static const std::vector<std::string> replayed = {"traces", "seeds", "layers", "budgets"};
    if (!measures && !contains(replayed, key)) {
      std::vector<std::string> known = replayed;
      known.push_back("policy");
      for (const StudyOption& one : study_options()) known.push_back(one.key);
      fail(node, {.what = "unknown key",
                  .found = key,
                  .expected = "traces, budgets, seeds, [[policy]] or how to measure",
                  .hint = key == "base" || key == "vary" ? "kvsim search runs the file of a search"
                                                         : did_you_mean(key, known)});
    }
    for (const Item& one : items(node))
      if (measures)
        measure(*option, one);
      else
        replay(key, one);
  }

  /// One value of a key that says what to replay.
  void replay(const std::string& key, const Item& one) {
    if (key == "traces") {
      config_.traces.push_back(beside_file(one.text));
      config_.places.emplace(config_.traces.back(), place(*one.node));
    } else if (key == "seeds") {
      config_.seeds.push_back(static_cast<uint64_t>(whole(one, 0)));
    } else if (key == "layers") {
      config_.layers.push_back(static_cast<int>(std::min<int64_t>(whole(one, 0), 1 << 30)));
      config_.places.emplace(std::to_string(config_.layers.back()), place(*one.node));
    } else {
      config_.options.budgets.push_back(at(*one.node, [&] { return Budget::parse(one.text); }));
    }
  }

  /// One value of a key that says how to measure.
  void measure(const StudyOption& option, const Item& one) {
    const auto refuse =
        [&](const std::string& what, const std::string& expected, const std::string& hint = "") {
      fail(*one.node, {.what = what, .found = one.text, .expected = expected, .hint = hint});
    };
    StudyOptions& options = config_.options;
    if (option.type == OptionType::names) {
      const auto known = option.known ? option.known() : std::vector{one.text};
      if (!contains(known, one.text))
        refuse("unknown " + option.flag, "", did_you_mean(one.text, known));
      return option.add_name(options, one.text);
    }
    if (option.type == OptionType::flag) {
      if (!one.node->is_boolean()) refuse("not a flag", "true or false");
      return option.set_number(options, one.node->ref<bool>() ? 1 : 0);
    }
    if (option.type == OptionType::word) {
      const auto found = std::ranges::find(option.words, one.text);
      if (found == option.words.end()) refuse("unknown value", option.expected());
      return option.set_number(options, static_cast<double>(found - option.words.begin()));
    }
    const bool count = option.type == OptionType::count;
    const auto value = count && !one.node->is_integer() ? std::nullopt : one.node->value<double>();
    if (!value || !option.in_range(*value))
      refuse(count ? "not a whole number in range" : "not a number in range", option.expected());
    option.set_number(options, *value);
  }

  void policies(const toml::node& node) {
    const toml::array* tables = node.as_array();
    if (tables == nullptr || !tables->is_homogeneous(toml::node_type::table))
      fail(node, {.what = "policy is not a list of tables", .expected = "[[policy]]"});
    for (const toml::node& one : *tables) policy(*one.as_table());
  }

  void policy(const toml::table& table) {
    std::vector<Axis> axes;
    for (const auto& [key, node] : in_order(table))
      if (key != "zip") axes.push_back({key, values_of(key, *node), axes.size()});
    if (!table.contains("preset"))
      fail(table, {.what = "no preset in [[policy]]", .expected = "e.g. preset = \"snapkv\""});
    if (const toml::node* const zip = table.get("zip")) tie(*zip, axes);
    expand(table, axes);
  }

  /// Values are checked one by one here, so that a mistake is found at its own line.
  std::vector<std::string> values_of(const std::string& key, const toml::node& node) const {
    const Parameter* parameter = find_parameter(key);
    if (parameter == nullptr && key != "preset") {
      std::vector<std::string> known = {"preset", "zip"};
      for (const Parameter* p : parameters()) known.push_back(p->key);
      fail(node, {.what = "unknown key",
                  .found = key,
                  .expected = "a key of `kvsim policies`",
                  .hint = did_you_mean(key, known)});
    }
    std::vector<std::string> values;
    for (const Item& one : items(node)) {
      at(*one.node, [&] {
        return key == "preset" ? Record::parse(one.text).preset
                               : canonical_value(*parameter, one.text);
      });
      values.push_back(one.text);
    }
    return values;
  }

  /// zip = ["a", "b"], or a list of such lists.
  void tie(const toml::node& zip, std::vector<Axis>& axes) const {
    const toml::array* list = zip.as_array();
    if (list == nullptr || list->empty())
      fail(zip, {.what = "zip is not a list of keys", .expected = "e.g. zip = [\"a\", \"b\"]"});
    if (!list->front().is_array()) return tie_one(zip, axes);
    for (const toml::node& one : *list) tie_one(one, axes);
  }

  void tie_one(const toml::node& zip, std::vector<Axis>& axes) const {
    std::vector<size_t> tied;
    for (const Item& name : items(zip)) {
      const size_t at = std::ranges::find(axes, name.text, &Axis::key) - axes.begin();
      if (at == axes.size() || std::ranges::count(axes, at, &Axis::leader) != 1 ||
          axes[at].leader != at || contains(tied, at))
        fail(*name.node, {.what = "zip names what is no free axis of this policy",
                          .found = name.text,
                          .expected = "a key beside zip, once"});
      tied.push_back(at);
      const Axis &first = axes[tied.front()], &own = axes[at];
      if (own.values.size() != first.values.size())
        fail(zip, {.what = "zip ties lists of different lengths",
                   .found = fmt::format("{} of {} and {} of {}", first.values.size(), first.key,
                                        own.values.size(), own.key)});
    }
    for (const size_t at : tied) axes[at].leader = tied.front();
  }

  /// Every combination of the axes, the last one fastest.
  void expand(const toml::table& table, const std::vector<Axis>& axes) {
    size_t combinations = 1;
    for (size_t a = 0; a < axes.size(); ++a)
      if (axes[a].leader == a)
        combinations = std::min(combinations * axes[a].values.size(), kMostRecords + 1);
    if (combinations + config_.options.records.size() > kMostRecords)
      fail(table, {.what = "too many policies",
                   .found = std::to_string(combinations),
                   .expected = fmt::format("at most {} in a sweep", kMostRecords)});
    for (size_t number = 0; number < combinations; ++number) {
      std::vector<size_t> row(axes.size());  // of each free axis
      for (size_t rest = number, a = axes.size(); a-- > 0;) {
        if (axes[a].leader != a) continue;
        row[a] = rest % axes[a].values.size();
        rest /= axes[a].values.size();
      }
      std::string preset, changes;
      for (const Axis& axis : axes) {
        const std::string& value = axis.values[row[axis.leader]];
        if (axis.key == "preset")
          preset = value;
        else
          changes += "," + axis.key + "=" + value;
      }
      config_.options.records.push_back(at(table, [&] { return Record::parse(preset + changes); }));
    }
  }

  SweepConfig config_;
};

}  // namespace

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
