#pragma once
#include <map>
#include <memory>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "sim/stages/settings.hpp"

namespace kvsim {

/// Names of keys, written apart by blanks: "kernel recent".
struct KeyNames : std::vector<std::string> {
  KeyNames(const char* names) : vector(split_words(names)) {}
  KeyNames(std::vector<std::string> names) : vector(std::move(names)) {}
};

/// Description of a kind of a stage; printed by `kvsim policies` and used to check records.
struct KindInfo {
  std::string stage;       ///< the record key that selects it, e.g. "aggregate"
  std::string name;        ///< the value, e.g. "mean"
  std::string meaning;     ///< one line
  std::string source;      ///< paper and equation, or repository
  KeyNames keys = "";      ///< parameters that this kind reads
  std::string needs = "";  ///< what it needs from a trace beyond keys, in words
  /// Why tests/reference has no twin of it; empty where it has one, or where no kind of its stage
  /// has.
  std::string no_reference = "";
  std::string test_with = "";  ///< cells that tests give it beside its name: "fair_spans=head+tail"
};

/// Base of every stage kind.
class Kind {
 public:
  explicit Kind(KindInfo info) : info_(std::move(info)) {}
  virtual ~Kind() = default;
  Kind(const Kind&) = delete;
  Kind& operator=(const Kind&) = delete;
  const KindInfo& info() const { return info_; }
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

/// Every kind of a stage, in order of name; and every kind of every stage.
std::vector<const KindInfo*> kinds_of_stage(std::string_view stage);
std::vector<const KindInfo*> all_kinds();

/// Adds a kind to the list of all kinds; a second kind of the same stage and name throws.
void announce_kind(const Kind& kind);
/// The kind of that stage and name; throws when there is none.
const Kind& find_kind(std::string_view stage, std::string_view name);

/// The kinds of one stage, by name. A kind registers itself from its own file:
///     const Register<Aggregate, MeanAggregate> registered;
/// so that a new kind is one new file and no list is edited.
template <class Stage>
class Kinds {
 public:
  static void add(std::unique_ptr<Stage> kind) {
    announce_kind(*kind);
    table().emplace(kind->info().name, std::move(kind));
  }
  static const Stage& find(const std::string& name) {
    const auto found = table().find(name);
    if (found == table().end()) throw std::logic_error("no such kind: " + name);
    return *found->second;
  }
  /// The key that selects one of them.
  static Key key() { return table().begin()->second->info().stage; }

 private:
  static std::map<std::string, std::unique_ptr<Stage>>& table() {
    static std::map<std::string, std::unique_ptr<Stage>> kinds;
    return kinds;
  }
};

/// The kind of a stage that a record chose: chosen<Aggregate>(settings).
template <class Stage>
const Stage& chosen(const Settings& settings) {
  static const Key key = Kinds<Stage>::key();
  return static_cast<const Stage&>(settings.kind(key));
}

template <class Stage, class Implementation>
struct Register {
  Register() { Kinds<Stage>::add(std::make_unique<Implementation>()); }
};

}  // namespace kvsim
