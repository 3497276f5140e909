// One problem in memory and a small conversation: bench/run.py asks for one timed run at a time, so
// that runs of several programs alternate on the same machine.
#include <algorithm>
#include <boost/program_options.hpp>
#include <iostream>

#include "bench/forms.hpp"
#include "bench/gemm.hpp"
#include "bench/peak.hpp"
#include "sim/backend/cuda_backend.hpp"
#include "sim/core/parallel.hpp"

namespace {

using namespace kvsim;
namespace options = boost::program_options;

// Outputs of all forms against float64, as the bars say. The baselines sum in plain float32.
constexpr double kTolerance = 5e-6;
constexpr double kBaselineTolerance = 2e-5;

/// Refuses to time what is wrong.
bool check(const bench::Problem& problem, const std::vector<std::string>& names) {
  for (const bench::Form& form : bench::forms()) {
    if (!form.comparable || std::find(names.begin(), names.end(), form.name) == names.end())
      continue;
    bench::Outputs outputs;
    form.run(problem, &outputs);
    const double error = bench::largest_error(problem, outputs);
    std::cout << "error " << form.name << " " << error << std::endl;
    const bool baseline = form.name == "gather" || form.name == "mask";
    if (!(error < (baseline ? kBaselineTolerance : kTolerance))) return false;
  }
  return true;
}

double seconds(const bench::Form& form, const bench::Problem& problem) {
  const double begin = bench::now();
  form.run(problem, nullptr);
  return bench::now() - begin;
}

void converse(const bench::Problem& problem) {
  for (std::string name; std::cin >> name;) {
    if (name == "threads") {
      int count = 0;
      std::cin >> count;
      set_threads(count);
      continue;
    }
    if (name == "processor-time") {
      bench::use_processor_time();
      continue;
    }
    if (name == "peak") {
      std::cout << bench::peak_gflops() << std::endl;
      continue;
    }
    for (const bench::Form& form : bench::forms())
      if (form.name == name) std::cout << seconds(form, problem) << std::endl;
  }
}

}  // namespace

int main(int count, char** arguments) {
  bench::Shape shape;
  std::string file, backend = "cpu";
  std::vector<std::string> names;
  options::options_description description;
  auto add = description.add_options();
  add("n", options::value(&shape.n));
  add("d", options::value(&shape.d));
  add("steps", options::value(&shape.steps));
  add("group", options::value(&shape.group));
  add("chunk", options::value(&shape.chunk), "keys per chunk of the fused replay");
  add("backend", options::value(&backend), "cpu or cuda");
  add("file", options::value(&file), "write the problem for other programs");
  add("check", options::value(&names)->multitoken(), "forms to compare with float64 first");
  options::variables_map values;
  options::store(options::parse_command_line(count, arguments, description), values);
  options::notify(values);

  const bench::Problem problem(shape, backend == "cuda" ? make_cuda_backend() : make_cpu_backend());
  if (!file.empty()) problem.write(file);
  if (!check(problem, names)) return 1;
  std::cout << "device " << problem.backend->device()
            << "; matrix products of the baselines: " << bench::gemm_library() << "\nunit "
            << problem.unit() << "\nready" << std::endl;
  converse(problem);
  return 0;
}
