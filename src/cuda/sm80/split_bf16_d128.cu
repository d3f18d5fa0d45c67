#include "cuda/sm80/split_launch.cuh"
#include "cuda/sm90/split_plain.h"

namespace tilewise::sm80 {
namespace {
// On 9.0 the plain kernel for the calls that it takes.
struct SplitUnit {
  using Row = SplitRow<SplitConfig<__nv_bfloat16, 128, 8, 3>, SplitConfig<__nv_bfloat16, 128, 4, 2>>;
  static cudaError_t launch(const ForwardParams& p, const cuda::Call& call) {
    const sm90::PlainLaunch plain = sm90::launch_plain_bf16(p, call);
    return plain.taken ? plain.error : Row::launch(p, call);
  }
  static cudaError_t prepare() {
    const cudaError_t error = Row::prepare();
    return error == cudaSuccess ? sm90::prepare_plain_bf16() : error;
  }
};
}  // namespace
}  // namespace tilewise::sm80

TILEWISE_SM80_SPLIT(forward_sm80_bf16_d128_16x128_split_simple)
