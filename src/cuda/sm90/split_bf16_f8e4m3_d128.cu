#include <cuda_fp8.h>

#include "cuda/sm80/split_launch.cuh"
#include "cuda/sm90/split_plain.h"

namespace tilewise::sm80 {
namespace {
using SplitUnit = sm90::PlainFirst<QuantizedRow<SplitConfig<__nv_bfloat16, 128, 8, 3, __nv_fp8_e4m3, 32>>,
                                   sm90::launch_plain_bf16_f8e4m3, sm90::prepare_plain_bf16_f8e4m3>;
}
}  // namespace tilewise::sm80

TILEWISE_SM80_SPLIT(forward_sm90_bf16_f8e4m3_d128_16x256_split_simple)
