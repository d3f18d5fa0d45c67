#include "cuda/sm80/split_launch.cuh"

namespace tilewise::sm80 {
namespace {
using SplitUnit = SplitRow<SplitConfig<__half, 128, 8, 3>, SplitConfig<__half, 128, 4, 2>>;
}
}  // namespace tilewise::sm80

TILEWISE_SM80_SPLIT(forward_sm80_f16_d128_16x128_split_simple)
