#include <catch2/catch.hpp>
#include <thread>

#include "sim/backend/cuda_backend.hpp"
#include "tests/sim/backend/backends.hpp"
#include "tests/support/cuda_on_host/backend.hpp"
#include "tests/support/random_trace.hpp"

namespace kvsim::test {
namespace {

/// Numbers that every tensor of a layer goes into.
std::vector<double> verbs(Backend& backend, const LayerTrace& layer) {
  const int64_t entries = layer.info->prompt_len, heads = layer.info->num_query_heads;
  AttentionSumRequest request;
  request.columns = entries;
  request.rows = {0, 3};
  request.sums = {{AttentionSum::Of::attention, {1, 2}, {}}};
  std::vector<double> out = backend.attention_sums(layer, request).front().values();
  std::vector<float> norms(static_cast<size_t>(heads * entries));
  backend.projected_norms(layer, Norm::l1, {0, entries}, norms.data());
  out.insert(out.end(), norms.begin(), norms.end());
  return out;
}

std::unique_ptr<RandomTrace> layer_of(uint64_t seed, int64_t prompt) {
  return random_trace({.prompt = prompt, .type = ElementType::bfloat16, .seed = seed});
}

}  // namespace

TEST_CASE("layers that are brought ahead change no result", "[backend][prefetch]") {
  std::vector<NamedBackend> backends = all_backends();
#if !defined(__SANITIZE_THREAD__)  // see all_backends
  backends.push_back({"cuda on the host, too small", host_cuda::make_backend_with(16 << 10)});
#endif
  const std::vector<std::unique_ptr<RandomTrace>> traces = [] {
    std::vector<std::unique_ptr<RandomTrace>> made;
    for (const int64_t prompt : {70, 70, 33}) made.push_back(layer_of(made.size() + 1, prompt));
    return made;
  }();
  for (auto& [name, backend] : backends) {
    auto* const ahead = dynamic_cast<PrefetchingBackend*>(backend.get());
    if (ahead == nullptr) continue;
    CAPTURE(name);
    std::vector<std::vector<double>> alone;
    for (const auto& trace : traces) alone.push_back(verbs(*backend, trace->layer));
    CHECK(alone[0] != alone[1]);
    // {brought ahead, worked on meanwhile}: in order, the same one, one that nobody asks for.
    const std::vector<std::pair<size_t, size_t>> turns = {{1, 0}, {2, 1}, {0, 2}, {0, 0}, {1, 0},
                                                          {2, 2}, {1, 2}, {1, 0}, {2, 1}};
    for (const auto& [next, now] : turns) {
      CAPTURE(next, now);
      ahead->prefetch(traces[next]->layer);
      CHECK(verbs(*backend, traces[now]->layer) == alone[now]);
    }
    for (const auto& [next, now] : turns) {  // as the study does: while verbs run
      ahead->begin(traces[now]->layer);
      std::thread reader([&, layer = next] { ahead->prefetch(traces[layer]->layer); });
      const auto got = verbs(*backend, traces[now]->layer);
      reader.join();
      CHECK(got == alone[now]);
    }
  }
}

}  // namespace kvsim::test
