#pragma once
#include <string>

namespace kvsim {

class Dataset;

/// Which layers the stream error of a results file is of, e.g. "8 of the model's 30 layers"; empty
/// when it is of all of them, or was not measured.
std::string stream_error_layers(const Dataset& results);

}  // namespace kvsim
