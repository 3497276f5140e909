#include "sim/stages/merge/votes.hpp"

#include <cmath>

#include "sim/stages/parameter.hpp"

namespace kvsim::stages::merge::votes {
namespace {

constexpr double kWordBytes = 4;

const Declare votes("votes", "kind", "none",
                    "what attention knows of the entries in a slot; follows `merge`");

class NoVotes : public Votes {
 public:
  NoVotes() : Votes({"votes", "none", "every slot counts as one entry", ""}) {}
  bool weighs() const override { return false; }
  double log_weight(const SlotCache&, int64_t, int) const override { return 0; }
  double side_bytes(int) const override { return 0; }
};
const Register<Votes, NoVotes> none;

class Count : public Votes {
 public:
  Count()
      : Votes({"votes", "count", "logits get ln p, p the entries in the slot", "KeepKV Eq. 6"}) {}
  double log_weight(const SlotCache& cache, int64_t slot, int) const override {
    return std::log(cache.entries(slot));
  }
  double weight(double entries) const override { return entries; }
  double side_bytes(int) const override { return kWordBytes; }
};
const Register<Votes, Count> count;

class Bias : public Votes {
 public:
  Bias() : Votes({"votes", "bias", "logits get a real number per query head", "kvsim"}) {}
  double log_weight(const SlotCache& cache, int64_t slot, int x) const override {
    return cache.bias(slot, x);
  }
  double side_bytes(int heads) const override { return kWordBytes * heads; }
};
const Register<Votes, Bias> bias;

}  // namespace
}  // namespace kvsim::stages::merge::votes

namespace kvsim {

const Votes& votes_of(const Settings& settings) { return chosen<Votes>(settings); }

}  // namespace kvsim
