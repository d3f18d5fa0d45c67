#include "cuda/sm80/split_launch.cuh"

namespace tilewise::sm80 {
namespace {
using SplitUnit = SplitRow<SplitConfig<__nv_bfloat16, 256, 4, 3>, SplitConfig<__nv_bfloat16, 256, 2, 2>>;
}
}  // namespace tilewise::sm80

TILEWISE_SM80_SPLIT(forward_sm80_bf16_d256_16x64_split_simple)
