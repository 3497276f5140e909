#include <fmt/format.h>
#include <fmt/ranges.h>

#include <charconv>
#include <deque>

#include "sim/stages/indicator/indicator.hpp"
#include "sim/stages/kind.hpp"
#include "sim/stages/merge/merge.hpp"

namespace kvsim {

Key::Key(std::string_view name) {
  const Parameter* parameter = find_parameter(name);
  if (!parameter) throw std::logic_error("no such key: " + std::string(name));
  number_ = parameter->number;
}

void Settings::set(Key key, std::string text) {
  if (values_.size() <= key.number()) values_.resize(key.number() + 1);
  const Parameter& parameter = parameter_of(key);
  Value value;
  value.is_set = true;
  value.is_none = text == "none";
  value.is_fraction = parameter.type == ValueType::share && text.find('.') != std::string::npos;
  if (parameter.type == ValueType::kind) {
    value.kind = &find_kind(parameter.key, text);
  } else if (parameter.type == ValueType::flag) {
    value.whole = text == "yes";
  } else if (parameter.type == ValueType::word) {
    value.whole = std::ranges::find(parameter.words, text) - parameter.words.begin();
  } else if (parameter.type != ValueType::text && !value.is_none) {
    const auto decimal = Decimal::parse(text);
    if (!decimal) throw std::logic_error("not a number: " + parameter.key);
    value.decimal = *decimal;
    value.real = decimal->value();
    if (parameter.type != ValueType::real && !value.is_fraction)
      value.whole = decimal->floor_times(1);
  }
  value.text = std::move(text);
  values_[key.number()] = std::move(value);
}

const Settings::Value& Settings::at(Key key) const {
  if (key.number() >= values_.size() || !values_[key.number()].is_set)
    throw std::logic_error("no such key: " + parameter_of(key).key);
  return values_[key.number()];
}

Settings Settings::only(const std::set<std::string>& keys) const {
  Settings some;
  some.values_.resize(values_.size());
  for (const Key key : keys) some.values_[key.number()] = at(key);
  return some;
}

std::map<std::string, std::string> Settings::values() const {
  std::map<std::string, std::string> texts;
  for (size_t number = 0; number < values_.size(); ++number)
    if (values_[number].is_set) texts[parameter_of(Key(number)).key] = values_[number].text;
  return texts;
}

int64_t Settings::share(Key key, int64_t whole) const {
  const Value& value = at(key);
  return value.is_fraction ? value.decimal.floor_times(whole) : value.whole;
}

std::vector<std::string> Settings::list(Key key) const {
  if (is_none(key)) return {};
  const auto items = split_at(text(key), '+');
  return {items.begin(), items.end()};
}

std::vector<std::string> split_words(const char* text) {
  std::istringstream words(text);
  return {std::istream_iterator<std::string>(words), {}};
}

std::vector<std::string_view> split_at(std::string_view text, char separator) {
  std::vector<std::string_view> parts;
  while (true) {
    const size_t end = std::min(text.find(separator), text.size());
    parts.push_back(text.substr(0, end));
    if (end == text.size()) return parts;
    text.remove_prefix(end + 1);
  }
}

namespace {

/// "12-19" as a range, nothing if it is a name.
std::optional<Range> as_range(std::string_view text) {
  Range range;
  const size_t dash = text.find('-');
  if (dash == std::string_view::npos) return std::nullopt;
  const auto read = [](std::string_view digits, int64_t& value) {
    const auto [end, fault] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
    return fault == std::errc() && end == digits.data() + digits.size() && !digits.empty() &&
           digits[0] != '-';
  };
  if (!read(text.substr(0, dash), range.begin) || !read(text.substr(dash + 1), range.end))
    return std::nullopt;
  return range;
}

/// By stage and name.
using KindTable = std::map<std::pair<std::string, std::string>, std::unique_ptr<const Kind>>;

KindTable& kind_table() {
  static KindTable kinds;
  return kinds;
}

/// Folders of stages in the order in which a policy runs them, and the sections of docs/policies.md
/// that describe their keys. Keys declared elsewhere come last.
struct StagePlace {
  std::string_view folder;
  const char* section;
};
constexpr StagePlace kStages[] = {{"stages", "2"},      {"queries", "5.1"}, {"indicator", "5.2"},
                                  {"aggregate", "5.4"}, {"join", "5.4"},    {"smooth", "5.5"},
                                  {"group", "5.6"},     {"memory", "5.6"},  {"redundancy", "5.6"},
                                  {"prior", "5.7"},     {"weight", "5.8"},  {"normalize", "5.8"},
                                  {"shape", "5.9"},     {"protect", "6"},   {"allocate", "7"},
                                  {"constrain", "8"},   {"merge", "9"},     {"estimate", "9"},
                                  {"quantize", "11"},   {"schedule", "12"}, {"", ""}};

size_t stage_of(std::string_view file) {
  const std::string folder = std::filesystem::path(file).parent_path().filename().string();
  size_t at = 0;
  while (at + 1 < std::size(kStages) && kStages[at].folder != folder) ++at;
  return at;
}

/// All declared parameters, by number, in canonical order and by key. A stage's own key comes
/// before those of its kinds.
struct Declared {
  std::deque<Parameter> all;
  std::vector<const Parameter*> in_order;
  std::map<std::string, Parameter*, std::less<>> by_key;
};

Declared& declared() {
  static Declared parameters;
  return parameters;
}

size_t declare(Parameter parameter) {
  Declared& known = declared();
  if (known.by_key.contains(parameter.key))
    throw std::logic_error("parameter declared twice: " + parameter.key);
  const auto place = [](const Parameter* p) {
    return std::tuple(p->stage, p->type != ValueType::kind, std::string_view(p->key));
  };
  parameter.number = known.all.size();
  Parameter& kept = known.all.emplace_back(std::move(parameter));
  known.in_order.insert(std::ranges::lower_bound(known.in_order, place(&kept), {}, place), &kept);
  known.by_key.emplace(kept.key, &kept);
  return kept.number;
}

/// Reads what a key takes off its declaration.
void read_values(Parameter& p, std::string_view values) {
  static const std::map<std::string_view, ValueType> kTypes = {
      {"count", ValueType::count}, {"odd", ValueType::count}, {"number", ValueType::real},
      {"share", ValueType::share}, {"flag", ValueType::flag}, {"kind", ValueType::kind},
      {"text", ValueType::text},   {"file", ValueType::text}};
  std::vector<std::string> words = split_words(std::string(values).c_str());
  if (std::ranges::count(words, "|") > 0) {
    p.type = ValueType::word;
    std::ranges::remove_copy(words, std::back_inserter(p.words), "|");
    return;
  }
  const std::string_view none = " or none";
  p.may_be_none = values.ends_with(none);
  if (p.may_be_none) values.remove_suffix(none.size());
  std::istringstream text{std::string(values)};
  std::string type, sign;
  text >> type;
  const auto known = kTypes.find(type);
  if (known == kTypes.end())
    throw std::logic_error("parameter " + p.key + ": not a type of values: " + type);
  p.type = known->second;
  p.odd = type == "odd";
  p.is_file = type == "file";
  if (p.type == ValueType::count || p.type == ValueType::real || p.type == ValueType::share) {
    char mark = 0;
    text >> mark;
    if (mark == '>') {
      p.low_open = text.peek() != '=';
      if (!p.low_open) text.get();
      text >> p.low;
    } else {  // [0, 1)
      p.low_open = mark == '(';
      text >> p.low >> mark >> p.high >> mark;
      p.high_open = mark == ')';
    }
    if (!text) throw std::logic_error("parameter " + p.key + ": no range: " + std::string(values));
  }
  if (p.is_file) p.unit = "path";
  text >> p.unit;
}

std::vector<std::string> allowed_words(const Parameter& p) {
  if (p.type == ValueType::word) return p.words;
  if (p.names) return p.names();
  if (p.type == ValueType::flag) return {"yes", "no"};
  std::vector<std::string> names;
  for (const auto* info : kinds_of_stage(p.key)) names.push_back(info->name);
  return names;
}

[[noreturn]] void refuse(const Parameter& p, std::string_view typed, std::string hint = "") {
  const std::string value(typed);
  usage_error({"bad value of " + p.key, fmt::format("{}={}", p.key, value),
               value.empty() ? "nothing" : value, p.range(), std::move(hint)});
}

void check_number(const Parameter& p, std::string_view typed, double value) {
  const bool below = value < p.low || (p.low_open && value == p.low);
  const bool above = value > p.high || (p.high_open && value == p.high);
  if (below || above) refuse(p, typed);
}

bool is_integer(std::string_view text) {
  return !text.empty() && text.size() <= 15 &&
         text.find_first_not_of("0123456789") == std::string_view::npos;
}

std::string canonical_word(const Parameter& p, std::string_view typed) {
  const auto words = allowed_words(p);
  if (!contains(words, typed)) refuse(p, typed, did_you_mean(typed, words));
  return std::string(typed);
}

std::string canonical_number(const Parameter& p, std::string_view typed) {
  const bool integer = is_integer(typed);
  if (p.type == ValueType::count || (p.type == ValueType::share && integer)) {
    if (!integer) refuse(p, typed);
    const int64_t count = std::stoll(std::string(typed));
    check_number(p, typed, static_cast<double>(count));
    if (p.odd && count % 2 == 0) refuse(p, typed);
    return std::to_string(count);
  }
  const auto decimal = Decimal::parse(typed);
  if (!decimal || typed.find('%') != std::string_view::npos) refuse(p, typed);
  const double value = decimal->value();
  if (p.type == ValueType::share) {
    if (typed.find('.') == std::string_view::npos || value < 0 || value > 1) refuse(p, typed);
    const std::string text = decimal->text();  // a fraction keeps its point: 1.0 is not 1 entry
    return text.find('.') == std::string::npos ? text + ".0" : text;
  }
  check_number(p, typed, value);
  return decimal->text();
}

/// "0+1+5", "0+-1" (-1 is the last layer) or "none".
std::string layer_list_fault(std::string_view text) {
  bool digit = false;
  char before = '+';
  for (char c : text) {
    if (c == '+' && !digit) return "a layer index is missing before '+'";
    if (c != '+' && c != '-' && (c < '0' || c > '9'))
      return "layer indices are integers joined by '+'";
    if (c == '-' && before != '+') return "'-' stands before an index counted from the last layer";
    digit = c != '+' && c != '-';
    before = c;
  }
  return digit ? "" : "a layer index is missing";
}

}  // namespace

std::string Parameter::range() const {
  const auto words_of = [this] {
    return fmt::format("{}", fmt::join(allowed_words(*this), " | "));
  };
  const bool bounded = high < std::numeric_limits<double>::infinity();
  std::string text;
  switch (type) {
    case ValueType::word:
    case ValueType::flag:
    case ValueType::kind: return words_of();
    case ValueType::text:
      if (names) return words_of();
      return may_be_none ? "a text, or none" : "a text";
    case ValueType::count:
      text = odd ? "an odd integer" : "an integer";
      text += bounded ? fmt::format(" in [{}, {}]", low, high) : fmt::format(" >= {}", low);
      break;
    case ValueType::share:
      text = fmt::format("an integer >= {}, or a fraction of the budget with a decimal point", low);
      break;
    case ValueType::real:
      if (bounded)
        text = fmt::format("a number in {}{}, {}{}", low_open ? "(" : "[", low, high,
                           high_open ? ")" : "]");
      else
        text = fmt::format("a number {} {}", low_open ? ">" : ">=", low);
      break;
  }
  return may_be_none ? text + ", or none" : text;
}

bool nests_at_default(const Parameter& parameter, const Settings& settings) {
  return settings.is(Key(parameter.number), parameter.fallback);
}

const char* Parameter::section() const { return kStages[stage].section; }

Declare::Declare(Parameter parameter) : Key(declare(std::move(parameter))) {}

Parameter Declare::read(Name name, std::string_view values, const char* fallback,
                        const char* meaning) {
  Parameter parameter;
  parameter.key = name.key;
  parameter.fallback = fallback;
  parameter.meaning = meaning;
  parameter.stage = stage_of(name.file);
  read_values(parameter, values);
  return parameter;
}

const Parameter& parameter_of(Key key) { return declared().all.at(key.number()); }

const Parameter* find_parameter(std::string_view key) {
  const auto found = declared().by_key.find(key);
  return found == declared().by_key.end() ? nullptr : found->second;
}

std::vector<const Parameter*> parameters() { return declared().in_order; }

std::string canonical_value(const Parameter& p, std::string_view typed) {
  if (p.may_be_none && typed == "none") return "none";
  switch (p.type) {
    case ValueType::count:
    case ValueType::real:
    case ValueType::share: return canonical_number(p, typed);
    case ValueType::word:
    case ValueType::flag:
    case ValueType::kind: return canonical_word(p, typed);
    case ValueType::text: break;
  }
  if (p.names) return canonical_word(p, typed);
  if (typed.empty()) refuse(p, typed);
  if (p.fault) {
    const std::string fault = p.fault(typed);
    if (!fault.empty()) refuse(p, typed, fault);
  }
  return std::string(typed);
}

std::string span_list_fault(std::string_view text) {
  for (const std::string_view item : split_at(text, '+')) {
    if (item.empty()) return "an empty name between '+'";
    const auto range = as_range(item);
    if (range && range->begin >= range->end) return "an empty range " + std::string(item);
  }
  return "";
}

std::vector<Range> resolve_spans(const std::vector<std::string>& items,
                                 const std::vector<Span>& spans, int64_t entries) {
  std::vector<Range> ranges;
  std::vector<std::string> names;
  for (const Span& span : spans) names.push_back(span.name);
  for (const std::string& item : items) {
    const auto named = std::find(names.begin(), names.end(), item);
    if (named != names.end()) {
      const Span& span = spans[named - names.begin()];
      ranges.push_back({span.begin, span.end});
    } else if (const auto range = as_range(item)) {
      if (range->begin >= entries)
        bad_data({"a range behind the prompt", "span " + item, "",
                  "entries 0 to " + std::to_string(entries - 1)});
      ranges.push_back({std::min(range->begin, entries), std::min(range->end, entries)});
    } else {
      bad_data({"no such span in the trace", "span " + item,
                names.empty() ? "a trace without spans" : "",
                "a span name of the trace or a range a-b", did_you_mean(item, names)});
    }
  }
  return ranges;
}

void add_kind(std::unique_ptr<const Kind> kind) {
  const KindInfo& info = kind->info();
  if (kind_table().contains({info.stage, info.name}))
    throw std::logic_error("kind registered twice: " + info.stage + "=" + info.name);
  kind_table()[{info.stage, info.name}] = std::move(kind);
}

const Kind& find_kind(std::string_view stage, std::string_view name) {
  const auto found = kind_table().find(std::pair(std::string(stage), std::string(name)));
  if (found == kind_table().end()) throw std::logic_error("no such kind: " + std::string(name));
  return *found->second;
}

std::vector<const KindInfo*> all_kinds() {
  std::vector<const KindInfo*> all;
  for (const auto& [name, kind] : kind_table()) all.push_back(&kind->info());
  return all;
}

std::vector<const KindInfo*> kinds_of_stage(std::string_view stage) {
  std::vector<const KindInfo*> found;
  for (auto at = kind_table().lower_bound({std::string(stage), ""});
       at != kind_table().end() && at->first.first == stage; ++at)
    found.push_back(&at->second->info());
  return found;
}

namespace keys {

const Declare granularity("granularity", "kv | query", "kv",
                          "who owns a kept set: a KV head or a query head", always, lets_nest);
const Declare rounding("rounding", "exact | kvpress", "exact",
                       "how a ratio becomes a count: exactly, or as kvpress does", always,
                       lets_nest);
const Declare tie("tie", "raw | recent", "raw",
                  "equal scores: by the score without its prior, or by recency alone", always,
                  only_with(selects_entries_if), lets_nest);
const Declare skip_layers("skip_layers", "text layers or none", "none",
                          "layers that keep everything, joined by +; -1 is the last", always,
                          checked_by(layer_list_fault), lets_nest, tested("2"));
const Declare positions("positions", "absolute | cache", "absolute",
                        "where kept keys stand: where they were, or closed up", always, lets_nest);

}  // namespace keys

}  // namespace kvsim
