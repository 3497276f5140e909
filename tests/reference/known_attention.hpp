#pragma once
#include <map>
#include <utility>
#include <vector>

#include "tests/reference/reference.hpp"

namespace kvsim::reference {

/// Rows of a layer's attention as the reference has them, each computed once however many backends
/// are compared with it.
class KnownAttention {
 public:
  struct Row {
    std::vector<double> logits;
    Attention attention;
  };

  explicit KnownAttention(const LayerTrace& layer) : layer_(layer) {}

  const LayerTrace& layer() const { return layer_; }
  const Row& at(int head, int64_t row) {
    return once(rows_, head, row, [&] {
      Row known;
      known.logits = logits(layer_, head, row);
      known.attention = attention(layer_, head, known.logits);
      return known;
    });
  }
  const std::vector<double>& output_at(int head, int64_t row) {
    return once(outputs_, head, row,
                [&] { return output(layer_, head, at(head, row).attention.weight); });
  }

 private:
  template <class Value>
  using ByRow = std::map<std::pair<int, int64_t>, Value>;

  template <class Value, class Make>
  static const Value& once(ByRow<Value>& known, int head, int64_t row, Make make) {
    const std::pair<int, int64_t> key(head, row);
    const auto found = known.find(key);
    return found != known.end() ? found->second : known.emplace(key, make()).first->second;
  }

  const LayerTrace& layer_;
  ByRow<Row> rows_;
  ByRow<std::vector<double>> outputs_;
};

}  // namespace kvsim::reference
