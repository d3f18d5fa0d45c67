#include "cuda/sm80/split_launch.cuh"
#include "cuda/sm90/split_plain.h"

namespace tilewise::sm80 {
namespace {
using SplitUnit =
    sm90::PlainFirst<SplitRow<SplitConfig<__nv_bfloat16, 128, 8, 3>, SplitConfig<__nv_bfloat16, 128, 4, 2>>,
                     sm90::launch_plain_bf16, sm90::prepare_plain_bf16>;
}
}  // namespace tilewise::sm80

TILEWISE_SM80_SPLIT(forward_sm80_bf16_d128_16x128_split_simple)
