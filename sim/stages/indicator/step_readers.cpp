// Estimates by which a later step chooses what it reads (schedule=reads).
#include "sim/core/numbers.hpp"
#include "sim/stages/indicator/indicator.hpp"
#include "sim/stages/stages.hpp"

namespace kvsim::stages::indicator::step_readers {

const Declare read_channels("read_channels", "count >= 1 channels", "32",
                            "channels of a query that estimate its logits", tested("2 5"));
const Declare code_parts("code_parts", "count >= 1 parts", "2",
                         "parts of a key that have codes of their own", tested("1 3"));
const Declare code_bits("code_bits", "count [1, 8] bits", "6", "bits of the code of a part");

/// The least and the largest number of each channel among the keys of a page.
struct Pages : StepScorer {
  Pages(const LayerWork& work, const Settings& settings)
      : keys_(work.trace().k), entries_(work.entries()), size_(settings.count(keys::block)),
        least_((entries_ + size_ - 1) / size_, keys_.dim(2)), largest_(least_) {}

  void start(int kv_head) override {
    parallel_for(least_.rows(), [&](int64_t page) {
      const int64_t begin = page * size_, end = std::min(begin + size_, entries_);
      Table<float> own(end - begin, keys_.dim(2));
      keys_.read(kv_head, begin, end, own.data());
      std::ranges::copy(own.row(0), least_.row(page).begin());
      std::ranges::copy(own.row(0), largest_.row(page).begin());
      for (int64_t r = 1; r < own.rows(); ++r)
        for (int64_t c = 0; c < own.columns(); ++c) {
          least_(page, c) = std::min(least_(page, c), own(r, c));
          largest_(page, c) = std::max(largest_(page, c), own(r, c));
        }
    });
  }

  void score(const Table<float>& queries, std::span<double> out) const override {
    for (int64_t page = 0; page < least_.rows(); ++page) {
      double bound = 0;
      for (int64_t h = 0; h < queries.rows(); ++h)
        for (int64_t c = 0; c < queries.columns(); ++c) {
          const auto q = static_cast<double>(queries(h, c));
          bound += q * static_cast<double>(q > 0 ? largest_(page, c) : least_(page, c));
        }
      for (int64_t i = page * size_; i < std::min((page + 1) * size_, entries_); ++i)
        out[i] = bound;
    }
  }

 private:
  const Tensor& keys_;
  int64_t entries_, size_;
  Table<float> least_, largest_;  ///< [pages][d] of the KV head at work
};

/// Adds each head's softmax over the prompt of estimated logits.
class Estimate : public StepScorer {
 public:
  explicit Estimate(const LayerWork& work)
      : keys_(work.entries(), work.trace().k.dim(2)), work_(work) {}
  void start(int kv_head) override {
    work_.trace().k.read(kv_head, 0, work_.entries(), keys_.data());
    prepare();
  }
  void score(const Table<float>& queries, std::span<double> out) const override {
    std::ranges::fill(out, 0.0);
    const Table<float> reading = estimating(queries);
    std::vector<double> logits(out.size());
    for (int64_t h = 0; h < reading.rows(); ++h) {
      for (int64_t i = 0; i < std::ssize(logits); ++i) {
        double sum = 0;
        for (int64_t c = 0; c < reading.columns(); ++c)
          sum += static_cast<double>(reading(h, c)) * static_cast<double>(keys_(i, c));
        logits[i] = work_.trace().scale * sum;
      }
      softmax(logits);
      for (size_t i = 0; i < out.size(); ++i) out[i] += logits[i];
    }
  }

 protected:
  virtual void prepare() {}
  /// Queries whose products with the stored keys are the estimates.
  virtual Table<float> estimating(const Table<float>& queries) const { return queries; }
  Table<float> keys_;  ///< [n][d] of the KV head at work, or what stands for them

 private:
  const LayerWork& work_;
};

/// SparQ, Algorithm 1: the channels in which the queries are largest, at the temperature that
/// their share of a query's length asks for.
struct Channels : Estimate {
  Channels(const LayerWork& work, const Settings& settings)
      : Estimate(work), count_(settings.count(read_channels)) {}
  Table<float> estimating(const Table<float>& queries) const override {
    const int64_t d = queries.columns(), taken = std::min(count_, d);
    std::vector<double> size(d, 0.0);
    for (int64_t h = 0; h < queries.rows(); ++h)
      for (int64_t c = 0; c < d; ++c) size[c] += static_cast<double>(std::fabs(queries(h, c)));
    auto order = ascending<int64_t>(std::ssize(size));
    std::ranges::stable_sort(order, std::greater<>(), [&](int64_t c) { return size[c]; });
    Table<float> reading(queries.rows(), d);
    for (int64_t h = 0; h < queries.rows(); ++h) {
      double all = 0, own = 0;
      for (const float q : queries.row(h)) all += static_cast<double>(std::fabs(q));
      for (int64_t at = 0; at < taken; ++at)
        own += static_cast<double>(std::fabs(queries(h, order[at])));
      for (int64_t at = 0; at < taken && own > 0; ++at) {
        const int64_t c = order[at];
        reading(h,
                c) = static_cast<float>(static_cast<double>(queries(h, c)) * std::sqrt(all / own));
      }
    }
    return reading;
  }

