#include "sim/backend/cpu/verbs.hpp"

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

bool multiplies_pairs(const Kernels& kernels, const Tensor& left, const Tensor& right,
                      int64_t items) {
  return kernels.has_pairs() && items % 2 == 0 && left.type() == ElementType::bfloat16 &&
         right.type() == ElementType::bfloat16;
}

const float* stored_pairs(const Tensor& tensor, int64_t a, int64_t begin) {
  return reinterpret_cast<const float*>(tensor.row(a, begin));
}

void set_values(const Tensor& tensor, int64_t a, Range rows, Scratch<float>& buffer,
                ProductTask& task) {
  task.columns = padded(tensor.dim(2), kPad);
  const bool stored = tensor.type() == ElementType::float32 && task.columns == tensor.dim(2);
  task.ldv = stored ? task.columns : spread_stride<float>(task.columns);
  task.v = load_rows(tensor, a, rows.begin, rows.end, task.ldv, buffer);
}

ScoreOperands::ScoreOperands(const Kernels& kernels, const LayerTrace& layer)
    : layer_(layer), pairs_(multiplies_pairs(kernels, layer.k, layer.q, layer.k.dim(2))),
      depth_(pairs_ ? layer.k.dim(2) / 2 : layer.k.dim(2)),
      scale_(static_cast<float>(layer.scale)) {}

void ScoreOperands::load_queries(std::span<const QueryRow> rows, int64_t ld, float* qt) const {
  const Tensor& q = layer_.q;
  std::vector<float> query(depth_);
  std::fill(qt, qt + depth_ * ld, 0.0f);
  for (int64_t r = 0; r < std::ssize(rows); ++r) {
    if (pairs()) {
      std::memcpy(query.data(), q.row(rows[r].head, rows[r].row), query.size() * sizeof(float));
    } else {
      q.read(rows[r].head, rows[r].row, rows[r].row + 1, query.data());
      for (float& x : query) x *= scale_;
    }
    for (int64_t j = 0; j < depth_; ++j) qt[j * ld + r] = query[j];
  }
}

const float* ScoreOperands::load_keys(int64_t kv_head, int64_t begin, int64_t end,
                                      Scratch<float>& buffer) const {
  return pairs() ? stored_pairs(layer_.k, kv_head, begin)
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

namespace {

/// Name of the processor as the system gives it; empty if it does not say.
std::string processor_name() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    if (!line.starts_with("model name")) continue;
    const size_t begin = line.find_first_not_of(" \t", line.find(':') + 1);
    if (begin != std::string::npos) return line.substr(begin);
  }
  return "";
}

}  // namespace

std::string CpuBackend::device() const {
  const std::string processor = processor_name();
  return (processor.empty() ? "unknown processor" : processor) + ", " + kernels_.isa;
}

std::unique_ptr<Backend> make_cpu_backend(const Shapes& shapes) {
  return std::make_unique<CpuBackend>(shapes);
}

/// Takes equal shapes everywhere: where others were tried (bench/README.md) none was faster. A
/// processor on which one is gets it here.
std::unique_ptr<Backend> make_cpu_backend() { return make_cpu_backend(Shapes{}); }

}  // namespace kvsim
