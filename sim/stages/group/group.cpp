#include "sim/stages/indicator/indicator.hpp"
#include "sim/stages/stages.hpp"

namespace kvsim::stages::group::group {

const Declare group("group", "kind", "mean", "how the query heads of a KV head become one",
                    only_with({"indicator", [](const Kind& kind) {
                                 return has_query_heads(
                                     dynamic_cast<const Indicator&>(kind).axes());
                               }}));

void add_sum(int index, std::span<const double> head, std::span<double> out) {
  for (size_t c = 0; c < out.size(); ++c) out[c] = index == 0 ? head[c] : out[c] + head[c];
}

struct NoGroup : Group {
  NoGroup()
      : Group({"none", "every query head for itself (granularity=query)", "", "", "", "",
               "granularity=query"}) {}
  GroupSpan span() const override { return GroupSpan::head; }
  bool at_each_step() const override { return true; }
  void add(int, int, std::span<const double> head, std::span<double> out) const override {
    std::copy(head.begin(), head.end(), out.begin());
  }
};

struct GroupMean : Group {
  using Group::Group;
  GroupMean() : Group({"mean", "mean over the group", "SnapKV in kvpress"}) {}
  void add(int index, int count, std::span<const double> head,
           std::span<double> out) const override {
    add_sum(index, head, out);
    if (index + 1 == count)
      for (double& value : out) value /= count;
  }
};

struct GroupMax : Group {
  GroupMax() : Group({"max", "maximum over the group", "DefensiveKV footnote 1"}) {}
  bool linear() const override { return false; }
  void add(int index, int, std::span<const double> head, std::span<double> out) const override {
    for (size_t c = 0; c < out.size(); ++c)
      out[c] = index == 0 ? head[c] : std::max(out[c], head[c]);
  }
};

struct GroupSum : Group {
  GroupSum() : Group({"sum", "sum over the group", ""}) {}
  bool at_each_step() const override { return true; }
  void add(int index, int, std::span<const double> head, std::span<double> out) const override {
    add_sum(index, head, out);
  }
};

struct GroupRms : Group {
  GroupRms()
      : Group(
            {"root-mean-square", "root of the mean square over the group", "Attention Matching"}) {}
  bool linear() const override { return false; }
  void add(int index, int count, std::span<const double> head,
           std::span<double> out) const override {
    for (size_t c = 0; c < out.size(); ++c) out[c] = (index == 0 ? 0 : out[c]) + head[c] * head[c];
    if (index + 1 == count)
      for (double& value : out) value = std::sqrt(value / count);
  }
};

struct LayerMean : GroupMean {
  LayerMean() : GroupMean({"layer-mean", "mean over all query heads of the layer", "TOVA"}) {}
  GroupSpan span() const override { return GroupSpan::layer; }
};
const Register<Group, NoGroup, GroupMean, GroupMax, GroupSum, GroupRms, LayerMean> registered;

}  // namespace kvsim::stages::group::group
