// Records, budgets and what they refuse (policies.md 2 and 3).
#include <catch2/catch.hpp>

#include "sim/core/error.hpp"
#include "sim/policy/policy_run.hpp"
#include "sim/policy/presets.hpp"
#include "sim/policy/record.hpp"
#include "tests/io/trace_fixture.hpp"
#include "tests/support/small_run.hpp"

namespace kvsim {
namespace {

std::string canonical(const std::string& text) { return Record::parse(text).canonical(); }

/// The one line of the usage error that a record gives.
std::string refusal(const std::string& text) {
  return test::refusal_of(Fault::usage, [&] { Record::parse(text); });
}

using Catch::Matchers::Contains;

TEST_CASE("a bare preset is its own canonical form", "[policy]") {
  for (const Preset& preset : presets()) {
    std::string title = preset_title(preset);
    if (refusal(title).find("no file is named") != std::string::npos) continue;  // needs a file
    CHECK(canonical(title) == title);
  }
}

TEST_CASE("the canonical form keeps what differs from the preset, in the order of the rules",
          "[policy]") {
  CHECK(canonical("snapkv,window=16") == "snapkv,window=16");
  CHECK(canonical("snapkv,window=32") == "snapkv");
  CHECK(canonical("snapkv,sinks=2,kernel=7,window=8") == "snapkv,window=8,kernel=7,sinks=2");
  CHECK(canonical("snapkv,window=8,window=9") == "snapkv,window=9");  // the later one counts
  CHECK(canonical("snapkv,window=8,window=32") == "snapkv");
  CHECK(canonical("snapkv:official,sinks=1") == "snapkv:official,sinks=1");
  CHECK(canonical("snapkv,tie=recent,granularity=query") == "snapkv,granularity=query,tie=recent");
}

TEST_CASE("a canonical record reads back to itself", "[policy]") {
  for (const char* text :
       {"snapkv,window=0.250,sinks=04", "restkv,ema_alpha=.5,aws_beta=1e3",
        "h2o,constrain=fair,fair_spans=a+b,whitelist=0-3+a", "criticalkv,weight_epsilon=1e-5"}) {
    const std::string once = canonical(text);
    CHECK(canonical(once) == once);
  }
}

TEST_CASE("numbers have one form", "[policy]") {
  CHECK(canonical("snapkv,window=016") == "snapkv,window=16");
  CHECK(canonical("snapkv,window=0.20") == "snapkv,window=0.2");
  CHECK(canonical("snapkv,window=1.0") == "snapkv,window=1.0");  // everything, not one entry
  CHECK(canonical("snapkv,window=1") == "snapkv,window=1");
  CHECK(canonical("restkv,ema_alpha=.50") == "restkv,ema_alpha=0.5");
  CHECK(canonical("restkv,ema_alpha=3e-1") == "restkv");
  CHECK(canonical("adakv,ada_floor=0.0") == "adakv,ada_floor=0");
}

TEST_CASE("query heads that own their sets have no groups", "[policy]") {
  CHECK(Record::parse("snapkv,granularity=query").settings.text("group") == "none");
  CHECK(canonical("snapkv,granularity=query") == "snapkv,granularity=query");
  CHECK_THAT(refusal("snapkv,granularity=query,group=mean"), Contains("group=none"));
  CHECK_THAT(refusal("snapkv,group=none"), Contains("granularity=query"));
  CHECK_THAT(refusal("restkv:joint,granularity=query"), Contains("granularity=kv"));
}

TEST_CASE("unknown presets, variants, keys and values name the nearest", "[policy]") {
  CHECK_THAT(refusal("snpakv"), Contains("unknown preset") && Contains("snapkv"));
  CHECK_THAT(refusal("snapkv:oficial"), Contains("snapkv:official"));
  CHECK_THAT(refusal("snapkv:"), Contains("unknown variant"));
  CHECK_THAT(refusal("snapkv,windwo=3"),
             Contains("unknown key") && Contains("did you mean window"));
  CHECK_THAT(refusal("snapkv,aggregate=maen"), Contains("did you mean mean"));
  CHECK_THAT(refusal("snapkv,smooth=avg-renormalised"), Contains("avg-renormalized"));
  CHECK_THAT(refusal(""), Contains("unknown preset"));
  CHECK_THAT(refusal("snapkv,,"), Contains("key=value"));
  CHECK_THAT(refusal("snapkv,window"), Contains("key=value"));
}

TEST_CASE("values outside their range say what the key takes", "[policy]") {
  for (const char* text : {"snapkv,window=0",
                           "snapkv,window=1.5",
                           "snapkv,window=-1",
                           "snapkv,window=0.5%",
                           "snapkv,kernel=4",
                           "snapkv,kernel=0",
                           "snapkv,sinks=1.0",
                           "snapkv,sinks=",
                           "restkv,ema_alpha=0",
                           "restkv,ema_alpha=1.1",
                           "restkv,aws_beta=0",
                           "restkv,aws_min=2",
                           "adakv,ada_floor=1.01",
                           "pyramidkv,pyramid_beta=0.9",
                           "lagkv,lag_block=1",
                           "snapkv,skip_layers=a",
                           "snapkv,skip_layers=1+",
                           "snapkv,whitelist=a++b",
                           "snapkv,whitelist=5-5",
                           "snapkv,quantize=kivi,quant_bits=9",
                           "snapkv,constrain=debias,debias_lambda=2",
                           "pyramidinfer,linear_newest=0"}) {
    CAPTURE(text);
    CHECK_THAT(refusal(text), Contains("expected"));
  }
}

TEST_CASE("a typed key that the chosen kinds do not use is refused", "[policy]") {
  for (const char* text :
       {"snapkv,ema_alpha=0.5", "snapkv,last_queries=3", "h2o,window=4", "streaming,aggregate=max",
        "streaming,group=max", "h2o,kernel=3", "snapkv,prior_value=1", "snapkv,stage1_mass=0.5",
        "snapkv,ada_floor=0.5", "snapkv,fair_scores=default", "snapkv,quant_bits=2",
        "restkv:joint,group=max", "adakv,protected_rank=layer-max", "streaming,std_keep=0.5",
        "snapkv,lag_block=4", "streaming,order=sag"}) {
    CAPTURE(text);
    CHECK_THAT(refusal(text), Contains("do not use"));
  }
  CHECK(refusal("snapkv,aggregate=ema,ema_alpha=0.5").empty());  // now it is used
}

TEST_CASE("combinations that mean nothing are refused with what would be allowed", "[policy]") {
  CHECK_THAT(refusal("streaming,indicator=attention,group=mean"), Contains("queries="));
  CHECK_THAT(refusal("restkv,order=gas,indicator=output-change-mean"), Contains("order="));
  CHECK_THAT(refusal("snapkv,smooth=avg-renormalized"), Contains("s before a"));
  CHECK_THAT(refusal("restkv,order=ags"), Contains("directly after a"));
  CHECK_THAT(refusal("restkv,constrain=fair"), Contains("fair_scores=default"));
  CHECK_THAT(refusal("defensivekv:code,constrain=fair"), Contains("fair_scores=default"));
  CHECK_THAT(refusal("knorm,allocate=cake"), Contains("queries="));
  for (const char* kind : {"expected-attention", "trigonometric", "compactor", "elimination"})
    CHECK_THAT(refusal(std::string("snapkv,queries=probe,indicator=") + kind),
               Contains("does not take the queries of a probe"));
  CHECK_THAT(refusal("tova,group=mean,nested=yes"), Contains("nested"));
  CHECK_THAT(refusal("duo"), Contains("table=FILE"));
  CHECK_THAT(refusal("external"), Contains("scores=FILE"));
}

TEST_CASE("only oracles look ahead", "[policy]") {
  CHECK_THAT(refusal("snapkv,queries=future"), Contains("future"));
  CHECK_THAT(refusal("snapkv,aggregate=each"), Contains("future") || Contains("oracle"));
  CHECK_THAT(refusal("snapkv,schedule=per-step"), Contains("oracle") || Contains("per-step"));
  CHECK(refusal("oracle-mean").empty());
  const auto chunked = [](const std::string& record) {
    return refusal(record + ",schedule=chunked");
  };
  CHECK(chunked("snapkv").empty());
  CHECK_THAT(chunked("h2o"), Contains("queries=window") && Contains("chunk_scope=chunk"));
  CHECK(chunked("h2o,chunk_scope=chunk").empty());
  CHECK_THAT(chunked("kvzip:uniform"), Contains("queries=window"));
  CHECK_THAT(chunked("snapkv,indicator=rehearsal"), Contains("own position"));
  CHECK_THAT(chunked("adakv"), Contains("allocate=uniform"));
  CHECK_THAT(chunked("snapkv,whitelist=0-3"), Contains("no constrain"));
  CHECK_THAT(chunked("snapkv,merge=convex"), Contains("merge=drop"));
  CHECK_THAT(chunked("knorm,positions=cache"), Contains("positions=absolute"));
  CHECK_THAT(refusal("snapkv,schedule=reads"), Contains("indicator=attention"));
  CHECK_THAT(refusal("knorm,indicator=page-bound"), Contains("schedule=reads"));
  CHECK_THAT(refusal("quest,allocate=ada"), Contains("allocate=ada with schedule=reads"));
  CHECK_THAT(refusal("quest,quantize=kivi"), Contains("quantize=kivi with schedule=reads"));
  CHECK_THAT(refusal("oracle-step,quantize=kivi"), Contains("with schedule=per-step"));
  CHECK_THAT(refusal("oracle-step,indicator=attention"), Contains("indicator=importance"));
  CHECK_THAT(refusal("oracle-step,positions=cache"), Contains("positions=cache"));
  CHECK(refusal("quest,allocate=pyramid,sinks=16").empty());
  CHECK(refusal("oracle-step,weight_epsilon=0").find("looks into") == std::string::npos);
}

TEST_CASE("budgets are ratios with a point or a percent sign, else counts", "[policy]") {
  CHECK(Budget::parse("0.2").entries(10) == 2);  // 1/5, exactly
  CHECK(Budget::parse("20%").entries(10) == 2);
  CHECK(Budget::parse("0.29").entries(100) == 29);  // 28.999... in double
  CHECK(Budget::parse("0.1").entries(9) == 0);      // nothing of the prompt
  CHECK(Budget::parse("1.0").entries(7) == 7);
  CHECK(Budget::parse("1").entries(7) == 1);
  CHECK(Budget::parse("512").entries(7) == 7);
  for (const char* text :
       {"0", "0.0", "1.01", "101%", "-1", "-0.5", "", "abc", "1e3", "0.1x", "nan"}) {
    CAPTURE(text);
    CHECK_THROWS_AS(Budget::parse(text), Error);
  }
}

TEST_CASE("a budget has one text, however it is typed", "[policy]") {
  for (const char* text : {"0.2", ".2", "0.20", "20%", "20.0%", "2.0e-1"}) {
    CAPTURE(text);
    CHECK(Budget::parse(text).label == "0.2");
    CHECK(Budget::parse(text) == Budget::parse("0.2"));
  }
  CHECK(Budget::parse("100%").label == "1.0");
  CHECK(Budget::parse("2.5%").label == "0.025");
  CHECK(Budget::parse("0512").label == "512");
  CHECK_FALSE(Budget::parse("1") == Budget::parse("1.0"));
}

TEST_CASE("kvpress's rounding computes in double and keeps at least one entry", "[policy]") {
  // policies.md 3: n = 100, rho = 0.1: 1.0 - 0.9 is below 0.1: 9 instead of 10; n = 5, rho = 0.01:
  // 1 instead of 0; a count is not affected.
  const auto size = [](int64_t n, const std::string& record, const std::string& budget) {
    test::SmallRun small;
    small.prompt = n;
    return test::kept_entries(*small.build(), record, budget).size();
  };
  CHECK(size(100, "streaming", "0.1") == 10);
  CHECK(size(100, "streaming,rounding=kvpress", "0.1") == 9);
  CHECK(size(5, "streaming", "0.01") == 0);
  CHECK(size(5, "streaming,rounding=kvpress", "0.01") == 1);
  CHECK(size(100, "streaming,rounding=kvpress", "10") == 10);
}

TEST_CASE("a trace without the queries a record needs is refused before any work", "[policy]") {
  test::SmallRun small;
  small.prompt = 6;
  small.positions = {4, 5, 6};
  const auto run = small.build();
  const auto check = [&](const std::string& record) {
    return test::refusal_of(Fault::bad_data, [&] {
      check_records({Record::parse(record)}, {Budget::parse("0.5")}, run->info, {0},
                    test::MadeUpFiles());
    });
  };
  CHECK(check("snapkv,window=2").empty());
  CHECK_THAT(check("snapkv,window=3"), Contains("snapkv,window=3") && Contains("3..5") &&
                                           Contains("4..6"));  // needed, and present
  CHECK(check("tova").empty());
  CHECK(check("streaming").empty());
  CHECK(check("oracle-mean").empty());
  CHECK_THAT(check("h2o"), Contains("0..5"));
  CHECK_THAT(check("scissorhands"), Contains("0..5"));
  CHECK(check("scissorhands,last_queries=2").empty());
  CHECK_THAT(check("knorm,positions=cache"), Contains("rope/inv_freq"));
  CHECK_THAT(check("snapkv,window=2,indicator=rehearsal"), Contains("rope/inv_freq"));
  CHECK_THAT(check("h2o,queries=spread,spread_queries=2"), Contains("positions 2, 5"));
  CHECK_THAT(check("streaming,constrain=fair"), Contains("spans"));
  CHECK_THAT(check("streaming,whitelist=nowhere"), Contains("no such span"));
}

TEST_CASE("a window that nobody asks because nothing is evicted needs no queries", "[policy]") {
  test::SmallRun small;
  small.prompt = 6;
  small.positions = {6};
  const auto run = small.build();
  const test::MadeUpFiles files;
  CHECK_NOTHROW(
      check_records({Record::parse("snapkv")}, {Budget::parse("1.0")}, run->info, {0}, files));
}

TEST_CASE("a whitelist larger than the budget names the smallest budget that works", "[policy]") {
  test::SmallRun small;
  small.prompt = 8;
  small.spans = {{"rules", 2, 6}};
  const auto run = small.build();
  const auto check = [&](const std::string& record, const std::string& budget) {
    return test::refusal_of(Fault::usage, [&] {
      check_records({Record::parse(record)}, {Budget::parse(budget)}, run->info, {0},
                    test::MadeUpFiles());
    });
  };
  CHECK_THAT(check("streaming,whitelist=rules", "3"), Contains("at least 4"));
  CHECK_THAT(check("streaming,whitelist=rules+5-7", "4"), Contains("at least 5"));  // 5 is in both
  CHECK(check("streaming,whitelist=rules", "4").empty());
}

}  // namespace
}  // namespace kvsim