 private:
  int64_t count_;
};

/// PQCache: each part of a key is the nearest of 2^bits centroids, by Lloyd's iteration from evenly
/// spaced entries (ten steps, equally near: the first).
struct Codes : Estimate {
  Codes(const LayerWork& work, const Settings& settings)
      : Estimate(work), parts_(settings.count(code_parts)),
        count_(std::min(int64_t{1} << settings.count(code_bits), work.entries())) {}
  void prepare() override {
    const int64_t d = keys_.columns(), parts = std::min(parts_, d);
    for (int64_t part = 0; part < parts; ++part) round(part * d / parts, (part + 1) * d / parts);
  }

 private:
  void round(int64_t from, int64_t to) {
    const int64_t n = keys_.rows(), width = to - from;
    Table<double> centre(count_, width);
    for (int64_t k = 0; k < count_; ++k)
      for (int64_t c = 0; c < width; ++c)
        centre(k, c) = static_cast<double>(keys_((2 * k + 1) * n / (2 * count_), from + c));
    std::vector<int64_t> code(n, 0);
    const auto assign = [&] {
      parallel_for(n, [&](int64_t i) {
        double least = std::numeric_limits<double>::infinity();
        for (int64_t k = 0; k < count_; ++k) {
          double away = 0;
          for (int64_t c = 0; c < width; ++c) {
            const double x = static_cast<double>(keys_(i, from + c)) - centre(k, c);
            away += x * x;
          }
          if (away < least) code[i] = k;
          least = std::min(least, away);
        }
      });
    };
    for (int step = 0; step < 10; ++step) {
      assign();
      Table<double> sums(count_, width);
      std::vector<double> members(count_, 0.0);
      for (int64_t i = 0; i < n; ++i) {
        const int64_t k = code[i];
        members[k] += 1;
        for (int64_t c = 0; c < width; ++c) sums(k, c) += static_cast<double>(keys_(i, from + c));
      }
      for (int64_t k = 0; k < count_; ++k)  // one without members stays
        for (int64_t c = 0; c < width && members[k] > 0; ++c)
          centre(k, c) = sums(k, c) / members[k];
    }
    assign();
    for (int64_t i = 0; i < n; ++i)
      for (int64_t c = 0; c < width; ++c)
        keys_(i, from + c) = static_cast<float>(centre(code[i], c));
  }
  int64_t parts_, count_;
};

constexpr const char* kNoReference =
    "a step's own query scores (tests/sim/replay/test_per_step.cpp)";
constexpr const char* kTest = "queries=none,schedule=reads";

template <class Scorer>
struct Reader : EntryIndicator, ScoresSteps {
  using EntryIndicator::EntryIndicator;
  bool nowhere_else() const override { return true; }
  bool at_each_step() const override { return true; }
  std::unique_ptr<StepScorer> step_scorer(const LayerWork& work,
                                          const Settings& settings) const override {
    return std::make_unique<Scorer>(work, settings);
  }
  /// Nothing is known of an entry before a step asks.
  Table<double> entries(const EntryRequest& request) const override {
    return {request.owners(), request.work.entries()};
  }
};

struct PageBound : Reader<Pages> {
  PageBound()
      : Reader({"page-bound", "the most that q.k can be for a key of the entry's block", "Quest",
                "", "", kNoReference, kTest}) {}
  double bytes_per_slot(const Settings& settings, int64_t key_dim,
                        int64_t element_bytes) const override {
    const int64_t size = settings.count(keys::block);
    return size == 1 ? 0
                     : static_cast<double>(2 * key_dim * element_bytes) / static_cast<double>(size);
  }
};

struct LargestChannels : Reader<Channels> {
  LargestChannels()
      : Reader({"largest-channels", "attention by the channels in which a step's query is largest",
                "SparQ", "read_channels", "", kNoReference, kTest}) {}
  /// Keys lie there once more, channel by channel.
  double bytes_per_slot(const Settings&, int64_t key_dim, int64_t element_bytes) const override {
    return static_cast<double>(key_dim * element_bytes);
  }
};

struct KeyCodes : Reader<Codes> {
  KeyCodes()
      : Reader({"key-codes", "attention by keys whose parts are codes", "PQCache",
                "code_parts code_bits", "", kNoReference, kTest}) {}
  double bytes_per_slot(const Settings& settings, int64_t, int64_t) const override {
    return static_cast<double>(settings.count(code_parts) * settings.count(code_bits)) / 8;
  }
};
const Register<Indicator, PageBound, LargestChannels, KeyCodes> registered;

}  // namespace kvsim::stages::indicator::step_readers
