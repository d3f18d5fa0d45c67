// The functions that the table of kernels knows each sm_90a forward row by.
#include "cuda/units.h"
#include "cuda/sm90/forward_rows.h"

#define SM90_FORWARD(name, row)                                                                          \
  namespace tilewise::sm90 {                                                                             \
  extern const ForwardRow row;                                                                           \
  }                                                                                                      \
  namespace tilewise::cuda {                                                                             \
  cudaError_t name(const ForwardParams& p, const Call& call) {                                           \
    return sm90::row.launch(p, static_cast<uint32_t*>(call.control), call.multiprocessors, call.stream); \
  }                                                                                                      \
  cudaError_t name##_prepare(const tilewise_problem&) { return sm90::row.prepare(); }                    \
  const char* name##_refuses(const ForwardParams& p) { return sm90::forward_refuses(sm90::row, p); }     \
  }

SM90_FORWARD(forward_sm90_bf16_d64_192x128_s2_simple, kForward_bf16_d64)
SM90_FORWARD(forward_sm90_f16_d64_192x128_s2_simple, kForward_f16_d64)
SM90_FORWARD(forward_sm90_bf16_d96_128x128_s2_simple, kForward_bf16_d96)
SM90_FORWARD(forward_sm90_f16_d96_128x128_s2_simple, kForward_f16_d96)
SM90_FORWARD(forward_sm90_bf16_d128_128x128_s2_simple, kForward_bf16_d128)
SM90_FORWARD(forward_sm90_f16_d128_128x128_s2_simple, kForward_f16_d128)
SM90_FORWARD(forward_sm90_bf16_d192_128_128x112_s2_simple, kForward_bf16_d192_128)
SM90_FORWARD(forward_sm90_f16_d192_128_128x112_s2_simple, kForward_f16_d192_128)
SM90_FORWARD(forward_sm90_bf16_d256_128x64_s2_simple, kForward_bf16_d256)
SM90_FORWARD(forward_sm90_f16_d256_128x64_s2_simple, kForward_f16_d256)
