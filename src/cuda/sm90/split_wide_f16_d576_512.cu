#include "cuda/sm90/split_wide_launch.cuh"

namespace tilewise::sm90 {
namespace {
using WideUnit = LatentRow<WideConfig<__half, 576, 512, 64, 2, true>, WideConfig<__half, 576, 512, 32, 2>>;
}
}  // namespace tilewise::sm90

TILEWISE_SM90_WIDE(forward_sm90_f16_d576_512_64x64_split_simple)
