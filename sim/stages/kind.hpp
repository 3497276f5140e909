#pragma once
#include <source_location>

#include "sim/core/decimal.hpp"
#include "sim/core/layer_trace.hpp"

namespace kvsim {

class Kind;

/// "a b  c" -> {a, b, c}.
std::vector<std::string> split_words(const char* text);
/// "a+b" -> {a, b}; empty parts are parts.
std::vector<std::string_view> split_at(std::string_view text, char separator);

/// A declared parameter by its number, which is what values are read by while a policy runs. A
/// declaration is one (parameter.hpp); a key's name finds it, which takes a look-up of text.
class Key {
 public:
  explicit Key(size_t number) : number_(number) {}
  Key(std::string_view name);  ///< throws when no such key is declared
  Key(const char* name) : Key(std::string_view(name)) {}
  Key(const std::string& name) : Key(std::string_view(name)) {}
  size_t number() const { return number_; }

 private:
  size_t number_;
};

/// One policy record, compiled: every value is parsed, and every kind found, when it is set. Texts
/// are canonical, their type and range checked against the parameter's declaration (parameter.hpp).
/// To read a key that was never set is a programmer's mistake and throws.
class Settings {
 public:
  void set(Key key, std::string text);
  /// Values of these keys alone: code that is given them can read no others.
  Settings only(const std::set<std::string>& keys) const;
  /// All texts, by key.
  std::map<std::string, std::string> values() const;

  const std::string& text(Key key) const { return at(key).text; }
  bool is(Key key, std::string_view value) const { return text(key) == value; }
  bool is_none(Key key) const { return at(key).is_none; }
  bool flag(Key key) const { return at(key).whole != 0; }
  int64_t count(Key key) const { return at(key).whole; }
  double real(Key key) const { return at(key).real; }
  Decimal decimal(Key key) const { return at(key).decimal; }
  /// A word as an enumeration whose values stand in the order of the declared words.
  template <class Word>
  Word word(Key key) const {
    return static_cast<Word>(at(key).whole);
  }
  /// An integer is a count; a number with a decimal point is that fraction of `whole`, floored.
  int64_t share(Key key, int64_t whole) const;
  bool is_fraction(Key key) const { return at(key).is_fraction; }
  /// "a+b+c" -> {a, b, c}; "none" -> {}.
  std::vector<std::string> list(Key key) const;
  const Kind& kind(Key key) const { return *at(key).kind; }

 private:
  struct Value {
    bool is_set = false;
    bool is_none = false;
    bool is_fraction = false;  ///< a share with a decimal point
    std::string text;
    int64_t whole = 0;  ///< a count, a flag, or the number of a word among its words
    double real = 0;
    Decimal decimal;
    const Kind* kind = nullptr;
  };
  const Value& at(Key key) const;

  std::vector<Value> values_;  // by number of the key
};

enum class ValueType { count, real, flag, word, kind, share, text };

struct KindCondition {
  const char* stage;
  bool (*fits)(const Kind&);
};

/// One key of a policy record, declared once, beside the code that reads it. The declaration
/// parses records, checks ranges, prints `kvsim policies` and is recorded in the results.
struct Parameter {
  std::string key;
  ValueType type = ValueType::text;
  std::string fallback;  ///< default value
  std::string meaning;   ///< one line
  std::string unit = "1";
  double low = 0;  ///< least value of count, real, share
  double high = std::numeric_limits<double>::infinity();
  bool low_open = false;  ///< low itself is not allowed
  bool high_open = false;
  bool odd = false;                                  ///< counts only
  std::vector<std::string> words = {};               ///< values of type word
  std::string (*fault)(std::string_view) = nullptr;  ///< what is wrong with a text, or ""
  std::vector<std::string> (*names)() = nullptr;  ///< all values of a text, where they are listed
  bool may_be_none = false;                       ///< `none` stands for "not set"
  /// Records read it: all of them, if not only those with a kind that names it; and of these those
  /// alone whose kinds fit.
  bool always = false;
  std::vector<KindCondition> only_with = {};
  bool is_file = false;  ///< the path of a file that the record needs
  std::vector<std::string> test_values = {};
  bool (*nests)(const Parameter&, const Settings&) = nullptr;
  size_t stage = 0;   ///< place of its stage among all, in the order in which a policy runs them
  size_t number = 0;  ///< of its Key

