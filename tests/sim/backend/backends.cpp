#include "tests/sim/backend/backends.hpp"

#include <cstdlib>

#include "sim/backend/cuda_backend.hpp"
#include "sim/core/error.hpp"
#include "sim/core/parallel.hpp"
#include "tests/support/cuda_on_host/backend.hpp"

namespace kvsim::test {

ForcedThreads::ForcedThreads(int count) : before_(threads()) { set_threads(count); }
ForcedThreads::~ForcedThreads() { set_threads(before_); }

double output_tolerance(const Backend& backend, const LayerTrace& layer) {
  return backend.name() == "cuda" && layer.v.type() != ElementType::float32 ? 1e-5 : 5e-6;
}

std::vector<NamedShapes> all_shapes() {
  std::vector<NamedShapes> result = {{"small",
                                      {.tile_rows = 10,
                                       .one_chunk = 64,
                                       .chunk = 50,
                                       .sum_bytes = 1,
                                       .index_block = 5,
                                       .row_block = 7,
                                       .score_block = 9}}};
  for (const ShapeMember& member : kShapeMembers)
    for (const int64_t value : member.others) {
      result.push_back({std::string(member.name) + "=" + std::to_string(value), {}});
      result.back().shapes.*member.value = value;
    }
  return result;
}

std::vector<NamedBackend> all_backends() {
  std::vector<NamedBackend> result;
  const char* const only = std::getenv("KVSIM_TEST_BACKEND");
  if (only != nullptr && std::string(only) == "cuda") {
    result.push_back({"cuda", make_cuda_backend()});
    return result;
  }
  for (const std::string& isa : instruction_sets()) {
    const ForcedIsa forced(isa);
    result.push_back({"cpu " + isa, make_cpu_backend()});
  }
#if !defined(__SANITIZE_THREAD__)  // to which the fibres are one endless stack
  result.push_back({"cuda on the host", host_cuda::make_backend()});
#endif
  if (has_cuda_backend()) {
    try {
      result.push_back({"cuda", make_cuda_backend()});
    } catch (const Error&) {  // no device
    }
  }
  return result;
}

}  // namespace kvsim::test
