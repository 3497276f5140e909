// The fused replay. Every kept set is a prefix of bands of a plan's ranking. Each band, each
// segment of the whole prompt and the later positions are walked once by all query rows, with a
// softmax state of their own (walk.cu); states are then put together to every kept set (finish.cu).
// A state has its own maximum, so that a set stays accurate however far below the row's largest
// logit all of its entries are: no row has to be done again in float64, as it is on the CPU.
#include <numeric>

#include "sim/backend/cuda/replay_lists.hpp"
#include "sim/backend/cuda/verbs.hpp"
#include "sim/backend/cuda/walks.hpp"
#include "sim/core/parallel.hpp"

namespace kvsim::cuda {
namespace {

class Replay {
 public:
  Replay(Context& context, const LayerTrace& trace, const ReplayRequest& request)
      : context_(context), trace_(trace), request_(request), memory_(context.replay),
        layer_(&context.store.get(trace, context.compute)),
        lists_(trace, request,
               request.chunk > 0 ? std::min(request.chunk, layer_->most_keys) : layer_->most_keys,
               context.replay.list_here),
        heads_(trace.info->num_query_heads), dv_(trace.value_dim()) {
    choose_steps();
    upload(memory_.list, lists_.list.data(), std::ssize(lists_.list), context.compute);
    upload(memory_.plans, lists_.plans, context.compute);
    upload(memory_.everything, lists_.everything, context.compute);
    if (!trace.attention_sink.empty()) upload(memory_.sinks, trace.attention_sink, context.compute);
    if (request.importance != nullptr)
      upload(memory_.importance, request.importance, heads_ * request.importance_columns,
             context.compute);
  }

  int64_t steps_per_block() const { return steps_per_block_; }

  const ReplayBlock& run(int64_t first_step) {
    layer_ = &context_.store.get(trace_, context_.compute);
    steps_ = std::min(steps_per_block_, trace_.info->steps() - first_step);
    rows_ = heads_ * steps_;
    prepare(first_step);
    memory_.rows.clear();
    for (int64_t head = 0; head < heads_; ++head)
      for (int64_t s = 0; s < steps_; ++s)
        memory_.rows.add(trace_, head, trace_.info->first_step() + first_step + s);
    table_ = memory_.rows.upload(context_.compute);
    walk_all();
    finish();
    return memory_.block;
  }

 private:
  void choose_steps() {
    const int64_t columns = layer_->columns;
    steps_per_block_ = steps_together(context_.memory,
                                      {.heads = heads_,
                                       .value_size = dv_,
                                       .columns = columns,
                                       .column_blocks = walk_column_blocks(columns),
                                       .sets = lists_.sets,
                                       .output_sets = lists_.output_sets,
                                       .slots = lists_.slots,
                                       .output_slots = lists_.output_slots},
                                      trace_.info->steps());
  }

  void prepare(int64_t first_step) {
    ReplayBlock& block = memory_.block;
    const auto set_size = [&](Table<double>& table) {
      if (table.rows() != heads_ || table.columns() != steps_)
        table = Table<double>(heads_, steps_);
    };
    block.first_step = first_step;
    block.steps = steps_;
    block.output_steps.resize(static_cast<size_t>(steps_));  // the walk gives them anyway
    std::iota(block.output_steps.begin(), block.output_steps.end(), first_step);
    for (Table<double>* table : {&block.prompt_attention, &block.prompt_importance,
                                 &block.later_attention, &block.later_importance})
      set_size(*table);
    block.z.resize(static_cast<size_t>(rows_ * dv_));
    for (auto* tables : {&block.kept_attention, &block.kept_importance}) {
      tables->resize(static_cast<size_t>(lists_.sets));
      for (Table<double>& table : *tables) set_size(table);
    }
    float* const outputs = memory_.delta.reserve(
        std::max<int64_t>(lists_.output_sets * rows_ * dv_, 1));
    block.delta.assign(static_cast<size_t>(lists_.sets), nullptr);
    for (const FinishPlan& plan : lists_.plans)
      for (int64_t band = 0; band < plan.bands && plan.first_output >= 0; ++band)
        block.delta[static_cast<size_t>(plan.first_set + band)] = outputs +
                                                                  (plan.first_output + band) *
                                                                      rows_ * dv_;
  }