  std::string range() const;    ///< "[0, 1]", "odd, >= 1", "raw | recent"
  const char* section() const;  ///< of docs/policies.md, which describes it
};

/// Value of Parameter::nests.
bool nests_at_default(const Parameter& parameter, const Settings& settings);

// Notes of a declaration behind key, values, default and meaning.

/// Every record reads it, not only those with a kind that names it.
inline constexpr auto always = [](Parameter& p) { p.always = true; };
/// Do budgets nest, as far as this value is concerned (Kind::nests)? Where nothing is said, the
/// kinds that name the key have spoken for it; a key that no kind names does not let them nest.
/// A fraction of the budget never does.
constexpr auto lets_nest_if(bool (*nests)(const Parameter&, const Settings&)) {
  return [nests](Parameter& p) { p.nests = nests; };
}
inline constexpr auto lets_nest = [](Parameter& p) {
  p.nests = [](const Parameter&, const Settings&) { return true; };
};
/// Records whose kinds do not fit do not read it.
template <class... Conditions>
auto only_with(KindCondition first, Conditions... more) {
  return [=](Parameter& p) { p.only_with = {first, KindCondition(more)...}; };
}
/// Says what is wrong with a text, or "".
inline auto checked_by(std::string (*fault)(std::string_view)) {
  return [fault](Parameter& p) { p.fault = fault; };
}
/// A text is one of these names, which may be declared after it.
inline auto one_of(std::vector<std::string> (*names)()) {
  return [names](Parameter& p) { p.names = names; };
}
/// Values that tests try, apart by blanks, on prompts of 19 tokens or more with spans `head`,
/// `middle` and `tail`. Of words and flags they try all.
inline auto tested(const char* values) {
  return [values](Parameter& p) { p.test_values = split_words(values); };
}

/// Declares a parameter while the program starts; a key declared twice throws. Its value is read by
/// it: settings.real(ema_alpha). `values` says what the key takes: "raw | recent", "flag", "kind",
/// "file", "text UNIT"; or count, odd, number or share with a range and perhaps a unit, as in
/// "count >= 1 entries" and "number (0, 1]". " or none" at the end lets it be unset.
struct Declare : Key {
  /// The folder of the file that a declaration stands in is the stage of its key, which with the
  /// key says where it stands in canonical records.
  struct Name {
    Name(const char* text, std::source_location at = std::source_location::current())
        : key(text), file(at.file_name()) {}
    const char *key, *file;
  };
  template <class... Notes>
  Declare(Name name, std::string_view values, const char* fallback, const char* meaning,
          const Notes&... notes)
      : Declare([&] {
          Parameter parameter = read(name, values, fallback, meaning);
          (notes(parameter), ...);
          return parameter;
        }()) {}

