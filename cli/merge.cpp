#include "cli/command.hpp"
#include "cli/terminal.hpp"
#include "io/results_writer.hpp"
#include "io/temporary_file.hpp"
#include "run/sweep/sweep_run.hpp"
#include "sim/core/error.hpp"

namespace kvsim::cli::merge_command {
namespace {

void describe(po::options_description& options) {
  add_output_options(options, "results file of the whole sweep on one trace");
}

int run(const Values& values) {
  const auto parts = values["part"].as<std::vector<std::string>>();
  const std::string out = text(values, "out");
  if (out.empty()) {
    usage_error(
        {.what = "missing -o", .where = "merge", .expected = "kvsim merge PART... -o OUT.nc"});
  }
  check_target(out, has(values, "overwrite"), parts);
  write_results(merge_parts(parts, command_line()), out);
  note(out + " written");
  return kDone;
}

const bool registered = register_command(
    {.name = "merge",
     .summary = "join the parts that the shards of a sweep wrote",
     .arguments = {{.name = "part", .meaning = "parts of one results file", .many = true}},
     .description =
         "Every part must be of the same sweep, no policy may be there twice, and none may be\n"
         "missing; the file that is not right is named.",
     .describe = describe,
     .examples = {"kvsim merge smoothing/sample.part-1-of-2.nc smoothing/sample.part-2-of-2.nc "
                  "-o smoothing/sample.nc",
                  "kvsim merge smoothing/sample.part-*.nc -o smoothing.nc --overwrite"},
     .run = run});

}  // namespace
}  // namespace kvsim::cli::merge_command
