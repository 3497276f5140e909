#include "sim/stages/indicator/indicator.hpp"
#include "sim/stages/stages.hpp"

namespace kvsim::stages::join::join {

constexpr KindCondition prompt_observes = {"queries",
                                           [](const Kind& kind) {
  const auto& queries = dynamic_cast<const Queries&>(kind);
  return queries.observes() && !queries.looks_ahead() && !queries.of_probe();
                                           }};
const Declare join("join", "kind", "none",
                   "how a probe's queries observe beside those of `queries`",
                   only_with(scores_rows_if, prompt_observes));

/// Base of the kinds that need a probe.
struct Both : Join {
  Both(const char* name, const char* meaning, std::vector<std::string> keys)
      : Join({name, meaning, "kvsim", with_probe(std::move(keys)), "a probe of that name"}) {}
  bool goes_on() const override { return false; }

 private:
  static std::vector<std::string> with_probe(std::vector<std::string> keys) {
    keys.insert(keys.end(), {"probe", "probe_queries", "probe_first"});
    return keys;
  }
};

struct PowerMeanOfBoth : Both {
  PowerMeanOfBoth()
      : Both("power-mean", "power mean of both aggregates, each below 0 as 0", {"power"}) {}
  double join(const Settings& settings, double a, double b) const override {
    const double p = settings.real(keys::power);
    return std::pow((std::pow(std::max(a, 0.0), p) + std::pow(std::max(b, 0.0), p)) / 2, 1 / p);
  }
};

struct LargerOfBoth : Both {
  LargerOfBoth() : Both("max", "the larger of both aggregates", {}) {}
  double join(const Settings&, double a, double b) const override { return std::max(a, b); }
};
const RegisterNone<Join> none("they do not");
const Register<Join, PowerMeanOfBoth, LargerOfBoth> registered;

struct Joined : Aggregation {
  Joined(const Settings& settings, std::unique_ptr<Aggregation> prompt,
         std::unique_ptr<Aggregation> probe, int64_t prompt_rows)
      : settings_(settings), join_(chosen<Join>(settings)), prompt_(std::move(prompt)),
        probe_(std::move(probe)), rows_(prompt_rows) {}
  void add(int64_t j, int64_t first, std::span<const double> part) override {
    j < rows_ ? prompt_->add(j, first, part) : probe_->add(j - rows_, first, part);
  }
  void see(int64_t j, int64_t visible) override {
    j < rows_ ? prompt_->see(j, visible) : probe_->see(j - rows_, visible);
  }
  void finish(std::span<double> out) override {
    std::vector<double> of_probe(out.size(), 0.0);
    prompt_->finish(out);
    probe_->finish(of_probe);
    for (size_t c = 0; c < out.size(); ++c) out[c] = join_.join(settings_, out[c], of_probe[c]);
  }

 private:
  const Settings& settings_;
  const Join& join_;
  std::unique_ptr<Aggregation> prompt_, probe_;
  int64_t rows_;
};

}  // namespace kvsim::stages::join::join

namespace kvsim {

std::unique_ptr<Aggregation> start_joined(const Settings& settings,
                                          std::unique_ptr<Aggregation> prompt,
                                          std::unique_ptr<Aggregation> probe, int64_t prompt_rows) {
  return std::make_unique<stages::join::join::Joined>(settings, std::move(prompt), std::move(probe),
                                                      prompt_rows);
}

}  // namespace kvsim
