#include "cuda/sm80/split_launch.cuh"
#include "cuda/sm90/split_plain.h"

namespace tilewise::sm80 {
namespace {
using SplitUnit = sm90::PlainFirst<QuantizedRow<SplitConfig<__half, 128, 8, 3, int8_t, 32>>,
                                   sm90::launch_plain_f16_i8, sm90::prepare_plain_f16_i8>;
}
}  // namespace tilewise::sm80

TILEWISE_SM80_SPLIT(forward_sm90_f16_i8_d128_16x256_split_simple)
