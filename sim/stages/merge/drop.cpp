#include "sim/stages/merge/merge.hpp"
#include "sim/stages/parameter.hpp"

namespace kvsim {
namespace {

const Declare merge{{.key = "merge",
                     .place = 901,
                     .type = ValueType::kind,
                     .fallback = "drop",
                     .meaning = "what becomes of entries that lose their place"}};

struct Drop : Merge {
  Drop() : Merge({"merge", "drop", "nothing remains of them", "", {}}) {}
};
const Register<Merge, Drop> drop;

}  // namespace
}  // namespace kvsim
