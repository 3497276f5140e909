#include "sim/stages/group/group.hpp"

#include <algorithm>
#include <cmath>

#include "sim/stages/indicator/indicator.hpp"
#include "sim/stages/notes.hpp"
#include "sim/stages/parameter.hpp"

namespace kvsim::stages::group::group {
namespace {

const Declare group("group", "kind", "mean", "how the query heads of a KV head become one",
                    only_with({"indicator", [](const Kind& kind) {
                                 return has_query_heads(
                                     dynamic_cast<const Indicator&>(kind).axes());
                               }}));

void add_sum(int index, std::span<const double> head, std::span<double> out) {
  for (size_t c = 0; c < out.size(); ++c) out[c] = index == 0 ? head[c] : out[c] + head[c];
}
void add_mean(int index, int count, std::span<const double> head, std::span<double> out) {
  add_sum(index, head, out);
  if (index + 1 == count)
    for (double& value : out) value /= count;
}

class NoGroup : public Group {
 public:
  NoGroup()
      : Group({"group", "none", "every query head for itself (granularity=query)", "", "", "", "",
               "granularity=query"}) {}
  GroupSpan span() const override { return GroupSpan::head; }
  bool at_each_step() const override { return true; }
  void add(int, int, std::span<const double> head, std::span<double> out) const override {
    std::copy(head.begin(), head.end(), out.begin());
  }
};
const Register<Group, NoGroup> none;

class GroupMean : public Group {
 public:
  GroupMean() : Group({"group", "mean", "mean over the group", "SnapKV in kvpress"}) {}
  void add(int index, int count, std::span<const double> head,
           std::span<double> out) const override {
    add_mean(index, count, head, out);
  }
};
const Register<Group, GroupMean> mean;

class GroupMax : public Group {
 public:
  GroupMax() : Group({"group", "max", "maximum over the group", "DefensiveKV footnote 1"}) {}
  bool linear() const override { return false; }
  void add(int index, int, std::span<const double> head, std::span<double> out) const override {
    for (size_t c = 0; c < out.size(); ++c)
      out[c] = index == 0 ? head[c] : std::max(out[c], head[c]);
  }
};
const Register<Group, GroupMax> max;
const DeclareNote max_note("group=max", "DefensiveKV footnote 1",
                           "what becomes of query heads that share a key",
                           "their maximum, as the footnote says of aggregation");

class GroupSum : public Group {
 public:
  GroupSum() : Group({"group", "sum", "sum over the group", ""}) {}
  bool at_each_step() const override { return true; }
  void add(int index, int, std::span<const double> head, std::span<double> out) const override {
    add_sum(index, head, out);
  }
};
const Register<Group, GroupSum> sum;

class GroupRms : public Group {
 public:
  GroupRms()
      : Group({"group", "root-mean-square", "root of the mean square over the group",
               "Attention Matching"}) {}
  bool linear() const override { return false; }
  void add(int index, int count, std::span<const double> head,
           std::span<double> out) const override {
    for (size_t c = 0; c < out.size(); ++c) out[c] = (index == 0 ? 0 : out[c]) + head[c] * head[c];
    if (index + 1 == count)
      for (double& value : out) value = std::sqrt(value / count);
  }
};
const Register<Group, GroupRms> root_mean_square;

class LayerMean : public Group {
 public:
  LayerMean() : Group({"group", "layer-mean", "mean over all query heads of the layer", "TOVA"}) {}
  GroupSpan span() const override { return GroupSpan::layer; }
  void add(int index, int count, std::span<const double> head,
           std::span<double> out) const override {
    add_mean(index, count, head, out);
  }
};
const Register<Group, LayerMean> layer_mean;

}  // namespace
}  // namespace kvsim::stages::group::group
