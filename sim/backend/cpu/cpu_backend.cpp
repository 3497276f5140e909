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

struct Level {
  const char* name;
  const Kernels* (*kernels)();
  bool (*runs)();
};

#if defined(__x86_64__)
bool runs_v4() { return __builtin_cpu_supports("x86-64-v4"); }
bool runs_v4_bf16() { return runs_v4() && __builtin_cpu_supports("avx512bf16"); }
bool runs_v3() { return __builtin_cpu_supports("x86-64-v3"); }
bool runs_v2() { return __builtin_cpu_supports("x86-64-v2"); }
#else
bool runs_v4_bf16() { return false; }
bool runs_v4() { return false; }
bool runs_v3() { return false; }
bool runs_v2() { return false; }
#endif

/// Widest first.
constexpr Level kLevels[] = {{"v4-bf16", kernels_v4_bf16, runs_v4_bf16},
                             {"v4", kernels_v4, runs_v4},
                             {"v3", kernels_v3, runs_v3},
                             {"v2", kernels_v2, runs_v2},
                             {"portable", kernels_portable, [] { return true; }}};

}  // namespace

const Kernels& choose_kernels() {
  const char* const wanted = std::getenv("KVSIM_ISA");
  const std::string name = wanted == nullptr ? "" : wanted;
  for (const Level& level : kLevels) {
    const Kernels* const kernels = level.kernels();
    const bool usable = kernels != nullptr && level.runs();
    if (usable && (name.empty() || name == level.name)) return *kernels;
    if (!usable && name == level.name)
      usage_error({"this machine cannot run the instruction set asked for", "KVSIM_ISA", name});
  }
  usage_error({"unknown instruction set", "KVSIM_ISA", name, "v2, v3, v4, v4-bf16 or portable"});
}

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
