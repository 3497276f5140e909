#include "sim/policy/record.hpp"

#include "sim/policy/presets.hpp"
#include "sim/policy/toml.hpp"
#include "sim/stages/stages.hpp"

namespace kvsim {

extern const char kMethodsText[];  // methods.toml, which the build puts into a source file

namespace {

struct Methods {
  std::vector<Preset> presets;
  std::vector<Source> sources;
  std::vector<Note> notes;
};

/// "$cake,cake_tau1=1": each name behind a $ gives way to the cells that the file has under it.
std::string whole_cells(std::string cells, const toml::table& shared) {
  for (size_t at; (at = cells.find('$')) != cells.npos;) {
    const size_t end = std::min(cells.find(',', at), cells.size());
    cells.replace(at, end - at, shared.at(cells.substr(at + 1, end - at - 1)).ref<std::string>());
  }
  return cells;
}

Methods read_methods() {
  const toml::table file = toml::parse(std::string_view(kMethodsText));
  Methods methods;
  for (const toml::node& row : *file["presets"].as_array()) {
    const auto text = [&](size_t i) { return row.as_array()->at(i).ref<std::string>(); };
    const std::string title = text(0);
    const size_t colon = std::min(title.find(':'), title.size());
    methods.presets.push_back({title.substr(0, colon),
                               title.substr(std::min(colon + 1, title.size())),
                               whole_cells(text(1), *file["cells"].as_table()), text(2), text(3)});
  }
  const auto each = [&](const char* name, auto&& add) {
    for (const toml::node& node : *file[name].as_array())
      add([&](const char* key) { return (*node.as_table())[key].value_or(std::string()); });
  };
  each("source", [&](auto&& of) {
    methods.sources.push_back(
        {of("name"), of("title"), of("authors"), of("year"), of("paper"), of("code")});
  });
  each("note", [&](auto&& of) {
    methods.notes.push_back({of("of"), of("source"), of("point"), of("reading")});
  });
  return methods;
}

const Methods& methods() {
  static const Methods read = read_methods();
  return read;
}

/// Where a note stands: the place of its key or stage, presets after all of them.
size_t place_of(const Note& note) {
  const std::vector<const Parameter*> all = parameters();
  const Parameter* key = find_parameter(note.of.substr(0, note.of.find('=')));
  return static_cast<size_t>(std::ranges::find(all, key) - all.begin());
}

/// Address of the paper; empty: there is none.
std::string address_of(const Source& source) {
  const bool arxiv = !source.paper.empty() &&
                     std::isdigit(static_cast<unsigned char>(source.paper[0]));
  return (arxiv ? "https://arxiv.org/abs/" : "") + source.paper;
}

bool part_of_a_word(char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '-'; }

/// Does the name stand there in words of its own? "KVzip" does not in "KVzipPress".
bool stands_at(std::string_view text, size_t at, std::string_view name) {
  const size_t end = at + name.size();
  return text.substr(at, name.size()) == name && (at == 0 || !part_of_a_word(text[at - 1])) &&
         (end == text.size() || !part_of_a_word(text[end]));
}

/// A function in the place of a preset, `python:FILE.py:FUNCTION`: the preset `external` with what
/// the function scores (policies.md 2).
constexpr std::string_view kFunction = "python:";
constexpr const char* kScored = "external";
constexpr const char* kScores = "scores";

const Preset& preset_named(std::string_view title) {
  const size_t colon = std::min(title.find(':'), title.size());
  const std::string name(title.substr(0, colon));
  const std::string variant(colon < title.size() ? title.substr(colon + 1) : "");
  const Preset* found = colon + 1 == title.size() ? nullptr : find_preset(name, variant);
  if (found) return *found;
  std::vector<std::string> names;
  std::vector<std::string> variants;
  for (const Preset& preset : presets()) {
    if (preset.variant.empty()) names.push_back(preset.name);
    if (preset.name == name) variants.push_back(preset_title(preset));
  }
  if (variants.empty())
    usage_error({"unknown preset", "policy", name, "a preset of `kvsim policies`",
                 did_you_mean(name, names)});
  usage_error({"unknown variant of " + name, "policy", std::string(title), either(variants)});
}

std::vector<std::string> all_keys() {
  std::vector<std::string> keys;
  for (const Parameter* p : parameters()) keys.push_back(p->key);
  return keys;
}

/// Settings beside rounding=kvpress with which a press of kvpress differs (docs/presets.md).
struct Press {
  std::string_view preset, settings;
};
constexpr Press kPresses[] = {
    {"snapkv", ",window=64"},        {"adakv", ",window=64"},
    {"criticalkv", ",window=64"},    {"pyramidkv", ",window=64,allocate=pyramid-kvpress"},
    {"kvzip", ",ada_total=product"}, {"kvzip-plus", ",reread_norm=input,ada_total=product"},
    {"kvgrad", ",ada_total=product"}};

/// A record that names a press as NAME:kvpress, in the words of today; "" for every other.
std::string of_press(std::string_view text) {
  constexpr std::string_view kVariant = ":kvpress";
  const std::string_view title = text.substr(0, text.find(','));
  if (!title.ends_with(kVariant)) return "";
  const std::string_view name = title.substr(0, title.size() - kVariant.size());
  std::string found = std::string(name) + ",rounding=kvpress";
  for (const Press& press : kPresses)
    if (press.preset == name)
      for (const std::string_view one : split_at(press.settings.substr(1), ','))
        if (text.find("," + std::string(one.substr(0, one.find('=') + 1))) == text.npos)
          found += "," + std::string(one);
  return found + std::string(text.substr(title.size()));
}

}  // namespace

const std::vector<Preset>& presets() { return methods().presets; }

const Preset* find_preset(std::string_view name, std::string_view variant) {
  for (const Preset& preset : presets())
    if (preset.name == name && preset.variant == variant) return &preset;
  return nullptr;
}

std::string preset_title(const Preset& preset) {
  return preset.variant.empty() ? preset.name : preset.name + ":" + preset.variant;
}

Settings preset_settings(const Preset& preset) {
  static const Settings fallbacks = [] {
    Settings all;
    for (const Parameter* p : parameters()) all.set(Key(p->number), p->fallback);
    return all;
  }();
  Settings settings = fallbacks;
  if (preset.cells.empty()) return settings;
  for (const std::string_view cell : split_at(preset.cells, ',')) {
    const size_t equals = cell.find('=');
    const Parameter* p = find_parameter(cell.substr(0, equals));
    if (!p) throw std::logic_error("unknown key in methods.toml: " + std::string(cell));
    // A later cell replaces an earlier one.
    settings.set(Key(p->number), canonical_value(*p, cell.substr(equals + 1)));
  }
  return settings;
}

const std::vector<Source>& sources() { return methods().sources; }

std::vector<const Note*> all_notes() {
  std::vector<const Note*> all;
  for (const Note& note : methods().notes) all.push_back(&note);
  std::ranges::sort(all, {}, [](const Note* note) {
    return std::tuple(place_of(*note), note->of, note->source, note->point);
  });
  return all;
}

std::vector<const Note*> notes_of(std::string_view of) {
  std::vector<const Note*> found = all_notes();
  std::erase_if(found, [&](const Note* note) { return note->of != of; });
  return found;
}

std::vector<const Source*> sources_named(std::string_view text) {
  std::vector<const Source*> found;
  for (const Source& source : sources())
    for (size_t at = text.find(source.name); at != text.npos; at = text.find(source.name, at + 1))
      if (stands_at(text, at, source.name) && (found.empty() || found.back() != &source))
        found.push_back(&source);
  return found;
}

std::string with_links(std::string_view text) {
  std::string linked;
  for (size_t at = 0; at < text.size();) {
    const auto here = std::ranges::find_if(
        sources(), [&](const Source& source) { return stands_at(text, at, source.name); });
    if (here == sources().end()) {
      linked += text[at++];
      continue;
    }
    constexpr std::string_view kCode = " repository";
    const bool code = !here->code.empty() && stands_at(text, at, here->name + std::string(kCode));
    const std::string name = here->name + (code ? std::string(kCode) : "");
    const std::string address = code ? here->code : address_of(*here);
    linked += address.empty() ? name : "[" + name + "](" + address + ")";
    at += name.size();
  }
  return linked;
}

std::string bibtex_key(const Source& source) {
  std::string key;
  for (const char c : source.name)
    if (std::isalnum(static_cast<unsigned char>(c)) != 0)
      key += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return key;
}

std::string bibtex(const Source& source) {
  std::string text = "@misc{" + bibtex_key(source);
  const auto field = [&](const char* name, const std::string& value) {
    if (!value.empty()) text += std::string(",\n  ") + name + " = {" + value + "}";
  };
  // Capitals stay as they are in every style.
  field("title", "{" + (source.title.empty() ? source.name : source.title) + "}");
  field("author", source.authors);
  field("year", source.year);
  const std::string address = address_of(source);
  if (address != source.paper) {
    field("eprint", source.paper);
    field("archivePrefix", "arXiv");
  }
  field("url", address.empty() ? source.code : address);
  if (source.title.empty())
    field("note", "kvsim knows the address alone: title and authors are there");
  return text + "\n}\n";
}

Record Record::parse(std::string_view text) {
  if (const std::string press = of_press(text); !press.empty()) return parse(press);
  const auto parts = split_at(text, ',');
  const bool function = parts[0].starts_with(kFunction);
  const Preset& preset = preset_named(function ? kScored : parts[0]);
  Record record{preset.name, preset.variant, preset_settings(preset)};
  const Settings original = record.settings;
  std::set<std::string> typed;
  if (function) {
    record.settings.set(kScores, std::string(parts[0]));
    typed.insert(kScores);
  }
  for (size_t at = 1; at < parts.size(); ++at) {
    const size_t equals = parts[at].find('=');
    const std::string key(parts[at].substr(0, equals));
    if (equals == std::string_view::npos)
      usage_error({"not a change of a record", "policy " + std::string(text),
                   key.empty() ? "nothing between two commas" : key, "key=value"});
    const Parameter* parameter = find_parameter(key);
    if (!parameter)
      usage_error({"unknown key", "policy " + std::string(text), key,
                   "a key of `kvsim policies " + preset.name + "`", did_you_mean(key, all_keys())});
    record.settings.set(Key(parameter->number),
                        canonical_value(*parameter, parts[at].substr(equals + 1)));
    typed.insert(key);
  }
  if (per_query_head(record.settings) && !typed.contains("group"))
    record.settings.set("group", "none");  // a query head has no group
  if (typed.contains("merge") && !typed.contains("votes"))
    record.settings.set("votes", usual_votes(record.settings));
  check_record(std::string(text), original, typed, record.settings);
  return record;
}

std::string Record::canonical() const {
  const Preset& row = *find_preset(preset, variant);
  const Settings original = preset_settings(row);
  const std::string& scores = settings.text(kScores);
  const bool function = preset == kScored && scores.starts_with(kFunction);
  std::string text = function ? scores : preset_title(row);
  for (const Parameter* p : parameters()) {
    const std::string& value = settings.text(Key(p->number));
    const bool implied = (p->key == "group" && per_query_head(settings) &&
                          !per_query_head(original)) ||
                         (p->key == "votes" && value == usual_votes(settings)) ||
                         (function && p->key == kScores);
    if (value != original.text(Key(p->number)) && !implied) text += "," + p->key + "=" + value;
  }
  return text;
}

Budget Budget::parse(std::string_view text) {
  Budget budget;
  const auto amount = Decimal::parse(text);
  const bool fraction = text.find_first_of(".%") != std::string_view::npos;
  const bool integer = !text.empty() &&
                       text.find_first_not_of("0123456789") == std::string_view::npos;
  const bool ok = amount && (fraction ? amount->value() > 0 && amount->value() <= 1
                                      : integer && amount->value() >= 1);
  if (!ok)
    usage_error({"bad budget", "--budget", std::string(text),
                 "a ratio in (0, 1] with '.' or '%', or a count >= 1",
                 "1.0 keeps everything, 1 keeps one entry"});
  budget.is_ratio = fraction;
  budget.amount = *amount;
  budget.label = amount->text();
  if (fraction && budget.label.find('.') == std::string::npos) budget.label += ".0";
  return budget;
}

int64_t Budget::entries(int64_t n) const {
  return is_ratio ? amount.floor_times(n) : std::min(amount.floor_times(1), n);
}

double Budget::ratio(int64_t n) const {
  return is_ratio ? amount.value() : static_cast<double>(entries(n)) / static_cast<double>(n);
}

double budget_ratio(const Budget& budget, const std::vector<Record>& records, int64_t n) {
  const bool fills_up = std::ranges::any_of(
      records, [](const Record& record) { return chosen<Schedule>(record.settings).decodes(); });
  if (budget.is_ratio || !fills_up) return budget.ratio(n);
  return static_cast<double>(budget.amount.floor_times(1)) / static_cast<double>(n);
}

}  // namespace kvsim
