#include "sim/stages/normalize/normalize.hpp"

namespace kvsim::stages::normalize::add_head_mean {
namespace {

/// KVCompose: what an entry is worth to the other heads counts, too.
class AddHeadMean : public Normalize {
 public:
  AddHeadMean()
      : Normalize({"normalize",
                   "add-head-mean",
                   "no division; the mean of the entry's scores over the layer's heads is added",
                   "KVCompose",
                   {}}) {}
  bool goes_on() const override { return false; }
  bool per_entry() const override { return true; }
  void apply(const Table<double>&, Range, Table<double>&) const override {}
  void finish(Range candidates, Table<double>& scores) const override {
    for (int64_t i = candidates.begin; i < candidates.end; ++i) {
      double mean = 0;
      for (int64_t owner = 0; owner < scores.rows(); ++owner) mean += scores(owner, i);
      mean /= static_cast<double>(scores.rows());
      for (int64_t owner = 0; owner < scores.rows(); ++owner) scores(owner, i) += mean;
    }
  }
};
const Register<Normalize, AddHeadMean> add_head_mean;

}  // namespace
}  // namespace kvsim::stages::normalize::add_head_mean
