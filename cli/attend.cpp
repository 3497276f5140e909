#include <cstdio>

#include "cli/command.hpp"
#include "cli/terminal.hpp"
#include "io/trace_reader.hpp"
#include "run/live/live_attention.hpp"

namespace kvsim::cli::attend_command {
namespace {

// The conversation, all numbers little-endian as this machine has them:
//   attend: int32 1, first                once, when all kept sets are chosen: the first position
//                                         whose query may miss entries; before n every query of the
//                                         prompt is asked for, M = N
//   model:  int32 policy, budget, layer   numbers of the first two in the order of the options
//           float32 q [Hq][M][d], k [Hkv][N][d], v [Hkv][N][dv]
//   attend: int32 0                       that layer's cache stays as it is
//        or int32 1, first, float32 z^ [Hq][N - first][dv]
// until the model closes its end.
constexpr int32_t kUnchanged = 0;
constexpr int32_t kReady = 1;

/// False when the input ends before the first byte.
bool read_bytes(void* target, size_t bytes) {
  const size_t found = std::fread(target, 1, bytes, stdin);
  if (found == bytes) return true;
  if (found == 0 && std::feof(stdin) != 0) return false;
  bad_data({"the request ends too early", "standard input", std::to_string(found) + " bytes",
            std::to_string(bytes) + " bytes"});
}

Tensor read_tensor(const char* name, int64_t a, int64_t b, int64_t c) {
  Tensor tensor(ElementType::float32, {a, b, c});
  if (!read_bytes(tensor.data(), tensor.bytes()))
    bad_data({"the request ends too early", "standard input", "", std::string("tensor ") + name});
  const int64_t bad = first_non_finite(ElementType::float32, tensor.data(), tensor.count());
  if (bad >= 0)
    bad_data({"not a finite number", "standard input",
              std::string(name) + " at flat index " + std::to_string(bad)});
  return tensor;
}

size_t number(int32_t value, size_t count, const char* what) {
  if (value >= 0 && static_cast<size_t>(value) < count) return static_cast<size_t>(value);
  bad_data({std::string("no such ") + what, "standard input", std::to_string(value),
            "0 to " + std::to_string(count - 1)});
}

/// The next request; nothing when the input ends.
std::optional<LiveAttention::Call> read_call(const LiveAttention& attention) {
  std::array<int32_t, 3> head{};
  if (!read_bytes(head.data(), sizeof head)) return std::nullopt;
  LiveAttention::Call call;
  call.record = number(head[0], attention.records().size(), "policy");
  call.budget = number(head[1], attention.budgets().size(), "budget");
  call.layer = head[2];
  if (!contains(attention.layers(), call.layer))
    bad_data(
        {"no such layer", "standard input", std::to_string(call.layer), "a layer of --layers"});
  const TraceInfo& info = attention.info();
  const auto queries = std::ssize(info.query_position);
  call.q = read_tensor("q", info.num_query_heads, queries, info.head_dim);
  call.k = read_tensor("k", info.num_kv_heads, info.total_len, info.head_dim);
  call.v = read_tensor("v", info.num_kv_heads, info.total_len, attention.value_dim(call.layer));
  return call;
}

void write_bytes(const void* source, size_t bytes) {
  if (std::fwrite(source, 1, bytes, stdout) == bytes) return;
  throw Error(Fault::failure, {"cannot write", "standard output"});
}

void write_numbers(const std::vector<int32_t>& numbers) {
  write_bytes(numbers.data(), numbers.size() * sizeof(int32_t));
}

void flush() {
  if (std::fflush(stdout) == 0) return;
  throw Error(Fault::failure, {"cannot write", "standard output"});
}

int run(const Values& values) {
  const TraceReader trace(text(values, "trace"), text(values, "later"));
  if (is_terminal(stdin) || is_terminal(stdout))
    usage_error({.what = "speaks with a program, not with a terminal",
                 .where = "attend",
                 .hint = "kvsim closed-loop starts it"});
  const std::vector<Record> records = records_of(values);
  if (records.empty()) usage_error({"no policy", "--policy", "", "at least one"});
  const std::vector<Budget> budgets = budgets_of(values);
  if (budgets.empty()) usage_error({"no budget", "--budget", "", "at least one"});
  StudyOptions measured;
  read_measure_options(values, measured);
  LiveAttention attention(trace, records, budgets, chosen_layers(values, trace.info()),
                          seed(values), measured.importance);
  {
    Progress progress("kept sets");
    attention.choose([&](int64_t done, int64_t all) {
      progress.update(static_cast<double>(done) / static_cast<double>(all), "");
    });
  }
  write_numbers({kReady, static_cast<int32_t>(attention.first())});
  flush();
  while (const auto call = read_call(attention)) {
    const auto outputs = attention.attend(*call);
    if (outputs) {
      write_numbers({kReady, static_cast<int32_t>(outputs->first)});
      write_bytes(outputs->z.data(), outputs->z.size() * sizeof(float));
    } else {
      write_numbers({kUnchanged});
    }
    flush();
  }
  return kDone;
}

const bool registered = register_command(
    {.name = "attend",
     .summary = "serve attention over compressed caches to a model that runs with them",
     .arguments = {{.name = "trace", .meaning = "the trace file"}},
     .description =
         "For `kvsim closed-loop`, which starts it: a model that runs on the trace's tokens hands\n"
         "over each layer's own queries, keys and values on standard input and gets, on standard\n"
         "output, what attention over the cache of that policy and budget gives for every later\n"
         "token. The numbers that go back and forth are described in docs/study.md 8.",
     .options = {{"policy", "RECORD", kRecords, true},
                 {"budget"},
                 {"layers"},
                 {"importance", "l1|l2", "norm of v W in the importance (default: l1)"},
                 {"later"},
                 {"seed"}},
     .examples = {"kvsim attend data/sample.h5 --policy keepkv --budget 0.3 < requests > answers",
                  "kvsim attend data/sample.h5 --policy h2o:official --policy tova:official "
                  "--budget 0.1,0.3 --layers 0 < requests > answers"},
     .run = run});

}  // namespace
}  // namespace kvsim::cli::attend_command
