#include <catch2/catch.hpp>
#include <fstream>
#include <sstream>

#include "sim/policy/presets.hpp"
#include "tests/contract/tree.hpp"
#include "tests/io/trace_fixture.hpp"

using namespace kvsim;
using namespace kvsim::test;
using Catch::Contains;

namespace {
std::vector<std::string> keys_of(std::string_view text) {
  std::vector<std::string> keys;
  for (const Source* source : sources_named(text)) keys.push_back(bibtex_key(*source));
  return keys;
}
}  // namespace

TEST_CASE("every preset's source can be cited, and the page of presets links to it", "[policy]") {
  std::ifstream file(kRoot / "docs/presets.md");
  std::stringstream page;
  page << file.rdbuf();
  for (const Preset& preset : presets()) {
    CAPTURE(preset_title(preset), preset.source);
    if (!preset.source.empty()) CHECK_FALSE(sources_named(preset.source).empty());
    CHECK_THAT(page.str(), Contains("| " + with_links(preset.source) + " |"));
  }
  for (const Source& source : sources()) {
    CAPTURE(source.name);
    CHECK((source.authors.empty() || !source.title.empty()));
  }
}

TEST_CASE("a source in Markdown links to the paper, its repository to the code", "[policy]") {
  CHECK(with_links("TOVA") == "[TOVA](https://arxiv.org/abs/2401.06104)");
  CHECK(with_links("TOVA repository; kvsim") ==
        "[TOVA repository](https://github.com/schwartz-lab-NLP/TOVA); kvsim");
  CHECK(with_links("KVzipPress") == "KVzipPress");
}

TEST_CASE("names of sources are words of their own", "[policy]") {
  CHECK(keys_of("KVzip; shape: OpenVINO") == std::vector<std::string>{"kvzip", "openvino"});
  CHECK(keys_of("kvpress SnapKVPress") == std::vector<std::string>{"kvpress"});
  CHECK(keys_of("DefensiveKV Algorithm 2") == std::vector<std::string>{"defensivekv"});
  CHECK(keys_of("G-KV") == std::vector<std::string>{"gkv"});
}

TEST_CASE("kvsim policies NAME --cite prints BibTeX", "[policy][cli]") {
  const std::string entry = run_kvsim("policies snapkv --cite").out;
  CHECK_THAT(entry, Contains("@misc{snapkv,\n  title = {{SnapKV: LLM Knows What You are Looking") &&
                        Contains("  eprint = {2404.14469},\n  archivePrefix = {arXiv},\n"));
  CHECK_THAT(run_kvsim("policies vatp --cite").out, Contains("{2406.12335}"));
  CHECK_THAT(run_kvsim("policies snapkv,allocate=ada --cite").out, Contains("@misc{adakv,"));
  CHECK_THAT(run_kvsim("policies kvgrad --cite").out,
             Contains("{https://openreview.net/forum?id=cg1wTCJjjk}") &&
                 Contains("note = {kvsim knows the address alone"));
  CHECK(run_kvsim("policies sinks --cite").status == 2);
  CHECK_THAT(run_kvsim("policies full --cite").err, Contains("nothing to cite"));
  CHECK_THAT(run_kvsim("policies full,allocate=ada --cite").out, Contains("@misc{adakv,"));
  CHECK_THAT(run_kvsim("policies snpkv --cite").err, Contains("did you mean snapkv"));
  CHECK_THAT(run_kvsim("policies --cite").out, Contains("@misc{kvsim,") && Contains("@misc{cake,"));
}
