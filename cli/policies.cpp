#include <fmt/format.h>

#include <boost/algorithm/string.hpp>
#include <nlohmann/json.hpp>

#include "cli/command.hpp"
#include "io/side_files.hpp"
#include "sim/policy/policy_run.hpp"
#include "sim/policy/presets.hpp"
#include "sim/policy/record.hpp"
#include "sim/stages/stages.hpp"

namespace kvsim::cli::policies_command {
namespace {

using Json = nlohmann::ordered_json;

std::string or_dash(const std::string& text) { return text.empty() ? "-" : text; }

/// The kind that the settings choose for a stage, or null where the record does not use the stage.
const KindInfo* chosen_kind(const Settings& settings, const std::set<std::string>& used,
                            const std::string& stage) {
  if (!used.contains(stage)) return nullptr;
  for (const KindInfo* kind : kinds_of_stage(stage))
    if (kind->name == settings.text(stage)) return kind;
  return nullptr;
}

std::vector<std::string> stages() {
  std::vector<std::string> names;
  for (const Parameter* p : parameters())
    if (p->type == ValueType::kind) names.push_back(p->key);
  return names;
}

/// Needs of a chosen kind; a probe as a capture makes it.
std::string need_of(const Settings& settings, const std::string& stage, const KindInfo& kind) {
  const bool of_probe = (stage == "queries" && chosen<Queries>(settings).of_probe()) ||
                        (stage == "join" && chosen<Join>(settings).joins());
  return of_probe ? "a probe " + probe_spec(settings) : kind.needs;
}

/// Needs of the chosen kinds from a trace beyond keys, without repetitions, in order of stages.
std::vector<std::string> needs_of(const Settings& settings) {
  const std::set<std::string> used = used_keys(settings);
  std::vector<std::string> needs;
  for (const std::string& stage : stages()) {
    const KindInfo* kind = chosen_kind(settings, used, stage);
    if (!kind || kind->needs.empty()) continue;
    const std::string need = need_of(settings, stage, *kind);
    if (!contains(needs, need)) needs.push_back(need);
  }
  if (moves_positions(settings)) needs.push_back("rope/inv_freq");
  return needs;
}

std::string joined(const std::vector<std::string>& parts) {
  return fmt::format("{}", fmt::join(parts, "; "));
}

// ---- notes ------------------------------------------------------------------------------------

/// Of the preset, and of the kinds and keys that the record uses, in the order of stages.
std::vector<const Note*> notes_of_record(const std::string& title, const Settings& settings) {
  const std::set<std::string> used = used_keys(settings);
  std::vector<const Note*> found;
  for (const Note* note : all_notes()) {
    const size_t equals = note->of.find('=');
    const std::string key = note->of.substr(0, equals);
    const bool chosen = equals == std::string::npos ||
                        settings.text(key) == note->of.substr(equals + 1);
    if (note->of == title || (used.contains(key) && chosen)) found.push_back(note);
  }
  return found;
}

/// Each under the kind, key or preset that it is about, broken at blanks.
void print_notes(const std::vector<const Note*>& notes) {
  constexpr size_t kWidth = 98;
  if (!notes.empty()) fmt::print("\nnotes: how open places of papers and code are read\n");
  for (const Note* note : notes) {
    fmt::print("  {} ({})\n", note->of, note->source);
    std::string line = "   ";
    std::string rest = fmt::format("{}: {} ", note->point, note->reading);
    for (size_t blank = rest.find(' '); blank != std::string::npos; blank = rest.find(' ')) {
      if (line.size() + 1 + blank > kWidth) {
        fmt::print("{}\n", line);
        line = "   ";
      }
      line += " " + rest.substr(0, blank);
      rest.erase(0, blank + 1);
    }
    fmt::print("{}\n", line);
  }
}

Json notes_json(const std::vector<const Note*>& notes) {
  Json list = Json::array();
  for (const Note* note : notes)
    list.push_back({{"of", note->of},
                    {"source", note->source},
                    {"point", note->point},
                    {"reading", note->reading}});
  return list;
}

// ---- one preset -------------------------------------------------------------------------------

/// In the order of ValueType.
constexpr const char* kTypes[] = {"count", "real", "flag", "word", "kind", "share", "text"};

/// The words that a key takes; none for numbers and texts.
std::vector<std::string> values_of(const Parameter& p) {
  if (p.type == ValueType::flag) return {"no", "yes"};
  std::vector<std::string> values = p.words;
  if (p.type == ValueType::kind)
    for (const KindInfo* kind : kinds_of_stage(p.key)) values.push_back(kind->name);
  return values;
}

/// Values that a key takes, for programs; docs/cli.md lists the fields.
Json parameter_json(const Parameter& p) {
  Json row = {{"key", p.key},         {"default", p.fallback},
              {"range", p.range()},   {"unit", p.unit},
              {"meaning", p.meaning}, {"type", kTypes[static_cast<size_t>(p.type)]}};
  if (const auto values = values_of(p); !values.empty()) row["values"] = values;
  const bool number = p.type == ValueType::count || p.type == ValueType::real ||
                      p.type == ValueType::share;
  if (number) {
    row["low"] = p.low;
    row["high"] = std::isfinite(p.high) ? Json(p.high) : Json();
    row["low_open"] = p.low_open;
    row["high_open"] = p.high_open;
    row["odd"] = p.odd;
  }
  row["none"] = p.may_be_none;
  const auto use = key_uses().find(p.key);
  row["always"] = use != key_uses().end() && use->second.always;
  row["only_with"] = Json::object();
  if (use != key_uses().end())
    for (const auto& [stage, kinds] : use->second.only_with) row["only_with"][stage] = kinds;
  return row;
}

Json kind_json(const KindInfo& kind) {
  return {{"stage", kind.stage},
          {"kind", kind.name},
          {"meaning", kind.meaning},
          {"source", kind.source},
          {"keys", std::vector<std::string>(kind.keys)},
          {"needs", kind.needs},
          {"only_in_presets", find_kind(kind.stage, kind.name).looks_ahead()},
          {"notes", notes_json(notes_of(kind.stage + "=" + kind.name))}};
}

Json preset_json(const Preset& preset, const Settings& settings) {
  return {{"preset", preset_title(preset)},
          {"summary", preset.summary},
          {"source", preset.source},
          {"schedule", settings.text("schedule")},
          {"needs", needs_of(settings)}};
}

std::vector<const Parameter*> keys_of(const Settings& settings) {
  const std::set<std::string> used = used_keys(settings);
  std::vector<const Parameter*> keys;
  for (const Parameter* p : parameters())
    if (used.contains(p->key)) keys.push_back(p);
  return keys;
}

Json record_json(const Preset& preset, const Settings& settings) {
  Json document = preset_json(preset, settings);
  document["canonical"] = Record{preset.name, preset.variant, settings}.canonical();
  document["record"] = Json::array();
  for (const Parameter* p : keys_of(settings)) {
    Json row = parameter_json(*p);
    row["value"] = settings.text(p->key);
    document["record"].push_back(std::move(row));
  }
  document["notes"] = notes_json(notes_of_record(preset_title(preset), settings));
  return document;
}

/// Text in a column at least `width` wide; longer text still keeps apart from the next column.
std::string cell(const std::string& text, size_t width) {
  return fmt::format("{:<{}}  ", text, width);
}

void print_record(const Preset& preset, const std::string& title, const Settings& settings) {
  fmt::print("{}: {}\n", title, preset.summary);
  fmt::print("source    {}\n", or_dash(preset.source));
  fmt::print("schedule  {}\n", settings.text("schedule"));
  const std::string needs = joined(needs_of(settings));
  fmt::print("needs     {}\n", needs.empty() ? "keys only" : needs);
  std::string variants;
  for (const Preset& other : presets())
    if (other.name == preset.name && other.variant != preset.variant)
      variants += (variants.empty() ? "" : ", ") + preset_title(other);
  if (!variants.empty()) fmt::print("see also  {}\n", variants);
  fmt::print("\n{}{}{}{}\n", cell("key", 14), cell("value", 19), cell("default", 11), "meaning");
  for (const Parameter* p : keys_of(settings)) {
    const std::string unit = p->unit == "1" ? "" : " [" + p->unit + "]";
    fmt::print("{}{}{}{}{}\n", cell(p->key, 14), cell(settings.text(p->key), 19),
               cell(p->fallback, 11), p->meaning, unit);
    fmt::print("{:14}  {}\n", "", p->range());
  }
  print_notes(notes_of_record(preset_title(preset), settings));
}

// ---- stages, kinds and keys -------------------------------------------------------------------

void print_kind(const KindInfo& kind) {
  fmt::print("{}={}: {}\n", kind.stage, kind.name, kind.meaning);
  if (!kind.source.empty()) fmt::print("  source  {}\n", kind.source);
  if (!kind.needs.empty()) fmt::print("  needs   {}\n", kind.needs);
  for (const std::string& key : kind.keys) {
    const Parameter* p = find_parameter(key);
    fmt::print("  {}  {} (default {}; {})\n", key, p->meaning, p->fallback, p->range());
  }
  print_notes(notes_of(kind.stage + "=" + kind.name));
}

void print_key(const Parameter& p) {
  fmt::print("{}: {}\n", p.key, p.meaning);
  fmt::print("  default  {}\n  unit     {}\n  range    {}\n", p.fallback, p.unit, p.range());
  std::string users;
  for (const KindInfo* kind : all_kinds())
    if (contains(kind->keys, p.key))
      users += (users.empty() ? "" : ", ") + kind->stage + "=" + kind->name;
  if (!users.empty()) fmt::print("  used by  {}\n", users);
  print_notes(notes_of(p.key));
}

/// Everything a name may mean: presets, kinds of any stage, a stage, a key.
struct Meanings {
  const Preset* preset = nullptr;
  Settings settings;                   // of the preset, with its changes
  std::vector<const KindInfo*> kinds;  // of this name, or of this stage
  const Parameter* key = nullptr;
  bool empty() const { return !preset && kinds.empty() && !key; }
};

Meanings meanings_of(const std::string& name) {
  Meanings found;
  if (name.find(',') != std::string::npos || is_function(name)) {  // a record with changes
    const Record record = Record::parse(name);
    found.preset = find_preset(record.preset, record.variant);
    found.settings = record.settings;
    return found;
  }
  for (const Preset& preset : presets())
    if (preset_title(preset) == name) found.preset = &preset;
  if (found.preset) found.settings = preset_settings(*found.preset);
  for (const KindInfo* kind : all_kinds())
    if (kind->name == name || kind->stage + "=" + kind->name == name) found.kinds.push_back(kind);
  found.key = find_parameter(name);
  if (found.key && found.key->type == ValueType::kind)
    for (const KindInfo* kind : kinds_of_stage(name)) found.kinds.push_back(kind);
  return found;
}

[[noreturn]] void unknown(const std::string& name) {
  // KEY=VALUE: a value that there is not says itself which there are.
  if (const size_t equals = name.find('='); equals != std::string::npos)
    if (const Parameter* key = find_parameter(name.substr(0, equals)))
      canonical_value(*key, name.substr(equals + 1));
  const size_t colon = name.find(':');
  std::set<std::string> names;
  for (const Preset& preset : presets())
    names.insert(colon == std::string::npos ? preset.name : preset_title(preset));
  if (colon == std::string::npos) {
    for (const KindInfo* kind : all_kinds()) names.insert(kind->name);
    for (const Parameter* p : parameters()) names.insert(p->key);
  }
  usage_error({"no such preset, stage, kind or key", "policies", name,
               "a name that `kvsim policies` lists",
               did_you_mean(name, {names.begin(), names.end()})});
}

/// Sources of a preset, of the kinds that it chooses, or of a kind; each once, in order of names.
std::vector<const Source*> sources_of(const Meanings& found) {
  std::string text;
  if (found.preset) {
    const Preset* bare = find_preset(found.preset->name, "");
    text += found.preset->source + "; " + (bare ? bare->source : "");
    const std::set<std::string> used = used_keys(found.settings);
    // A preset without a source, such as full, owes the kinds of its row to nobody.
    const Settings row = preset_settings(*found.preset);
    for (const std::string& stage : stages()) {
      const KindInfo* kind = chosen_kind(found.settings, used, stage);
      const std::string& plain = found.preset->source.empty() ? row.text(stage)
                                                              : find_parameter(stage)->fallback;
      if (kind && kind->name != plain) text += "; " + kind->source;
    }
  }
  for (const KindInfo* kind : found.kinds) text += "; " + kind->source;
  std::vector<const Source*> named = sources_named(text);
  for (const Source& source : sources())  // e.g. vatp, whose cells are those of another paper
    if (found.preset && bibtex_key(source) == found.preset->name && !contains(named, &source))
      named.push_back(&source);
  return named;
}

int print_citations(const std::string& name) {
  if (name.empty()) {
    for (const Source& source : sources()) fmt::print("{}", bibtex(source));
    return kDone;
  }
  const Meanings found = meanings_of(name);
  if (found.empty()) unknown(name);
  const std::vector<const Source*> named = sources_of(found);
  if (named.empty())
    usage_error({"nothing to cite", "policies", name,
                 "a preset, a stage or a kind that comes from a paper or a repository"});
  for (const Source* source : named) fmt::print("{}", bibtex(*source));
  return kDone;
}

void print_meanings(const std::string& name, const Meanings& found) {
  bool first = true;
  const auto gap = [&] {
    if (!first) fmt::print("\n");
    first = false;
  };
  if (found.preset) {
    gap();
    print_record(*found.preset, name, found.settings);
  }
  if (found.key) {
    gap();
    print_key(*found.key);
  }
  for (const KindInfo* kind : found.kinds) {
    gap();
    print_kind(*kind);
  }
}

Json meanings_json(const Meanings& found) {
  Json document = Json::object();
  if (found.preset) document["preset"] = record_json(*found.preset, found.settings);
  if (found.key) {
    document["key"] = parameter_json(*found.key);
    document["key"]["notes"] = notes_json(notes_of(found.key->key));
  }
  for (const KindInfo* kind : found.kinds) document["kinds"].push_back(kind_json(*kind));
  return document;
}

// ---- everything -------------------------------------------------------------------------------

void print_all() {
  size_t title = 0, summary = 0, source = 0;
  for (const Preset& preset : presets()) {
    title = std::max(title, preset_title(preset).size());
    summary = std::max(summary, preset.summary.size());
    source = std::max(source, preset.source.size());
  }
  fmt::print("{}{}{}schedule\n", cell("preset", title), cell("what it keeps", summary),
             cell("source", source));
  for (const Preset& preset : presets())
    fmt::print("{}{}{}{}\n", cell(preset_title(preset), title), cell(preset.summary, summary),
               cell(or_dash(preset.source), source), preset_settings(preset).text("schedule"));
  fmt::print("\nstages and their kinds\n");
  for (const std::string& stage : stages()) {
    std::string kinds;
    for (const KindInfo* kind : kinds_of_stage(stage))
      kinds += (kinds.empty() ? "" : " ") + kind->name;
    fmt::print("  {}{}\n", cell(stage, 10), kinds);
  }
  fmt::print("\nother keys\n ");
  for (const Parameter* p : parameters())
    if (p->type != ValueType::kind) fmt::print(" {}", p->key);
  fmt::print("\n\n`kvsim policies NAME` explains a preset, a stage, a kind or a key.\n");
}

void print_markdown() {
  fmt::print(
      "| preset | cells | what it keeps | source | needs beyond keys |\n|---|---|---|---|---|\n");
  const auto escaped = [](const std::string& text) {
    return boost::replace_all_copy(text, "|", "\\|");
  };
  for (const Preset& preset : presets()) {
    const Settings settings = preset_settings(preset);
    std::string cells;
    for (const Parameter* p : parameters())
      if (settings.text(p->key) != p->fallback)
        cells += fmt::format("{}`{}={}`", cells.empty() ? "" : " ", p->key, settings.text(p->key));
    fmt::print("| `{}` | {} | {} | {} | {} |\n", preset_title(preset), cells,
               escaped(preset.summary), escaped(with_links(preset.source)),
               escaped(joined(needs_of(settings))));
  }
}

Json all_json() {
  Json document = {{"presets", Json::array()}, {"stages", Json::array()}, {"keys", Json::array()}};
  for (const Preset& preset : presets())
    document["presets"].push_back(preset_json(preset, preset_settings(preset)));
  for (const std::string& stage : stages()) {
    Json kinds = Json::array();
    for (const KindInfo* kind : kinds_of_stage(stage)) kinds.push_back(kind_json(*kind));
    document["stages"].push_back({{"stage", stage}, {"kinds", std::move(kinds)}});
  }
  for (const Parameter* p : parameters()) document["keys"].push_back(parameter_json(*p));
  return document;
}

int run(const Values& values) {
  const std::string name = text(values, "name");
  const bool json = has(values, "json");
  if (has(values, "cite") && (json || has(values, "markdown")))
    usage_error({"--cite prints BibTeX", "policies", "", "no --json and no --markdown"});
  if (has(values, "cite")) return print_citations(name);
  if (has(values, "markdown") && (json || !name.empty()))
    usage_error({"--markdown prints the whole table", "policies", "", "no NAME and no --json"});
  if (has(values, "markdown")) {
    print_markdown();
  } else if (has(values, "name")) {
    const Meanings found = meanings_of(name);
    if (found.empty()) unknown(name);
    if (json) {
      fmt::print("{}\n", meanings_json(found).dump(2));
    } else {
      print_meanings(name, found);
    }
  } else if (json) {
    fmt::print("{}\n", all_json().dump(2));
  } else {
    print_all();
  }
  return kDone;
}

const bool registered = register_command(
    {.name = "policies",
     .summary = "presets and stages with every parameter, what they need, and the paper",
     .arguments = {{.name = "name",
                    .meaning =
                        "a preset (snapkv:official), a record (snapkv,kernel=7), a stage, a\n"
                        "        kind or a key; without it: all of them",
                    .required = false}},
     .options = {{"markdown", "", "the table of presets as in docs/presets.md"},
                 {"cite", "", "BibTeX of what NAME comes from, or of every source"},
                 {"json"}},
     .examples = {"kvsim policies defensivekv", "kvsim policies defensivekv --cite"},
     .run = run});

}  // namespace
}  // namespace kvsim::cli::policies_command
