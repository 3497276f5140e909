#include "sim/stages/scored_layer.hpp"

#include "sim/core/archive.hpp"

namespace kvsim {

void exchange(Archive& archive, ScoredLayer& scored) {
  archive.exchange(scored.layer);
  archive.exchange_size(scored.segments);
  for (Segment& segment : scored.segments) {
    for (Range* range : {&segment.range, &segment.candidates}) {
      archive.exchange(range->begin);
      archive.exchange(range->end);
    }
    archive.exchange(segment.window);
    archive.exchange(segment.positions);
    archive.exchange(segment.rows_before);
    archive.exchange(segment.rows_after);
    archive.exchange(segment.probe);
    archive.exchange(segment.probe_tokens);
  }
  archive.exchange(scored.candidate);
  for (Table<double>* table : {&scored.score, &scored.raw, &scored.unweighted,
                               &scored.unweighted_raw, &scored.deviation, &scored.mass}) {
    archive.exchange(*table);
  }
  archive.exchange(scored.mass_before_window);
  archive.exchange(scored.mass_of_window);
  archive.exchange(scored.token_class);
  archive.exchange(scored.statistic);
  archive.exchange(scored.stream_norm);
}

}  // namespace kvsim