 private:
  explicit Declare(Parameter parameter);
  static Parameter read(Name name, std::string_view values, const char* fallback,
                        const char* meaning);
};

const Parameter& parameter_of(Key key);
const Parameter* find_parameter(std::string_view key);
/// All declared parameters in canonical order.
std::vector<const Parameter*> parameters();

/// Canonical text of a typed value ("0.20" -> "0.2", "016" -> "16"); throws a usage error that
/// says what the key takes.
std::string canonical_value(const Parameter& parameter, std::string_view typed);

// Parameters that no single stage owns (policies.md 2).

namespace keys {
extern const Declare granularity, rounding, tie, skip_layers, positions;
extern const Declare order, sinks, recent, allocate_score;  // in the files of their stages
}  // namespace keys

// Words in the order of the declarations.
enum class Granularity { kv, query };
enum class Rounding { exact, kvpress };
enum class Tie { raw, recent };
enum class Positions { absolute, cache };
enum class AllocateScore { final_score, unweighted };

/// Query heads own the kept sets; else KV heads do.
inline bool per_query_head(const Settings& settings) {
  return settings.word<Granularity>(keys::granularity) == Granularity::query;
}
inline bool rounds_like_kvpress(const Settings& settings) {
  return settings.word<Rounding>(keys::rounding) == Rounding::kvpress;
}
inline bool ties_by_raw(const Settings& settings) {
  return settings.word<Tie>(keys::tie) == Tie::raw;
}
/// Kept keys are turned to where they stand in the cache.
inline bool moves_positions(const Settings& settings) {
  return settings.word<Positions>(keys::positions) == Positions::cache;
}

/// Fault of a list of span names and ranges a-b joined by '+', or "".
std::string span_list_fault(std::string_view text);

/// Ranges of a whitelist: names of the trace's spans, or half-open ranges a-b cut to [0, n).
/// A name that the trace does not have is bad data.
std::vector<Range> resolve_spans(const std::vector<std::string>& items,
                                 const std::vector<Span>& spans, int64_t entries);

/// Names of keys, written apart by blanks: "kernel recent".
struct KeyNames : std::vector<std::string> {
  KeyNames(const char* names) : vector(split_words(names)) {}
  KeyNames(std::vector<std::string> names) : vector(std::move(names)) {}
};

/// Description of a kind of a stage; printed by `kvsim policies` and used to check records.
struct KindInfo {
  std::string name;        ///< the value, e.g. "mean"
  std::string meaning;     ///< one line
  std::string source;      ///< paper and equation, or repository
  KeyNames keys = "";      ///< parameters that this kind reads
  std::string needs = "";  ///< what it needs from a trace beyond keys, in words
  /// Why tests/reference has no twin of it; empty where it has one, or where no kind of its stage
  /// has.
  std::string no_reference = "";
  std::string test_with = "";  ///< cells that tests give it beside its name: "fair_spans=head+tail"
  std::string stage = "";      ///< the record key that selects it, "aggregate": its base says it
};

/// Base of every stage kind.
class Kind {
 public:
  Kind(const char* stage, KindInfo info) : info_(std::move(info)) { info_.stage = stage; }
  virtual ~Kind() = default;
  Kind(const Kind&) = delete;
  Kind& operator=(const Kind&) = delete;
  const KindInfo& info() const { return info_; }
  /// The kind `none`: its stage leaves everything as it is.
  bool changes_nothing() const { return info_.name == "none"; }
  /// Looks at queries after the prompt. Only oracles may: a record cannot choose such a kind unless
  /// its preset has it.
  virtual bool looks_ahead() const { return false; }
  /// Means something for slots that come and go at every step (schedule=decode).
  virtual bool goes_on() const { return true; }
  /// Means something where every later step chooses a set of its own; a stage's default may stand
  /// there all the same.
  virtual bool at_each_step() const { return false; }
  /// Is what is kept at a budget part of what is kept at every larger one, whatever the trace, as
  /// far as this kind and the values of its keys are concerned? A stage whose kinds never see the
  /// budget says yes for all of them; where they do see it, a kind that says nothing says no.
  virtual bool nests(const Settings&) const { return false; }

 private:
  KindInfo info_;
};

/// Base of the kinds of a stage that never sees the budget, or chooses nothing.
struct NestingKind : Kind {
  using Kind::Kind;
  bool nests(const Settings&) const override { return true; }
};

/// Every kind of a stage, in order of name; and every kind of every stage.
std::vector<const KindInfo*> kinds_of_stage(std::string_view stage);
std::vector<const KindInfo*> all_kinds();

/// Adds a kind to the list of all kinds; a second kind of the same stage and name throws.
void add_kind(std::unique_ptr<const Kind> kind);
/// The kind of that stage and name; throws when there is none.
const Kind& find_kind(std::string_view stage, std::string_view name);

/// The kinds of one stage, by name. Kinds register themselves from their own file:
///     const Register<Aggregate, Sum, Mean> registered;
/// so that a new kind is one new file and no list is edited.
template <class Stage>
class Kinds {
 public:
  static void add(std::unique_ptr<Stage> kind) {
    stage() = kind->info().stage;
    add_kind(std::move(kind));
  }
  static const Stage& find(std::string_view name) {
    return static_cast<const Stage&>(find_kind(stage(), name));
  }
  /// The key that selects one of them.
  static Key key() { return stage(); }

