// Blocks of threads as fibres.
#include <boost/context/fiber.hpp>
#include <boost/context/fixedsize_stack.hpp>
#include <deque>
#include <exception>

#include "sim/core/prelude.hpp"
#include "tests/support/cuda_on_host/device.hpp"
#include "tests/support/cuda_on_host/guard.hpp"
#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/asan_interface.h>
#endif

namespace cuda_on_host {
namespace {

namespace context = boost::context;

constexpr int kWarp = 32;
constexpr size_t kStack = size_t{128} << 10;

/// Stacks of fibres that have ended, for those of the next block: new ones would be memory that the
/// system has to clear first.
class KeptStacks {
 public:
  ~KeptStacks() {
    for (context::stack_context& stack : free_) context::fixedsize_stack(kStack).deallocate(stack);
  }
  context::stack_context take() {
    if (free_.empty()) return context::fixedsize_stack(kStack).allocate();
    const context::stack_context stack = free_.back();
    free_.pop_back();
#ifdef __SANITIZE_ADDRESS__  // the last frames of the fibre before were never left
    __asan_unpoison_memory_region(static_cast<char*>(stack.sp) - stack.size, stack.size);
#endif
    return stack;
  }
  void keep(const context::stack_context& stack) { free_.push_back(stack); }

 private:
  std::vector<context::stack_context> free_;
};
thread_local KeptStacks kept_stacks;

/// What fibres ask for their stacks.
struct KeptStack {
  context::stack_context allocate() { return kept_stacks.take(); }
  void deallocate(context::stack_context& stack) { kept_stacks.keep(stack); }
};

enum class State { ready, at_barrier, at_meeting, done };

struct Copy {
  void* to;
  const void* from;
  bool valid;
};

struct Thread {
  context::fiber fiber;
  context::fiber scheduler;
  State state = State::ready;
  ThreadIndex index;
  void* brought = nullptr;
  void (*together)(void* const (&)[kWarp]) = nullptr;
  std::vector<Copy> open;                ///< of the group not yet closed
  std::deque<std::vector<Copy>> closed;  ///< done when waited for

