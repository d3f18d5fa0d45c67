#include "cuda/sm90/split_wide_launch.cuh"

namespace tilewise::sm90 {
namespace {
using WideUnit = WideRow<WideConfig<__nv_bfloat16, 128, 128, 64, 5, false, true>>;
}
}  // namespace tilewise::sm90

TILEWISE_SM90_WIDE(forward_sm90_bf16_d128_64x64_split_simple)