 private:
  static std::string& stage() {
    static std::string name;
    return name;
  }
};

/// The kind of a stage that a record chose: chosen<Aggregate>(settings).
template <class Stage>
const Stage& chosen(const Settings& settings) {
  static const Key key = Kinds<Stage>::key();
  return static_cast<const Stage&>(settings.kind(key));
}

template <class Stage, class... Implementations>
struct Register {
  Register() { (Kinds<Stage>::add(std::make_unique<Implementations>()), ...); }
};

/// Adds the kind `none` of a stage whose class by itself leaves everything as it is.
template <class Stage>
struct RegisterNone {
  explicit RegisterNone(const char* meaning) {
    Kinds<Stage>::add(std::make_unique<Stage>(KindInfo{"none", meaning, ""}));
  }
};

/// Needs of a record beside the tensors of a layer: files that it names (`scores=`, `table=`) and
/// the texts of the tokens, read by whoever runs the record: stages never touch a file. Errors are
/// bad data, one line.
struct SideFiles {
  virtual ~SideFiles() = default;
  /// `layers/<l>/score` [owners][n] of the HDF5 file `path`.
  virtual Table<double> scores(const std::string& path, int layer, int64_t owners,
                               int64_t entries) const = 0;
  /// The text table `path`: one row of `columns` numbers per model layer.
  virtual Table<double> table(const std::string& path, int64_t rows, int64_t columns) const = 0;
  /// `tokens/text` of the trace, [N] or empty.
  virtual std::vector<std::string> token_text() const = 0;
};

/// A part of the prompt in which scoring and ranking run on their own: the whole prompt, or one
/// segment of a fair record (policies.md 8).
struct Segment {
  Range range;                     ///< its entries
  Range candidates;                ///< those that are scored
  int64_t window = 0;              ///< entries of its own window, [candidates.end, range.end)
  std::vector<int64_t> positions;  ///< J: positions of the observing queries, ascending
  /// Queries of J that stand in earlier and later segments: they see nothing here, but count in M.
  int64_t rows_before = 0;
  int64_t rows_after = 0;
  /// Tokens of a probe that observe, too, after all of J: ascending. The whole prompt is theirs, so
  /// that every segment has all of them.
  int probe = -1;  ///< its number; -1: none
  std::vector<int64_t> probe_tokens;

  int64_t prompt_rows() const {  ///< queries of the trace itself
    return rows_before + std::ssize(positions) + rows_after;
  }
  int64_t probe_rows() const { return std::ssize(probe_tokens); }
  int64_t rows() const { return prompt_rows() + probe_rows(); }  ///< M
  /// Queries that see something here.
  int64_t own_rows() const { return std::ssize(positions) + probe_rows(); }
};

/// Candidates of one layer in the order of policies.md 10: score, then (tie=raw) the score without
/// its prior, then the more recent.
struct Ranking {
  const Table<double>* score = nullptr;      ///< [owners][n]
  const Table<double>* raw = nullptr;        ///< [owners][n], or null
  std::vector<std::vector<uint32_t>> order;  ///< per owner, best first
};

/// Scores of one layer for one record (at one budget where they depend on it). "Owners" are KV
/// heads, or query heads with granularity=query. Columns are prompt entries 0..n-1; those outside
/// the segments' candidates hold 0 and are never ranked.
struct ScoredLayer {
  int layer = 0;
  std::vector<Segment> segments;
  std::vector<uint8_t> candidate;    ///< [n] 1: takes part in the ranking
  Table<double> score;               ///< [owners][n] final score, higher = keep
  Table<double> raw;                 ///< [owners][n] score with prior=none; empty: no tie key
  Table<double> unweighted;          ///< [owners][n] score before `weight`; empty unless needed
  Table<double> unweighted_raw;      ///< the same with prior=none; empty: no tie key
  Table<double> deviation;           ///< [owners][n] standard deviation over queries, std_keep
  Table<double> mass;                ///< [owners][n] mean attention of the head, stage1=mass
  double mass_before_window = 0;     ///< attention on the last m candidates, layer mean
  double mass_of_window = 0;         ///< attention on the window itself, layer mean
  std::vector<uint8_t> token_class;  ///< [n] TokenClass; empty unless stage1 or allocate asks
  std::vector<double> statistic;     ///< what `allocate` asked to be observed of this layer
  double stream_norm = 0;            ///< of the residual stream that enters; 0: the trace has none
  /// By tie=raw or not, once they are made; they point into the tables of this object.
  std::map<bool, Ranking> ranking, ranking_unweighted;

  int64_t entries() const { return std::ssize(candidate); }
  int64_t owners() const { return score.rows(); }
};

}  // namespace kvsim
