#include "cuda/sm80/split_launch.cuh"

namespace tilewise::sm80 {
namespace {
using SplitUnit = SplitRow<SplitConfig<__nv_bfloat16, 64, 8, 6>, SplitConfig<__nv_bfloat16, 64, 8, 2>>;
}
}  // namespace tilewise::sm80

TILEWISE_SM80_SPLIT(forward_sm80_bf16_d64_16x128_split_simple)
