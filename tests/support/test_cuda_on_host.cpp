// The host runtime finds what it is there to find: each kernel here is broken in one way.
#include <catch2/catch.hpp>
#include <cmath>
#include <stdexcept>
#include <vector>

#include "tests/support/cuda_on_host/broken_kernels.hpp"

namespace kvsim::test {

using cuda_on_host::Order;

TEST_CASE("a missing barrier shows in another order of the threads", "[cuda-on-host]") {
  for (const bool barrier : {true, false}) {
    std::vector<std::vector<float>> results;
    for (const Order order : {Order::ascending, Order::descending, Order::shuffled})
      results.push_back(host_cuda::reversed(order, barrier));
    CHECK((results[0] == results[1] && results[0] == results[2]) == barrier);
    if (barrier) CHECK(results[0][0] == 63);
  }
}

TEST_CASE("memory that nobody wrote is NaN", "[cuda-on-host]") {
  CHECK(std::isnan(host_cuda::read_unwritten(false)));
  CHECK(std::isnan(host_cuda::read_unwritten(true)));
}

TEST_CASE("a write beyond memory is an error", "[cuda-on-host]") {
  CHECK_NOTHROW(host_cuda::write_at(15, false));
  CHECK_THROWS_AS(host_cuda::write_at(16, false), std::logic_error);
  CHECK_THROWS_AS(host_cuda::write_at(-1, false), std::logic_error);
  CHECK_NOTHROW(host_cuda::write_at(15, true));
  CHECK_THROWS_AS(host_cuda::write_at(16, true), std::logic_error);
}

TEST_CASE("a barrier that not all threads reach is an error", "[cuda-on-host]") {
  CHECK_THROWS_AS(host_cuda::divergent_barrier(), std::logic_error);
}

TEST_CASE("a launch without blocks is an error", "[cuda-on-host]") {
  CHECK_THROWS_AS(host_cuda::launch_nothing(), std::logic_error);
}

TEST_CASE("a copy that is not waited for has not happened", "[cuda-on-host]") {
  CHECK(host_cuda::copied(true) == 3.0f);
  CHECK(std::isnan(host_cuda::copied(false)));
}

TEST_CASE("work on a stream is not done before somebody waits", "[cuda-on-host]") {
  CHECK(host_cuda::downloaded(true) == 5.0f);
  CHECK(host_cuda::downloaded(false) == 0.0f);
  for (const int64_t bytes : {0, 1, 300'000, 8 << 20, (40 << 20) + 5})  // pieces have 8 MiB
    CHECK(host_cuda::brings(bytes));
}

TEST_CASE("tensor cores multiply as their manual says", "[cuda-on-host]") {
  CHECK(host_cuda::largest_product_error(ElementType::bfloat16) == 0.0);
  CHECK(host_cuda::largest_product_error(ElementType::float16) == 0.0);
  CHECK(host_cuda::largest_product_error(ElementType::float32) == 0.0);
}

TEST_CASE("no kernel of the backend depends on the order of its threads",
          "[cuda-on-host][backend]") {
  const auto ascending = host_cuda::run_all_verbs(Order::ascending);
  CHECK(ascending == host_cuda::run_all_verbs(Order::descending));
  CHECK(ascending == host_cuda::run_all_verbs(Order::shuffled));
  for (const double x : ascending) REQUIRE_FALSE(std::isnan(x));
}

TEST_CASE("a context larger than the device goes through in parts", "[cuda-on-host][backend]") {
  const auto whole = host_cuda::run_all_verbs(Order::ascending);
  const auto parts = host_cuda::run_all_verbs(Order::ascending, size_t{512} << 10);
  REQUIRE(whole.size() == parts.size());
  double worst = 0;
  for (size_t i = 0; i < whole.size(); ++i)
    worst = std::max(worst, std::fabs(whole[i] - parts[i]) / std::max(0.1, std::fabs(whole[i])));
  CHECK(worst < 1e-5);
}

}  // namespace kvsim::test
