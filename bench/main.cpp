// One problem in memory and a small conversation: bench/run.py asks for one timed run at a time, so
// that runs of several programs alternate on the same machine.
#include <algorithm>
#include <boost/program_options.hpp>
#include <iostream>
#include <sstream>
#include <stdexcept>

#include "bench/forms.hpp"
#include "bench/gemm.hpp"
#include "bench/peak.hpp"
#include "sim/backend/cpu/verbs.hpp"
#include "sim/backend/cuda_backend.hpp"
#include "sim/core/parallel.hpp"

namespace {

using namespace kvsim;
namespace options = boost::program_options;

// Outputs of all forms against float64, as the bars say. The baselines sum in plain float32.
constexpr double kTolerance = 5e-6;
constexpr double kBaselineTolerance = 2e-5;

double error_of(const bench::Form& form, const bench::Problem& problem) {
  bench::Outputs outputs;
  form.run(problem, &outputs);
  return bench::largest_error(problem, outputs);
}

/// Refuses to time what is wrong.
bool check(const bench::Problem& problem, const std::vector<std::string>& names) {
  for (const bench::Form& form : bench::forms()) {
    if (!form.comparable || std::find(names.begin(), names.end(), form.name) == names.end())
      continue;
    const double error = error_of(form, problem);
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

/// Of "member=value,member=value"; "default" changes nothing.
Shapes shapes_of(const std::string& text) {
  Shapes shapes;
  std::istringstream cells(text == "default" ? "" : text);
  for (std::string cell; std::getline(cells, cell, ',');) {
    const size_t at = cell.find('=');
    const std::string name = cell.substr(0, at);
    const auto member = std::ranges::find(kShapeMembers, name, &ShapeMember::name);
    if (member == std::end(kShapeMembers) || at == std::string::npos)
      throw std::invalid_argument("no such shape: " + cell);
    shapes.*member->value = std::stoll(cell.substr(at + 1));
  }
  return shapes;
}

/// What may be tried beside the default.
void print_shapes() {
  for (const ShapeMember& member : kShapeMembers) {
    std::cout << "shape." << member.name << " " << member.forms;
    for (const int64_t value : member.others) std::cout << " " << value;
    std::cout << "\n";
  }
}

void converse(bench::Problem& problem) {
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
    if (name == "shapes") {
      std::string text;
      std::cin >> text;
      problem.backend = make_cpu_backend(shapes_of(text));
      continue;
    }
    if (name == "error") {
      std::string of;
      std::cin >> of;
      for (const bench::Form& form : bench::forms())
        if (form.name == of) std::cout << error_of(form, problem) << std::endl;
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

  bench::Problem problem(shape, backend == "cuda" ? make_cuda_backend() : make_cpu_backend());
  if (!file.empty()) problem.write(file);
  if (!check(problem, names)) return 1;
  std::cout << "device " << problem.backend->device()
            << "; matrix products of the baselines: " << bench::gemm_library() << "\nunit "
            << problem.unit() << "\n";
  print_shapes();
  std::cout << "ready" << std::endl;
  converse(problem);
  return 0;
}
