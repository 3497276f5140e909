// The kernels for matrix tiles with the tiles in portable code.
#define KVSIM_ISA amx_emulated
#define KVSIM_ISA_NAME "amx-emulated"
#define KVSIM_TILES
#define KVSIM_TILES_EMULATED
#include "sim/backend/cpu/kernels.inc"

const kvsim::Kernels* kvsim::kernels_amx_emulated() { return &amx_emulated::kTable; }
