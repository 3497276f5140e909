#include "sim/stages/memory/memory.hpp"

#include <algorithm>

#include "sim/stages/parameter.hpp"

namespace kvsim::stages::memory::memory {
namespace {

const Declare memory{{.key = "memory",
                      .place = 564,
                      .type = ValueType::kind,
                      .fallback = "none",
                      .meaning = "what earlier compressions said of a slot"}};
const Declare memory_decay{{.key = "memory_decay",
                            .place = 564.5,
                            .type = ValueType::real,
                            .fallback = "0.8",
                            .meaning = "what a remembered score is multiplied with",
                            .low = 0,
                            .high = 1,
                            .test_values = {"0", "0.5"}}};

class NoMemory : public Memory {
 public:
  NoMemory() : Memory({"memory", "none", "every compression scores anew", "", {}}) {}
  bool changes_nothing() const override { return true; }
  void level(std::span<double>) const override {}
  double join(const Settings&, double, double now) const override { return now; }
};
const Register<Memory, NoMemory> none;

class DecayedMax : public Memory {
 public:
  DecayedMax()
      : Memory({"memory",
                "decayed-max",
                "scores over the head's largest; the larger of now and of before, decayed",
                "G-KV repository",
                {"memory_decay"}}) {}
  void level(std::span<double> scores) const override {
    const double largest = scores.empty() ? 0 : *std::ranges::max_element(scores);
    if (!(largest > 0)) return;
    for (double& score : scores) score /= largest;
  }
  double join(const Settings& settings, double remembered, double now) const override {
    return std::max(settings.real(memory_decay) * remembered, now);
  }
};
const Register<Memory, DecayedMax> decayed_max;

}  // namespace
}  // namespace kvsim::stages::memory::memory
