#include "cuda/sm90/split_wide_launch.cuh"

namespace tilewise::sm90 {
namespace {
using WideUnit = WideRow<WideConfig<__half, 256, 256, 32, 5>>;
}
}  // namespace tilewise::sm90

TILEWISE_SM90_WIDE(forward_sm90_f16_d256_64x32_split_simple)
