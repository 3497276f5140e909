
#include "sim/stages/quantize/number_format.hpp"

namespace kvsim {
namespace {

std::map<std::string, NumberFormat, std::less<>>& table() {
  static std::map<std::string, NumberFormat, std::less<>> formats;
  return formats;
}

}  // namespace

DeclareFormat::DeclareFormat(NumberFormat format) {
  const std::string name = format.name;
  if (!table().emplace(name, std::move(format)).second)
    throw std::logic_error("two formats are called " + name);
}

std::vector<const NumberFormat*> number_formats() {
  std::vector<const NumberFormat*> all;
  for (const auto& [name, format] : table()) all.push_back(&format);
  return all;
}

std::vector<double> best_levels(const std::function<double(double)>& density, double low,
                                double high, int64_t bits) {
  constexpr int kCells = 4096;  // of the density
  constexpr int kSteps = 1000;  // of Lloyd's iteration at most
  std::vector<double> mass(kCells + 1, 0), moment(kCells + 1, 0);
  const auto middle = [&](int cell) { return low + (high - low) * (cell + 0.5) / kCells; };
  for (int cell = 0; cell < kCells; ++cell) {
    const auto next = static_cast<size_t>(cell) + 1;
    const double own = density(middle(cell));
    mass[next] = mass[next - 1] + own;
    moment[next] = moment[next - 1] + own * middle(cell);
  }
  const auto count = size_t{1} << bits;
  std::vector<double> levels(count);
  for (size_t k = 0; k < count; ++k) {  // quantiles
    const double wanted = (static_cast<double>(k) + 0.5) / static_cast<double>(count) * mass.back();
    levels[k] = middle(static_cast<int>(std::ranges::lower_bound(mass, wanted) - mass.begin()) - 1);
  }
  for (int step = 0; step < kSteps; ++step) {
    std::vector<double> moved = levels;
    size_t from = 0;
    for (size_t k = 0; k < count; ++k) {
      const double end = k + 1 < count ? (levels[k] + levels[k + 1]) / 2 : high;
      const auto to = static_cast<size_t>(std::llround((end - low) / (high - low) * kCells));
      if (mass[to] > mass[from]) moved[k] = (moment[to] - moment[from]) / (mass[to] - mass[from]);
      from = to;
    }
    if (moved == levels) break;
    levels = std::move(moved);
  }
  return levels;
}

const NumberFormat* find_format(std::string_view name) {
  const auto found = table().find(name);
  return found == table().end() ? nullptr : &found->second;
}

}  // namespace kvsim
