#include <fstream>
#include <string>

#include "sim/backend/cpu/verbs.hpp"

namespace kvsim {
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

class CpuBackend : public Backend {
 public:
  explicit CpuBackend(const Shapes& shapes) : kernels_(choose_kernels()), shapes_(shapes) {}

  std::string name() const override { return "cpu"; }
  std::string device() const override {
    const std::string processor = processor_name();
    return (processor.empty() ? "unknown processor" : processor) + ", " + kernels_.isa;
  }
  void attention(const LayerTrace& layer, const AttentionRequest& request,
                 AttentionBlock& block) override {
    cpu_attention(kernels_, layer, request, block);
  }
  std::vector<Table<double>> attention_sums(const LayerTrace& layer,
                                            const AttentionSumRequest& request) override {
    return cpu_attention_sums(kernels_, shapes_, layer, request, replay_memory_.tiles);
  }
  void attend(const LayerTrace& layer, std::span<const SlotRows> owners) override {
    cpu_attend(kernels_, layer, owners, attend_memories_);
  }
  void output_metrics(const LayerTrace& layer, std::span<const HeadPair> pairs,
                      Range entries) override {
    cpu_output_metrics(kernels_, layer, pairs, entries);
  }
  void value_products(const LayerTrace& layer, int kv_head, const double* y, int64_t rows,
                      Range entries, double* out) override {
    cpu_value_products(kernels_, layer, kv_head, y, rows, entries, out);
  }
  void projected_norms(const LayerTrace& layer, Norm norm, Range entries, float* out) override {
    cpu_projected_norms(kernels_, layer, norm, entries, out);
  }
  void value_norms(const LayerTrace& layer, Norm norm, Range entries, float* out) override {
    cpu_value_norms(kernels_, layer, norm, entries, out);
  }
  void replay(const LayerTrace& layer, const ReplayRequest& request,
              const std::function<void(const ReplayBlock&)>& sink) override {
    cpu_replay(kernels_, shapes_, layer, request, sink, replay_memory_);
  }
  void read_outputs(const float* delta, int64_t count, float* out) override {
    std::copy_n(delta, count, out);
  }
  std::unique_ptr<Projection> projection(const LayerTrace& layer) override {
    return cpu_projection(kernels_, layer, replay_memory_);
  }

 private:
  const Kernels& kernels_;
  const Shapes shapes_;
  ReplayMemory replay_memory_;
  AttendMemories attend_memories_;
};

}  // namespace

std::unique_ptr<Backend> make_cpu_backend(const Shapes& shapes) {
  return std::make_unique<CpuBackend>(shapes);
}

/// Takes equal shapes everywhere: where others were tried (bench/README.md) none was faster. A
/// processor on which one is gets it here.
std::unique_ptr<Backend> make_cpu_backend() { return make_cpu_backend(Shapes{}); }

}  // namespace kvsim