  void start(const ThreadIndex& at) {
    state = State::ready;
    index = at;
    open.clear();
    closed.clear();
  }
};

struct Block {
  std::vector<Thread> threads;
  std::vector<unsigned char> memory;
  unsigned char* shared = nullptr;
  std::exception_ptr fault;
};

Order chosen_order = Order::ascending;
thread_local Block* block = nullptr;
thread_local Thread* current = nullptr;

void pause(State state) {
  current->state = state;
  Thread* const self = current;
  self->scheduler = std::move(self->scheduler).resume();
}

void lay_out_memory(size_t shared) {
  block->memory.assign(shared + 2 * kGuard + 16, kPoison);
  const uintptr_t start = reinterpret_cast<uintptr_t>(block->memory.data()) + kGuard;
  block->shared = reinterpret_cast<unsigned char*>((start + 15) / 16 * 16);
}

void check_guards(size_t shared) {
  const auto intact = [](const unsigned char* begin, const unsigned char* end) {
    return std::all_of(begin, end, [](unsigned char byte) { return byte == kPoison; });
  };
  const unsigned char* const all = block->memory.data();
  if (!intact(all, block->shared) || !intact(block->shared + shared, all + block->memory.size()))
    throw std::logic_error("a kernel wrote beyond its shared memory");
}

std::vector<size_t> thread_order(size_t count, size_t pass) {
  std::vector<size_t> order(count);
  for (size_t i = 0; i < count; ++i) order[i] = i;
  if (chosen_order == Order::descending) std::reverse(order.begin(), order.end());
  if (chosen_order == Order::shuffled) {
    uint64_t state = 88172645463325252u + pass;
    for (size_t i = count; i > 1; --i) {
      state ^= state << 13, state ^= state >> 7, state ^= state << 17;
      std::swap(order[i - 1], order[state % i]);
    }
  }
  return order;
}

/// Lets warps whose lanes have all met go on, and the block if all its threads are at the barrier.
bool release() {
  bool progress = false;
  std::vector<Thread>& threads = block->threads;
  for (size_t first = 0; first + kWarp <= threads.size(); first += kWarp) {
    void* brought[kWarp];
    bool all = true;
    for (size_t i = 0; i < kWarp; ++i) {
      const Thread& lane = threads[first + i];
      all = all && lane.state == State::at_meeting && lane.together == threads[first].together;
      brought[i] = lane.brought;
    }
    if (!all) continue;
    threads[first].together(brought);
    for (size_t i = 0; i < kWarp; ++i) threads[first + i].state = State::ready;
    progress = true;
  }
  const auto waits = [](const Thread& t) { return t.state == State::at_barrier; };
  if (std::all_of(threads.begin(), threads.end(), waits)) {
    for (Thread& t : threads) t.state = State::ready;
    progress = true;
  }
  return progress;
}

void run_block(const std::function<void()>& body) {
  for (Thread& thread : block->threads) {
    Thread* const self = &thread;
    thread.fiber = context::fiber(std::allocator_arg, KeptStack(),
                                  [self, &body](context::fiber&& scheduler) {
      self->scheduler = std::move(scheduler);
      try {
        body();
      } catch (const std::exception&) {
        if (!block->fault) block->fault = std::current_exception();
      }
      self->state = State::done;
      return std::move(self->scheduler);
    });
  }
  for (size_t pass = 0;; ++pass) {
    for (const size_t i : thread_order(block->threads.size(), pass)) {
      Thread& thread = block->threads[i];
      if (thread.state != State::ready) continue;
      current = &thread;
      thread.fiber = std::move(thread.fiber).resume();
    }
    if (block->fault) std::rethrow_exception(block->fault);
    const auto done = [](const Thread& t) { return t.state == State::done; };
    if (std::all_of(block->threads.begin(), block->threads.end(), done)) return;
    if (!release())
      throw std::logic_error("a barrier or an instruction of a whole warp is not reached by all");
  }
}

}  // namespace

void set_order(Order order) { chosen_order = order; }
const ThreadIndex& index() { return current->index; }
unsigned char* shared_memory() { return block->shared; }
void block_barrier() { pause(State::at_barrier); }

void warp_meet(void* mine, void (*together)(void* const (&)[kWarp])) {
  current->brought = mine;
  current->together = together;
  pause(State::at_meeting);
}

void copy16_async(void* to, const void* from, bool valid) {
  if ((reinterpret_cast<uintptr_t>(to) | reinterpret_cast<uintptr_t>(from)) % 16 != 0)
    throw std::logic_error("a copy is not aligned to 16 bytes");
  current->open.push_back({to, from, valid});
}

void copies_close_group() {
  current->closed.push_back(std::move(current->open));
  current->open.clear();
}

void copies_wait(int open) {
  while (static_cast<int>(current->closed.size()) > open) {
    for (const Copy& copy : current->closed.front()) {
      std::memset(copy.to, 0, 16);
      if (copy.valid) std::memcpy(copy.to, copy.from, 16);
    }
    current->closed.pop_front();
  }
}

void run(dim3 grid, unsigned threads, size_t shared, const std::function<void()>& thread) {
  if (threads == 0 || threads > 1024 || threads % kWarp != 0 || shared > (size_t{227} << 10) ||
      grid.x == 0 || grid.y == 0 || grid.z == 0 || grid.y > 65535 || grid.z > 65535)
    throw std::logic_error("a launch that no device takes");
  Block one;
  one.threads.resize(threads);
  for (unsigned z = 0; z < grid.z; ++z)
    for (unsigned y = 0; y < grid.y; ++y)
      for (unsigned x = 0; x < grid.x; ++x) {
        block = &one;
        lay_out_memory(shared);
        for (unsigned i = 0; i < threads; ++i)
          one.threads[i].start({dim3(i), dim3(x, y, z), dim3(threads), grid});
        run_block(thread);
        check_guards(shared);
        block = nullptr;
      }
}

}  // namespace cuda_on_host
