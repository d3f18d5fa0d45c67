#include "cuda/sm80/split_launch.cuh"

namespace tilewise::sm80 {
namespace {
using SplitUnit = SplitRow<SplitConfig<__half, 256, 4, 3>, SplitConfig<__half, 256, 2, 2>>;
}
}  // namespace tilewise::sm80

TILEWISE_SM80_SPLIT(forward_sm80_f16_d256_16x64_split_simple)
