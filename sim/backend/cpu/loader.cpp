#include "sim/backend/cpu/loader.hpp"

#include <algorithm>
#include <cstring>
#include <vector>

namespace kvsim {

const float* load_rows(const Tensor& tensor, int64_t a, int64_t begin, int64_t end, int64_t ld,
                       Scratch<float>& buffer) {
  const int64_t columns = tensor.dim(2);
  if (columns == ld && tensor.type() == ElementType::float32)
    return reinterpret_cast<const float*>(tensor.row(a, begin));
  float* const out = buffer.reserve((end - begin) * ld);
  if (columns == ld) {
    tensor.read(a, begin, end, out);
    return out;
  }
  for (int64_t i = begin; i < end; ++i) {
    float* const row = out + (i - begin) * ld;
    tensor.read(a, i, i + 1, row);
    std::fill(row + columns, row + ld, 0.0f);
  }
  return out;
}

std::span<const std::byte> stored_rows(const Tensor& tensor, int64_t a, int64_t begin,
                                       int64_t end) {
  const int64_t bytes = (end - begin) * tensor.dim(2) *
                        static_cast<int64_t>(element_size(tensor.type()));
  if (bytes <= 0) return {};
  return {tensor.row(a, begin), static_cast<size_t>(bytes)};
}

namespace {

/// Terms of bfloat16 in which the kernels take a tensor; 0: none.
int terms_of(const Kernels& kernels, ElementType type) {
  if (type == ElementType::bfloat16) return kernels.has_pairs() ? 1 : 0;
  return type == ElementType::float16 && kernels.has_tiles() ? 2 : 0;
}

/// What is stored, as pairs; for what only moves them.
const float* as_pairs(const std::byte* row) { return reinterpret_cast<const float*>(row); }

}  // namespace

void split(ElementType type, const std::byte* raw, int64_t count, uint16_t* out, int64_t ld) {
  if (type == ElementType::bfloat16) {
    std::memcpy(out, raw, static_cast<size_t>(count) * sizeof(uint16_t));
    return;
  }
  constexpr int64_t kRun = 256;
  float x[kRun], upper[kRun];
  for (int64_t at = 0; at < count; at += kRun) {
    const int64_t run = std::min(kRun, count - at);
    widen(type, raw + at * static_cast<int64_t>(element_size(type)), run, x);
    narrow(ElementType::bfloat16, x, run, out + at);
    widen(ElementType::bfloat16, out + at, run, upper);
    for (int64_t i = 0; i < run; ++i) x[i] -= upper[i];
    narrow(ElementType::bfloat16, x, run, out + ld + at);
  }
}

PairOperands::PairOperands(const Kernels& kernels, const Tensor& left, const Tensor& right,
                           int64_t items)
    : left_(items % 2 == 0 ? terms_of(kernels, left.type()) : 0),
      right_(terms_of(kernels, right.type())), items_(items),
      depth_(padded(products() * items / 2, kernels.pair_step)) {}

const float* PairOperands::load(Side side, const Tensor& tensor, int64_t a, int64_t begin,
                                int64_t end, Scratch<float>& buffer) const {
  if (products() == 1 && depth_ == items_ / 2) return as_pairs(tensor.row(a, begin));
  float* const out = buffer.reserve((end - begin) * depth_);
  for (int64_t i = begin; i < end; ++i) load_row(side, tensor, a, i, out + (i - begin) * depth_);
  return out;
}

void PairOperands::load_row(Side side, const Tensor& tensor, int64_t a, int64_t b,
                            float* out) const {
  auto* const to = reinterpret_cast<uint16_t*>(out);
  // The terms themselves, then whole runs of them again, or each of them: from the last one on.
  const int count = terms(side), times = products() / count;
  split(tensor.type(), tensor.row(a, b), items_, to, items_);
  for (int at = products() - 1; at > 0; --at) {
    const int term = side == Side::left ? at / times : at % count;
    if (term != at) std::copy_n(to + term * items_, items_, to + at * items_);
  }
  std::fill(to + products() * items_, to + 2 * depth_, uint16_t{0});
}

void pair_up(const uint16_t* lower, const uint16_t* upper, int64_t count, uint32_t* out) {
  for (int64_t i = 0; i < count; ++i) out[i] = lower[i] | static_cast<uint32_t>(upper[i]) << 16;
}

bool set_paired_parts(const Kernels& kernels, const Tensor& tensor, int64_t a, Range columns,
                      Scratch<float>& buffer, ProductTask& task) {
  task.terms = kernels.has_tiles() ? terms_of(kernels, tensor.type()) : 0;
  if (task.terms == 0) return false;
  const int64_t rows = tensor.dim(1), width = columns.size(), terms = task.terms;
  const auto offset = static_cast<size_t>(columns.begin) * element_size(tensor.type());
  task.paired = true;
  task.columns = padded(width, kPad);
  task.ldv = spread_stride<float>(width);
  const int64_t size = padded(rows, 2 * kernels.pair_step) / 2 * terms * task.ldv;
  auto* const out = reinterpret_cast<uint32_t*>(buffer.reserve(size));
  std::fill_n(out, size, uint32_t{0});
  std::vector<uint16_t> two(static_cast<size_t>(2 * terms * width));  // rows, [2][terms][width]
  uint16_t* const second = two.data() + terms * width;
  for (int64_t i = 0; i < rows; i += 2) {
    split(tensor.type(), tensor.row(a, i) + offset, width, two.data(), width);
    if (i + 1 < rows)
      split(tensor.type(), tensor.row(a, i + 1) + offset, width, second, width);
    else
      std::fill_n(second, terms * width, uint16_t{0});
    for (int64_t term = 0; term < terms; ++term)
      pair_up(two.data() + term * width, second + term * width, width,
              out + (i / 2 * terms + term) * task.ldv);
  }
  task.parts = reinterpret_cast<const uint16_t*>(out);
  return true;
}

namespace {

/// Where kernels and tensor allow it, sets the values of a product to whole rows in 16 bits.
bool set_parts(const Kernels& kernels, const Tensor& tensor, int64_t a, Range rows,
               Scratch<float>& buffer, ProductTask& task) {
  task.terms = kernels.has_tiles() ? terms_of(kernels, tensor.type()) : 0;
  if (task.terms == 0) return false;
  const int64_t width = tensor.dim(2), ld = padded(width, kPad);
  task.columns = task.ldv = ld;
  if (task.terms == 1 && width == ld) {  // as they are stored
    task.parts = reinterpret_cast<const uint16_t*>(tensor.row(a, rows.begin));
    return true;
  }
  const int64_t row = task.terms * ld;
  auto* const out = reinterpret_cast<uint16_t*>(buffer.reserve(rows.size() * row));
  std::fill_n(out, rows.size() * row, uint16_t{0});
  for (int64_t i = rows.begin; i < rows.end; ++i)
    split(tensor.type(), tensor.row(a, i), width, out + (i - rows.begin) * row, ld);
  task.parts = out;
  return true;
}

}  // namespace

void set_values(const Kernels& kernels, const Tensor& tensor, int64_t a, Range rows,
                Scratch<float>& buffer, ProductTask& task) {
  if (set_parts(kernels, tensor, a, rows, buffer, task)) return;
  task.columns = padded(tensor.dim(2), kPad);
  const bool stored = tensor.type() == ElementType::float32 && task.columns == tensor.dim(2);
  task.ldv = stored ? task.columns : spread_stride<float>(task.columns);
  task.v = load_rows(tensor, a, rows.begin, rows.end, task.ldv, buffer);
}

ScoreOperands::ScoreOperands(const Kernels& kernels, const LayerTrace& layer)
    : layer_(layer), pairs_(kernels, layer.k, layer.q, layer.k.dim(2)),
      depth_(pairs() ? pairs_.depth() : layer.k.dim(2)), scale_(static_cast<float>(layer.scale)) {}

void ScoreOperands::load_queries(std::span<const QueryRow> rows, int64_t ld, float* qt) const {
  const Tensor& q = layer_.q;
  std::vector<float> query(static_cast<size_t>(depth_));
  std::fill(qt, qt + depth_ * ld, 0.0f);
  for (size_t r = 0; r < rows.size(); ++r) {
    if (pairs()) {
      pairs_.load_row(PairOperands::Side::right, q, rows[r].head, rows[r].row, query.data());
    } else {
      q.read(rows[r].head, rows[r].row, rows[r].row + 1, query.data());
      for (float& x : query) x *= scale_;
    }
    for (int64_t j = 0; j < depth_; ++j)
      qt[j * ld + static_cast<int64_t>(r)] = query[static_cast<size_t>(j)];
  }
}

const float* ScoreOperands::load_keys(int64_t kv_head, int64_t begin, int64_t end,
                                      Scratch<float>& buffer) const {
  return pairs() ? pairs_.load(PairOperands::Side::left, layer_.k, kv_head, begin, end, buffer)
                 : load_rows(layer_.k, kv_head, begin, end, depth_, buffer);
}

ScoreTask ScoreOperands::task(const float* keys, int64_t count, const float* qt, int64_t ld) const {
  ScoreTask task{};
  task.k = keys;
  task.keys = count;
  task.d = depth_;
  task.qt = qt;
  task.pairs = pairs();
  task.scale = scale_;
  task.ld = ld;
  task.softcap = static_cast<float>(layer_.softcap);
  return task;
}

}  // namespace kvsim
