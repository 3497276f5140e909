// One input through every instruction set that runs here, each beside float64.
#include <algorithm>
#include <array>
#include <cmath>
#include <memory>

#include "sim/backend/backend.hpp"
#include "tests/fuzz/targets.hpp"
#include "tests/reference/reference.hpp"
#include "tests/support/instruction_sets.hpp"
#include "tests/support/random_trace.hpp"

namespace kvsim::fuzz {
namespace {

/// Numbers drawn from the input; 0 where it has ended.
class Draw {
 public:
  explicit Draw(Bytes input) : left_(input) {}
  bool ended() const { return left_.empty(); }
  int64_t below(int64_t bound) {
    int64_t value = 0;
    for (int byte = 0; byte < 2 && !left_.empty(); ++byte, left_ = left_.subspan(1))
      value = value << 8 | left_.front();
    return value % bound;
  }

 private:
  Bytes left_;
};

test::RandomTraceShape shape_of(Draw& draw) {
  test::RandomTraceShape shape;
  shape.kv_heads = 1 + static_cast<int>(draw.below(2));
  shape.query_heads = shape.kv_heads * (1 + static_cast<int>(draw.below(3)));
  shape.d = 1 + draw.below(40);
  shape.dv = 1 + draw.below(40);
  shape.hidden = 3;
  shape.prompt = 1 + draw.below(33);
  shape.later = draw.below(5);
  shape.type = std::array{ElementType::float32, ElementType::bfloat16,
                          ElementType::float16}[static_cast<size_t>(draw.below(3))];
  shape.logit_spread = std::array{1.5, 0.0, 20.0}[static_cast<size_t>(draw.below(3))];
  shape.softcap = std::array{0.0, 3.0, 30.0}[static_cast<size_t>(draw.below(3))];
  shape.window = draw.below(3) == 0 ? 1 + draw.below(20) : 0;
  shape.sink = draw.below(2) == 1;
  shape.seed = static_cast<uint64_t>(draw.below(1 << 16));
  return shape;
}

/// Elements that the rest of the input names become numbers at which arithmetic is hard.
void put_hard_numbers(Draw& draw, LayerTrace& layer) {
  constexpr std::array kHard = {0.0f,   -0.0f,  1.0f,    -1.0f,   1e-30f, 1e-40f,
                                -30.0f, 300.0f, 65504.f, 0.3333f, 6e-8f,  -1e4f};
  for (int changes = 0; changes < 64 && !draw.ended(); ++changes) {
    Tensor& tensor = *std::array{&layer.q, &layer.k, &layer.v}[static_cast<size_t>(draw.below(3))];
    const int64_t at = draw.below(tensor.count());
    const int64_t rows = tensor.dim(1), columns = tensor.dim(2);
    test::set_element(tensor, at / (rows * columns), at / columns % rows, at % columns,
                      kHard[static_cast<size_t>(draw.below(std::ssize(kHard)))]);
  }
}

/// A row in float64.
struct Known {
  double bound = 0;  ///< on the error of a logit: float32 products, each as large as it may be
  std::vector<double> logits, output;
  reference::Attention attention;
};

Known known_row(const LayerTrace& layer, int head, int64_t row) {
  Known known;
  double largest = 0;
  for (int64_t i = 0; i < layer.info->total_len; ++i) {
    const std::vector<double> key = reference::key_of(layer, head, i);
    double sum = 0;
    for (size_t c = 0; c < key.size(); ++c)
      sum += std::fabs(
          key[c] * static_cast<double>(test::element(layer.q, head, row, static_cast<int64_t>(c))));
    largest = std::max(largest, layer.scale * sum);
  }
  known.bound = 1e-5 * (1 + largest);
  known.logits = reference::logits(layer, head, row);
  known.attention = reference::attention(layer, head, known.logits);
  known.output = reference::output(layer, head, known.attention.weight);
  return known;
}

/// Where logits are not told to a tenth, weights need only be weights.
constexpr double kToldLogits = 0.1;

/// Row `r` of head `x` of the block. `most`: the largest value there is.
void compare(const Known& known, const AttentionBlock& block, int x, int64_t r, double most) {
  const bool told = known.bound < kToldLogits;
  const double share = std::expm1(2 * known.bound);
  double sum = 0;
  for (int64_t i = 0; i < block.columns; ++i) {
    const double found = static_cast<double>(block.attention_row(x, r)[i]);
    const double expected = known.attention.weight[static_cast<size_t>(i)];
    promise(found >= 0 && found <= 1 + 1e-5, "a weight is a share");
    promise(!std::isinf(known.logits[static_cast<size_t>(i)]) || found == 0,
            "what is unseen has no weight");
    promise(!told || std::fabs(found - expected) <= expected * share + 1e-30,
            "weights are those of float64");
    sum += found;
  }
  promise(sum <= 1 + 1e-4, "weights sum to at most 1");
  if (!told) return;
  const auto at = static_cast<size_t>(x * block.rows + r);
  promise(std::fabs(block.log_sum_exp[at] - known.attention.log_sum_exp) <= known.bound,
          "sums of exponentials are those of float64");
  for (size_t c = 0; c < known.output.size(); ++c)
    promise(std::fabs(static_cast<double>(block.outputs[at * known.output.size() + c]) -
                      known.output[c]) <= (share + 1e-5) * most,
            "outputs are those of float64");
}

const std::vector<std::unique_ptr<Backend>>& backends() {
  static const auto all = [] {
    std::vector<std::unique_ptr<Backend>> made;
    for (const std::string& isa : test::instruction_sets()) {
      const test::ForcedIsa forced(isa);
      made.push_back(make_cpu_backend());
    }
    return made;
  }();
  return all;
}

void instructions(Bytes input) {
  Draw draw(input);
  const auto trace = test::random_trace(shape_of(draw));
  const auto stored = std::ssize(trace->info.query_position);
  AttentionRequest request;
  request.columns = trace->info.total_len;
  request.logits = request.outputs = true;
  for (int64_t row = draw.below(4); row < stored; row += 1 + draw.below(12))
    request.rows.push_back(row);
  put_hard_numbers(draw, trace->layer);
  if (request.rows.empty()) return;
  const Tensor& values = trace->layer.v;
  double most = 0;
  for (int64_t at = 0; at < values.count(); ++at)
    most = std::max(most, std::fabs(static_cast<double>(test::element(
                              values, at / (values.dim(1) * values.dim(2)),
                              at / values.dim(2) % values.dim(1), at % values.dim(2)))));
  for (request.kv_head = 0; request.kv_head < trace->info.num_kv_heads; ++request.kv_head) {
    const int heads = trace->info.group_size(), first = request.kv_head * heads;
    std::vector<Known> known;
    for (int head = first; head < first + heads; ++head)
      for (const int64_t row : request.rows) known.push_back(known_row(trace->layer, head, row));
    for (const auto& backend : backends()) {
      AttentionBlock block;
      backend->attention(trace->layer, request, block);
      for (int x = 0; x < heads; ++x)
        for (int64_t r = 0; r < block.rows; ++r)
          compare(known[static_cast<size_t>(x * block.rows + r)], block, x, r, most);
    }
  }
}
std::vector<std::string> some_shapes() {
  std::string ramp;
  for (int k = 0; k < 60; ++k) ramp += static_cast<char>(7 * k + 3);
  return {std::string(), std::string(26, '\1'), ramp};
}

const bool instruction_target = add_target(
    {"instructions", [](Bytes input) { answered(instructions, input); }, false, some_shapes});

}  // namespace
}  // namespace kvsim::fuzz
