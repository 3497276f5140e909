#include "sim/stages/stages.hpp"

namespace kvsim::stages::memory::memory {

const Declare memory("memory", "kind", "none", "what earlier compressions said of a slot");
const Declare memory_decay("memory_decay", "number [0, 1]", "0.8",
                           "what a remembered score is multiplied with", tested("0 0.5"));

struct DecayedMax : Memory {
  DecayedMax()
      : Memory({"decayed-max",
                "scores over the head's largest; the larger of now and of before, decayed",
                "G-KV repository", "memory_decay"}) {}
  void level(std::span<double> scores) const override {
    const double largest = scores.empty() ? 0 : *std::ranges::max_element(scores);
    if (!(largest > 0)) return;
    for (double& score : scores) score /= largest;
  }
  double join(const Settings& settings, double remembered, double now) const override {
    return std::max(settings.real(memory_decay) * remembered, now);
  }
};
const RegisterNone<Memory> none("every compression scores anew");
const Register<Memory, DecayedMax> registered;

}  // namespace kvsim::stages::memory::memory
