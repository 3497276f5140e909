#include <algorithm>
#include <cmath>

#include "sim/core/error.hpp"
#include "sim/stages/allocate/allocate.hpp"
#include "sim/stages/common_keys.hpp"
#include "sim/stages/protect/protect.hpp"

namespace kvsim::stages::allocate::from_table {
namespace {

const Declare table("table", "file or none", "none",
                    "text file, one row per model layer, one number per head");
const Declare streaming_share("streaming_share", "number [0, 1] or none", "none",
                              "share of heads that stream; none: as the budget asks",
                              tested("0.3"));

Table<double> read(const AllocationRequest& request) {
  return request.files->table(request.settings->text(table), request.model_layers, request.owners);
}

/// Allocates by the file `table`.
class TableAllocate : public Allocate {
 public:
  using Allocate::Allocate;
  bool spends_budget() const override { return false; }
  void check_files(const Settings& settings, const SideFiles& files, int model_layers,
                   int64_t owners) const override {
    if (!settings.is_none(table)) files.table(settings.text(table), model_layers, owners);
  }
};

class Duo : public TableAllocate {
 public:
  Duo()
      : TableAllocate({"allocate",
                       "duo",
                       "heads of low gate keep sinks and recent, the others all",
                       "DuoAttention",
                       {"table", "streaming_share"},
                       "the file `table`"}) {}
  bool across_layers() const override { return true; }
  Table<int64_t> budgets(const AllocationRequest& request) const override {
    const Table<double> gates = read(request);
    struct Head {
      double gate;
      int64_t layer, owner;
    };
    std::vector<Head> heads;
    for (size_t l = 0; l < request.layers.size(); ++l)
      for (int64_t owner = 0; owner < request.owners; ++owner)
        heads.push_back({std::clamp(gates(request.layers[l].layer, owner), 0.0, 1.0),
                         static_cast<int64_t>(l), owner});
    std::stable_sort(heads.begin(), heads.end(),
                     [](const Head& a, const Head& b) { return a.gate < b.gate; });
    const Settings& settings = *request.settings;
    const int64_t streaming = std::min(
        request.entries,
        settings.count(keys::sinks) + settings.share(keys::recent, request.budget));
    const auto count = static_cast<int64_t>(heads.size());
    int64_t stream = 0;
    if (settings.is_none(streaming_share)) {
      const int64_t total = count * request.budget;
      while (stream < count && stream * streaming + (count - stream) * request.entries > total)
        ++stream;
    } else {
      stream = settings.decimal(streaming_share).half_even_times(count);
    }
    Table<int64_t> b(static_cast<int64_t>(request.layers.size()), request.owners, request.entries);
    for (int64_t at = 0; at < stream; ++at) {
      const Head& head = heads[static_cast<size_t>(at)];
      b(head.layer, head.owner) = streaming;
    }
    return b;
  }
};
const Register<Allocate, Duo> duo;

class FromTable : public TableAllocate {
 public:
  FromTable()
      : TableAllocate({"allocate",
                       "table",
                       "numbers of the file `table`, whatever the budget",
                       "kvsim",
                       {"table"},
                       "the file `table`"}) {}
  bool ignores_budget() const override { return true; }
  Table<int64_t> budgets(const AllocationRequest& request) const override {
    const Table<double> rows = read(request);
    Table<int64_t> b(static_cast<int64_t>(request.layers.size()), request.owners);
    for (size_t l = 0; l < request.layers.size(); ++l)
      for (int64_t owner = 0; owner < request.owners; ++owner) {
        const double entry = rows(request.layers[l].layer, owner);
        if (entry < 0 || entry != std::floor(entry))
          bad_data({.what = "a budget that is no whole number",
                    .where = request.settings->text(table),
                    .found = shortest(entry),
                    .expected = "an integer >= 0"});
        b(static_cast<int64_t>(l),
          owner) = static_cast<int64_t>(std::min(entry, static_cast<double>(request.entries)));
      }
    return b;
  }
};
const Register<Allocate, FromTable> from_table;

}  // namespace
}  // namespace kvsim::stages::allocate::from_table