  void walk_all() {
    Walk walk = walk_of(*layer_, trace_, table_, rows_);
    walk.list = memory_.list.data();
    walk.importance = request_.importance != nullptr ? memory_.importance.data() : nullptr;
    walk.importance_columns = request_.importance_columns;
    walk.slots = lists_.slots;
    walk.sums = memory_.sums.reserve(lists_.slots * rows_ * walk_column_blocks(layer_->columns));
    walk.outputs = memory_.outputs.reserve(lists_.output_slots * rows_ * layer_->columns);
    // Rows are head-major: a block of 128 rows meets this many heads of a group at most.
    const int64_t group = trace_.info->group_size();
    if (walk.importance != nullptr)
      walk.heads_per_tile = static_cast<int>(std::min(group, 127 / steps_ + 2));
    const int64_t last = trace_.info->query_position[static_cast<size_t>(
        trace_.info->first_step() + memory_.block.first_step + steps_ - 1)];
    for (int64_t chunk = 0; chunk < lists_.chunks(); ++chunk) {
      const Range positions = lists_.positions(chunk);
      if (chunk > 0 && positions.begin > last) break;
      context_.store.show_keys(*layer_, positions, context_.compute);
      const std::vector<WalkItem> items = lists_.items(chunk, steps_, last);
      walk.items = upload(memory_.items, items, context_.compute);
      run_walk(context_, *layer_, trace_, walk, static_cast<int64_t>(items.size()), group * steps_);
    }
  }

  void finish() {
    ReplayBlock& block = memory_.block;
    const cudaStream_t stream = context_.compute;
    Finish task{};
    task.rows = rows_;
    task.dv = static_cast<int>(dv_);
    task.columns = static_cast<int>(layer_->columns);
    task.prompt_slots = static_cast<int>(lists_.prompt_slots);
    task.plans = static_cast<int>(lists_.plans.size());
    task.sums = memory_.sums.data();
    task.outputs = memory_.outputs.data();
    task.plan = memory_.plans.data();
    task.everything = memory_.everything.data();
    task.head = table_.head;
    task.heads = static_cast<int>(heads_);
    task.sinks = trace_.attention_sink.empty() ? nullptr : memory_.sinks.data();
    task.full = memory_.full.reserve(4 * rows_);
    task.sets = static_cast<int>(lists_.sets);
    task.kept = memory_.kept.reserve(std::max<int64_t>(2 * lists_.sets * rows_, 1));
    task.z = memory_.z.reserve(rows_ * dv_);
    task.delta = memory_.delta.data();
    launch_finish(task, stream);

    const int64_t kept = 2 * lists_.sets * rows_;
    double* const sums = memory_.sums_here.reserve(4 * rows_ + kept);
    float* const z = memory_.z_here.reserve(rows_ * dv_);
    download(sums, task.full, 4 * rows_, stream);
    download(sums + 4 * rows_, task.kept, kept, stream);
    download(z, task.z, rows_ * dv_, stream);
    context_.compute.wait();
    std::copy_n(z, rows_ * dv_, block.z.begin());
    std::vector<Table<double>*> tables = {&block.prompt_attention, &block.prompt_importance,
                                          &block.later_attention, &block.later_importance};
    for (auto* kept_tables : {&block.kept_attention, &block.kept_importance})
      for (Table<double>& table : *kept_tables) tables.push_back(&table);
    parallel_for(std::ssize(tables), [&](int64_t i) {
      std::copy_n(sums + i * rows_, rows_, tables[static_cast<size_t>(i)]->data());
    });
  }

  Context& context_;
  const LayerTrace& trace_;
  const ReplayRequest& request_;
  ReplayMemory& memory_;
  DeviceLayer* layer_;
  ReplayLists lists_;
  int64_t heads_, dv_;
  int64_t steps_per_block_ = 0;
  int64_t steps_ = 0, rows_ = 0;  ///< of the block in work
  RowTable table_;
};

}  // namespace

void replay(Context& context, const LayerTrace& trace, const ReplayRequest& request,
            const std::function<void(const ReplayBlock&)>& sink) {
  const int64_t steps = trace.info->steps();
  if (steps == 0) return;
  std::unique_ptr<Replay> run;
  {
    const std::lock_guard lock(context.verb);
    run = std::make_unique<Replay>(context, trace, request);
  }
  for (int64_t first = 0; first < steps; first += run->steps_per_block()) {
    const ReplayBlock* block = nullptr;
    {
      const std::lock_guard lock(context.verb);
      block = &run->run(first);
    }
    sink(*block);  // may call other verbs
  }
}

}  // namespace kvsim::cuda
