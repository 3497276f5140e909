// FastGen's classes of tokens and the sets of heads (policies.md 6, 7), on paper.
#include <catch2/catch.hpp>

#include "sim/stages/stages.hpp"
#include "tests/support/small_run.hpp"

namespace kvsim {
namespace {

TEST_CASE("a token is special, punctuation or neither by its text", "[stages]") {
  for (const char* text : {"<|im_start|>", "<s>", "</s>", "<bos>", "<start_of_turn>", "[INST]",
                           "[/INST]", " <|end|>\n"}) {
    CAPTURE(text);
    CHECK(token_class(text) == TokenClass::special);
  }
  for (const char* text : {".", " ,", "?!", "...", "<", "[]", "<>", "\xE2\x80\x94", "\xE3\x80\x82",
                           "\xC2\xBF", "\""}) {
    CAPTURE(text);
    CHECK(token_class(text) == TokenClass::punctuation);
  }
  for (const char* text : {"", " ", "\n", "a.", "1", "\xC3\xA9", "<a b>", "[inst]", "don't"}) {
    CAPTURE(text);
    CHECK(token_class(text) == TokenClass::other);
  }
}

/// n = 10: the made-up texts have a special token at 0 and commas at 3 and 8.
ScoredLayer ten() {
  ScoredLayer scored;
  scored.score = Table<double>(1, 10);
  scored.score.values() = {5, 1, 9, 0, 7, 2, 3, 4, 6, 8};
  scored.candidate.assign(10, 1);
  scored.token_class = {1, 0, 0, 2, 0, 0, 0, 0, 2, 0};
  return scored;
}

TEST_CASE("classes come in turn, each entry at its first", "[stages]") {
  Settings settings;
  settings.set("class_frequent", "0.3");
  settings.set("class_local", "0.2");
  const ClassOrder order = class_order(settings, ten(), 0, {0, 10});
  // Special 0; punctuation 3, 8; the best three 2, 9, 4; the newest two 9, 8 are there already.
  CHECK(order.entries == std::vector<uint32_t>{0, 3, 8, 2, 9, 4});
  CHECK(order.ends == std::array<int64_t, 4>{1, 3, 6, 6});
  const ClassOrder part = class_order(settings, ten(), 0, {4, 8});
  // Nothing special; the best floor(1.2) is 4; floor(0.8) newest is none.
  CHECK(part.entries == std::vector<uint32_t>{4});
}

TEST_CASE("a head keeps the smallest set of classes that recovers enough", "[stages]") {
  // One head of 10 entries whose last query spreads over them by these weights, sum 45.
  test::SmallRun small;
  small.prompt = 10;
  small.weights = {{{5, 1, 9, 0.001, 7, 2, 3, 4, 6, 8}}};
  const std::string record = "fastgen,queries=last,last_queries=1,class_local=0,class_recovery=";
  const auto kept = [&](const char* least) {
    return test::kept_entries(*small.build(), record + least, "0.5");
  };
  using Entries = std::vector<int>;
  CHECK(kept("0.1") == Entries{0});                 // 5 of 45
  CHECK(kept("0.2") == Entries{0, 3, 8});           // 11 of 45
  CHECK(kept("0.7") == Entries{0, 2, 3, 4, 8, 9});  // 35 of 45
  CHECK(kept("0.8") == Entries{0, 1, 2, 3, 4, 5, 6, 7, 8, 9});
  // As the budget asks: three places take punctuation, five and not six nothing more.
  const auto asked = [&](const char* budget) {
    return test::kept_entries(*small.build(), record + "none", budget);
  };
  CHECK(asked("3") == Entries{0, 3, 8});
  CHECK(asked("5") == Entries{0, 3, 8});
  CHECK(asked("6") == Entries{0, 2, 3, 4, 8, 9});
}

TEST_CASE("what is no candidate recovers nothing", "[stages]") {
  test::SmallRun small;
  small.prompt = 10;
  small.weights = {{{5, 1, 9, 1, 7, 2, 3, 4, 6, 8}}};
  // Scores 0 to 8 of nine candidates, 36 in all; the window 9 stays, and its position is no score.
  // 0 of 36 with the special 0, 11 with the commas 3 and 8, 24 with the best three 8, 7, 6.
  const auto kept = [&](const char* least) {
    const std::string record = "snapkv,indicator=position,smooth=none,window=1,allocate=fastgen,"
                               "class_local=0,class_recovery=";
    return test::kept_entries(*small.build(), record + least, "0.5").size();
  };
  CHECK(kept("0.3") == 4);
  CHECK(kept("0.4") == 6);
}

TEST_CASE("without the texts of the tokens FastGen is refused before any work", "[stages]") {
  struct NoTexts : test::MadeUpFiles {
    std::vector<std::string> token_text() const override { return {}; }
  };
  test::SmallRun small;
  small.prompt = 10;
  small.weights = {{{5, 1, 9, 1, 7, 2, 3, 4, 6, 8}}};
  CHECK_THROWS_WITH(test::kept_entries(*small.build(), "fastgen,queries=last,last_queries=1", "0.5",
                                       0, 0, NoTexts()),
                    Catch::Contains("tokens/text"));
}

}  // namespace
}  // namespace kvsim
