#include "cuda/sm90/forward_rows.h"

namespace tilewise::sm90 {

extern const ForwardRow kForward_bf16_d64, kForward_bf16_d96, kForward_bf16_d128, kForward_bf16_d192_128,
    kForward_bf16_d256;
extern const ForwardRow kForward_f16_d64, kForward_f16_d96, kForward_f16_d128, kForward_f16_d192_128,
    kForward_f16_d256;

std::span<const ForwardRow* const> forward_rows() {
  static constexpr const ForwardRow* kRows[] = {
      &kForward_bf16_d64,     &kForward_bf16_d96, &kForward_bf16_d128, &kForward_bf16_d192_128,
      &kForward_bf16_d256,    &kForward_f16_d64,  &kForward_f16_d96,   &kForward_f16_d128,
      &kForward_f16_d192_128, &kForward_f16_d256};
  return kRows;
}

}  // namespace tilewise::sm90
