#include "tests/support/cuda_on_host/broken_kernels.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "sim/backend/cuda/context.hpp"
#include "sim/backend/cuda/tiles.hpp"
#include "tests/support/cuda_on_host/backend.hpp"
#include "tests/support/random_trace.hpp"

namespace kvsim::cuda {
namespace {

using Order = ::cuda_on_host::Order;

float* shared_floats() { return reinterpret_cast<float*>(shared_memory()); }

void reverse(float* out, bool barrier) {
  const int thread = static_cast<int>(threadIdx.x);
  shared_floats()[thread] = static_cast<float>(thread);
  if (barrier) block_barrier();
  out[thread] = shared_floats()[63 - thread];
}

void read_one(const float* memory, bool shared, float* out) {
  if (threadIdx.x == 0) *out = shared ? shared_floats()[3] : memory[3];
}

void write_one(float* memory, int index, bool shared) {
  if (threadIdx.x == 0) (shared ? shared_floats() : memory)[index] = 1;
}

void wait_alone() {
  if (threadIdx.x != 0) block_barrier();
}

void copy_one(const float* from, bool wait, float* out) {
  if (threadIdx.x != 0) return;
  copy16_async(shared_floats(), from, true);
  copies_close_group();
  if (wait) copies_wait<0>();
  *out = shared_floats()[0];
}

/// out[16][16] = a[16][16] b[16][16]^T, then of its own rows times b.
template <class Type>
void multiply_tiles(const typename Type::Element* a, const typename Type::Element* b,
                    float* transposed, float* plain) {
  using Element = typename Type::Element;
  Element* const x = reinterpret_cast<Element*>(shared_memory());
  constexpr int kLd = 16 + Type::kPad;
  Element* const y = x + 16 * kLd;
  const int lane = static_cast<int>(threadIdx.x);
  copy_rows(x, kLd, 16, 16, a, 16, nullptr, 0, 16);
  copy_rows(y, kLd, 16, 16, b, 16, nullptr, 0, 16);
  copies_close_group();
  copies_wait<0>();
  block_barrier();
  float s[2][4], z[2][4] = {};
  dot_products<Type>(s, x, y, kLd, 16, lane);
  for (int k = 0; k < 16; k += Type::kStep) {
    Fragment part;
    Type::load_a(part, x + k, kLd, lane);
    Type::template multiply<false>(z[0], z[1], part, y + k * kLd, kLd, lane);
  }
  for (int i = 0; i < 2; ++i)
    for (int j = 0; j < 4; ++j) {
      const int at = (lane / 4 + j / 2 * 8) * 16 + 8 * i + 2 * (lane % 4) + j % 2;
      transposed[at] = s[i][j];
      plain[at] = z[i][j];
    }
}

std::vector<float> downloaded_all(const DeviceBuffer<float>& buffer, const Stream& stream) {
  std::vector<float> out(static_cast<size_t>(buffer.size()));
  download(out.data(), buffer.data(), buffer.size(), stream);
  stream.wait();
  return out;
}

template <class Type>
double product_error(ElementType type) {
  std::vector<float> a, b;
  for (int i = 0; i < 256; ++i) {
    a.push_back(static_cast<float>(i * 7 % 11 - 5));
    b.push_back(static_cast<float>(i * 5 % 13 - 6));
  }
  using Element = typename Type::Element;
  const auto narrowed = [&](const std::vector<float>& values) {
    std::vector<Element> out(values.size());
    narrow(type, values.data(), 256, out.data());
    return out;
  };
  const Stream stream;
  DeviceBuffer<Element> x, y;
  DeviceBuffer<float> transposed, plain;
  launch(multiply_tiles<Type>, dim3(1), 32, 4096, stream, upload(x, narrowed(a), stream),
         upload(y, narrowed(b), stream), transposed.reserve(256), plain.reserve(256));
  const std::vector<float> s = downloaded_all(transposed, stream);
  const std::vector<float> z = downloaded_all(plain, stream);
  double worst = 0;
  for (size_t r = 0; r < 16; ++r)
    for (size_t c = 0; c < 16; ++c) {
      double t = 0, p = 0;
      for (size_t k = 0; k < 16; ++k) {
        t += static_cast<double>(a[r * 16 + k]) * static_cast<double>(b[c * 16 + k]);
        p += static_cast<double>(a[r * 16 + k]) * static_cast<double>(b[k * 16 + c]);
      }
      worst = std::max({worst, std::abs(t - static_cast<double>(s[r * 16 + c])),
                        std::abs(p - static_cast<double>(z[r * 16 + c]))});
    }
  return worst;
}

}  // namespace

std::vector<float> reversed(Order order, bool barrier) {
  const Stream stream;
  DeviceBuffer<float> out;
  ::cuda_on_host::set_order(order);
  launch(reverse, dim3(1), 64, 256, stream, out.reserve(64), barrier);
  auto result = downloaded_all(out, stream);
  ::cuda_on_host::set_order(Order::ascending);
  for (float& x : result)
    if (x != x) x = -1;  // NaN, so that results can be compared
  return result;
}

float read_unwritten(bool shared) {
  const Stream stream;
  DeviceBuffer<float> memory, out;
  launch(read_one, dim3(1), 32, 64, stream, memory.reserve(16), shared, out.reserve(1));
  return downloaded_all(out, stream)[0];
}

void write_at(int index, bool shared) {
  const Stream stream;
  DeviceBuffer<float> memory;
  launch(write_one, dim3(1), 32, 64, stream, memory.reserve(16), index, shared);
  stream.wait();
}

void divergent_barrier() {
  const Stream stream;
  launch(wait_alone, dim3(1), 32, 0, stream);
  stream.wait();
}

void launch_nothing() {
  const Stream stream;
  launch(wait_alone, dim3(0), 32, 0, stream);
  stream.wait();
}

float copied(bool wait) {
  const Stream stream;
  DeviceBuffer<float> from, out;
  launch(copy_one, dim3(1), 32, 64, stream, upload(from, std::vector<float>(4, 3.0f), stream), wait,
         out.reserve(1));
  return downloaded_all(out, stream)[0];
}

bool brings(int64_t bytes) {
  const Stream stream;
  std::vector<unsigned char> sent(static_cast<size_t>(bytes));
  for (size_t i = 0; i < sent.size(); ++i) sent[i] = static_cast<unsigned char>(i * 31 >> 8);
  DeviceBuffer<unsigned char> there;
  upload(there, sent, stream);
  std::vector<unsigned char> back(sent.size() + 1, 7);
  Downloads().bring(back.data(), there.data(), bytes, stream);
  const bool untouched = back.back() == 7;
  back.pop_back();
  return untouched && back == sent;
}

float downloaded(bool wait) {
  const Stream stream;
  DeviceBuffer<float> from;
  upload(from, std::vector<float>(1, 5.0f), stream);
  static float to;
  to = 0;
  download(&to, from.data(), 1, stream);
  if (wait) stream.wait();
  const float result = to;
  stream.wait();
  return result;
}

double largest_product_error(ElementType type) {
  double worst = 1;
  with_types<Bfloat16, Float16, Float32>(
      type, [&](auto chosen) { worst = product_error<decltype(chosen)>(type); });
  return worst;
}

namespace {

ReplayRequest small_request(const LayerTrace& layer, const std::vector<float>& importance) {
  ReplayRequest request;
  for (const bool per_query_head : {false, true}) {
    ReplayPlan plan;
    plan.per_query_head = per_query_head;
    KeptChain chain;
    for (uint32_t i = 0; i < 150; ++i) chain.order.push_back(i * 7 % 150);
    chain.end = {3, 40, 150};
    const int owners = per_query_head ? layer.info->num_query_heads : layer.info->num_kv_heads;
    plan.owners.assign(static_cast<size_t>(owners), chain);
    request.plans.push_back(plan);
  }
  request.importance = importance.data();
  request.importance_columns = 150;
  return request;
}

void add_replay(Backend& backend, const LayerTrace& layer, std::vector<double>& out) {
  const std::vector<float> importance(4 * 150, 0.5f);
  // By step first, so that the size of the blocks does not show.
  backend.replay(layer, small_request(layer, importance), [&](const ReplayBlock& block) {
    const int64_t heads = layer.info->num_query_heads, dv = layer.value_dim();
    std::vector<std::vector<float>> deltas(block.delta.size(), std::vector<float>(block.z.size()));
    for (size_t set = 0; set < deltas.size(); ++set)
      backend.read_outputs(block.delta[set], static_cast<int64_t>(block.z.size()),
                           deltas[set].data());
    for (int64_t s = 0; s < block.steps; ++s)
      for (int64_t h = 0; h < heads; ++h) {
        const auto add = [&](const std::vector<float>& x) {
          const auto begin = x.begin() + (h * block.steps + s) * dv;
          out.insert(out.end(), begin, begin + dv);
        };
        add(block.z);
        for (const auto& delta : deltas) add(delta);
        for (const auto* tables : {&block.kept_attention, &block.kept_importance})
          for (const Table<double>& table : *tables) out.push_back(table(h, s));
      }
  });
}

void add_slots(Backend& backend, const LayerTrace& layer, std::vector<double>& out) {
  constexpr int64_t kRows = 8, kSlots = 70;
  const int64_t d = layer.k.dim(2), dv = layer.value_dim();
  const auto read = [](const Tensor& tensor, int64_t rows) {
    std::vector<float> values(static_cast<size_t>(rows * tensor.dim(2)));
    tensor.read(0, 0, rows, values.data());
    return values;
  };
  const std::vector<float> queries = read(layer.q, 2 * kRows), keys = read(layer.k, kSlots),
                           values = read(layer.v, kSlots), weights(2 * kSlots, 0.25f);
  std::vector<float> logits(2 * kRows * kSlots), outputs(static_cast<size_t>(2 * kRows * dv));
  std::vector<double> sums(2 * kRows);
  const std::vector<int64_t> seen = {1, 20, 50, 51, 60, 65, 69, 70};
  SlotRows rows;
  rows.heads = 2;
  rows.sinks = sinks_from(layer, 1);
  rows.rows = kRows;
  rows.queries = queries.data();
  rows.segments = {{keys.data(), values.data(), 50, weights.data()},
                   {keys.data() + 50 * d, values.data() + 50 * dv, 20, nullptr}};
  rows.seen = seen.data();
  rows.logits = logits.data();
  rows.log_sum_exp = sums.data();
  rows.outputs = outputs.data();
  backend.attend(layer, {&rows, 1});
  out.insert(out.end(), sums.begin(), sums.end());
  out.insert(out.end(), outputs.begin(), outputs.end());
  for (const float logit : logits) out.push_back(std::isinf(logit) ? -1e9 : logit);
}

void add_verbs(Backend& backend, const LayerTrace& layer, std::vector<double>& out) {
  AttentionRequest request{
      .kv_head = 1, .rows = {0, 70, 151, 160}, .columns = 150, .logits = false, .outputs = true};
  AttentionBlock block;
  backend.attention(layer, request, block);
  out.insert(out.end(), block.attention.begin(), block.attention.end());
  out.insert(out.end(), block.outputs.begin(), block.outputs.end());
  add_slots(backend, layer, out);
  AttentionSumRequest request_for_sums{.rows = {3, 80, 155}, .columns = 150, .sums = {}};
  using Of = AttentionSum::Of;
  for (const Of of : {Of::attention, Of::below, Of::group_mean, Of::group_square})
    request_for_sums.sums.push_back({of, {1, 2, 3}, {0.1, 0.01, 0.003}});
  for (const Table<double>& sums : backend.attention_sums(layer, request_for_sums))
    out.insert(out.end(), sums.values().begin(), sums.values().end());
  std::vector<float> norms(4 * 150), values(2 * 150);
  for (const Norm norm : {Norm::l1, Norm::l2}) {
    backend.projected_norms(layer, norm, {0, 150}, norms.data());
    backend.value_norms(layer, norm, {0, 150}, values.data());
    out.insert(out.end(), norms.begin(), norms.end());
    out.insert(out.end(), values.begin(), values.end());
  }
  const int64_t dv = layer.value_dim();
  std::vector<double> gram(static_cast<size_t>(dv * dv)), forms(150);
  const HeadPair pair{0, 1, gram.data(), forms.data()};
  backend.output_metrics(layer, {&pair, 1}, {0, 150});
  out.insert(out.end(), forms.begin(), forms.end());
}

}  // namespace

std::vector<double> run_all_verbs(Order order, size_t memory) {
  std::vector<double> out;
  for (const ElementType type : {ElementType::bfloat16, ElementType::float32}) {
    // two blocks of columns
    const auto trace = test::random_trace(
        {.d = 32, .dv = 144, .prompt = 150, .later = 12, .type = type});
    const auto backend = memory > 0 ? make_backend_with(static_cast<int64_t>(memory))
                                    : make_backend();
    ::cuda_on_host::set_order(order);
    add_verbs(*backend, trace->layer, out);
    add_replay(*backend, trace->layer, out);
    ::cuda_on_host::set_order(Order::ascending);
  }
  return out;
}

}  // namespace kvsim::cuda
