// The fused replay. Every kept set is a prefix of bands of a plan's ranking. Each band, each
// segment of the whole prompt and the later positions are walked once by all query rows, with a
// softmax state of their own (walk.cu); states are then put together to every kept set (finish.cu).
// A state has its own maximum, so that a set stays accurate however far below the row's largest
// logit all of its entries are: no row has to be done again in float64, as it is on the CPU.
#include "sim/backend/cuda/context.hpp"
#include "sim/backend/cuda/replay_lists.hpp"
#include "sim/backend/cuda/scores.hpp"
#include "sim/backend/cuda/tiles.hpp"
#include "sim/backend/cuda/walk.hpp"

namespace kvsim::cuda {
namespace {

constexpr int kFinishThreads = 128;

/// A softmax over some keys that grows: `prompt` and `later` masses and importances apart, and one
/// column of the outputs.
struct Growing {
  float maximum = kMinusInfinity;
  float prompt = 0, later = 0, prompt_importance = 0, later_importance = 0;
  float output = 0;

  __device__ void add(const RowSums& sums, float more, bool of_prompt) {
    if (sums.maximum == kMinusInfinity) return;
    const float top = fmaxf(maximum, sums.maximum);
    const float keep = maximum == kMinusInfinity ? 0.0f : exp2_fast((maximum - top) * kLog2E);
    const float factor = exp2_fast((sums.maximum - top) * kLog2E);
    maximum = top;
    prompt = prompt * keep + (of_prompt ? sums.mass * factor : 0.0f);
    later = later * keep + (of_prompt ? 0.0f : sums.mass * factor);
    prompt_importance = prompt_importance * keep + (of_prompt ? sums.importance * factor : 0.0f);
    later_importance = later_importance * keep + (of_prompt ? 0.0f : sums.importance * factor);
    output = output * keep + more * factor;
  }
  /// Of the softmax with its sink, which has a logit but no value.
  __device__ double total(float sink) const {
    const double above = static_cast<double>(sink) - static_cast<double>(maximum);
    return static_cast<double>(prompt) + static_cast<double>(later) +
           (sink > kMinusInfinity ? exp(fmin(above, kSinkAlone)) : 0);
  }
};

// One block per row, one thread per column of the values; a head wider than the block takes several
// rounds. Every thread carries the few sums of its row again, and the first writes the shares.
// Reads each state once and writes each result once, in whole lines: memory sets the time.
__global__ void finish_rows(Finish p) {
  const int64_t row = blockIdx.x;
  const int head = p.head[row];
  const float sink = p.sinks != nullptr ? p.sinks[head] : kMinusInfinity;
  for (int round = 0; round < p.dv; round += kFinishThreads) {
    const int c = round + static_cast<int>(threadIdx.x);
    const bool own = c < p.dv, first = c == 0;
    const auto state = [&](Growing& growing, int slot, bool of_prompt, bool output) {
      const int64_t at = slot * p.rows + row;
      growing.add(p.sums[at], own && output ? p.outputs[at * p.columns + c] : 0.0f, of_prompt);
    };
    Growing later, full;
    state(later, kLaterSlot, false, true);
    full = later;
    for (int i = 0; i < p.prompt_slots; ++i) state(full, kFirstPromptSlot + i, true, true);
    const double total = full.total(sink);
    const double shares[4] = {full.prompt / total, full.prompt_importance / total,
                              full.later / total, full.later_importance / total};
    const float z = full.output * static_cast<float>(1 / total);
    if (own) p.z[row * p.dv + c] = z;
    for (int i = 0; i < 4 && first; ++i) p.full[i * p.rows + row] = shares[i];

    for (int i = 0; i < p.plans; ++i) {
      const FinishPlan plan = p.plan[i];
      const bool output = plan.first_output >= 0;
      Growing kept = later;
      for (int band = 0; band < plan.bands; ++band) {
        state(kept, plan.first_slot + band, true, output);
        const int set = plan.first_set + band;
        // With nothing dropped the order of the sums must not show.
        const bool everything = p.everything[static_cast<int64_t>(set) * p.heads + head] != 0;
        if (output && own) {
          const float inverse = static_cast<float>(1 / kept.total(sink));
          p.delta[(static_cast<int64_t>(plan.first_output + band) * p.rows + row) * p.dv + c] =
              everything ? 0.0f : kept.output * inverse - z;
        }
        if (!first) continue;
        // A part is never larger than the whole, also in the last bit.
        const double factor = exp(static_cast<double>(kept.maximum) -
                                  static_cast<double>(full.maximum)) /
                              total;
        double* const to = p.kept + static_cast<int64_t>(set) * p.rows + row;
        *to = everything ? shares[0] : fmin(shares[0], kept.prompt * factor);
        to[static_cast<int64_t>(p.sets) * p.rows] = everything
                                                        ? shares[1]
                                                        : fmin(shares[1],
                                                               kept.prompt_importance * factor);
      }
    }
  }
}

__global__ void divide_outputs(FinishOutputs p) {
  const int64_t row = blockIdx.x;
  const float sink = p.sinks != nullptr ? p.sinks[p.head[row]] : kMinusInfinity;
  for (int c = static_cast<int>(threadIdx.x); c < p.dv; c += kFinishThreads) {
    Growing all;
    for (int slot = 0; slot < p.slots; ++slot) {
      const int64_t at = slot * p.rows + row;
      all.add(p.sums[at], p.outputs[at * p.columns + c], true);
    }
    p.z[row * p.dv + c] = all.output * static_cast<float>(1 / all.total(sink));
  }
}

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
    block.output_steps.resize(steps_);  // the walk gives them anyway
    std::iota(block.output_steps.begin(), block.output_steps.end(), first_step);
    for (Table<double>* table : {&block.prompt_attention, &block.prompt_importance,
                                 &block.later_attention, &block.later_importance})
      set_size(*table);
    block.z.resize(rows_ * dv_);
    for (auto* tables : {&block.kept_attention, &block.kept_importance}) {
      tables->resize(lists_.sets);
      for (Table<double>& table : *tables) set_size(table);
    }
    float* const outputs = memory_.delta.reserve(
        std::max<int64_t>(lists_.output_sets * rows_ * dv_, 1));
    block.delta.assign(lists_.sets, nullptr);
    for (const FinishPlan& plan : lists_.plans)
      for (int64_t band = 0; band < plan.bands && plan.first_output >= 0; ++band)
        block.delta[plan.first_set + band] = outputs + (plan.first_output + band) * rows_ * dv_;
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
    const int64_t last = trace_.info->query_position[trace_.info->first_step() +
                                                     memory_.block.first_step + steps_ - 1];
    for (int64_t chunk = 0; chunk < lists_.chunks(); ++chunk) {
      const Range positions = lists_.positions(chunk);
      if (chunk > 0 && positions.begin > last) break;
      context_.store.show_keys(*layer_, positions, context_.compute);
      const std::vector<WalkItem> items = lists_.items(chunk, steps_, last);
      walk.items = upload(memory_.items, items, context_.compute);
      run_walk(context_, *layer_, trace_, walk, std::ssize(items), group * steps_);
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
    launch(finish_rows, dim3(static_cast<unsigned>(rows_)), kFinishThreads, 0, stream, task);

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
    parallel_for(std::ssize(tables),
                 [&](int64_t i) { std::copy_n(sums + i * rows_, rows_, tables[i]->data()); });
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

void launch_finish_outputs(const FinishOutputs& finish, cudaStream_t stream) {
  launch(divide_outputs, dim3(static_cast<unsigned>(finish.rows)), kFinishThreads, 0, stream,
         finish);
}

void CudaBackend::replay(const LayerTrace& trace, const ReplayRequest& request,
                         const std::function<void(const ReplayBlock&)>& sink) {
  const int64_t steps = trace.info->steps();
  if (steps == 0) return;
  std::unique_ptr<Replay> run;
  {
    const std::lock_guard lock(context_.verb);
    run = std::make_unique<Replay>(context_, trace, request);
  }
  for (int64_t first = 0; first < steps; first += run->steps_per_block()) {
    const ReplayBlock* block = nullptr;
    {
      const std::lock_guard lock(context_.verb);
      block = &run->run(first);
    }
    sink(*block);  // may call other verbs
  }
}

}  // namespace kvsim::cuda
