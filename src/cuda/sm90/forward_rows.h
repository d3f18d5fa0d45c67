// The sm_90a forward kernels as a table, for the host.
#ifndef TILEWISE_CUDA_SM90_FORWARD_ROWS_H_
#define TILEWISE_CUDA_SM90_FORWARD_ROWS_H_

#include <cuda_runtime.h>

#include "core/params.h"

namespace tilewise::sm90 {

struct ForwardRow {
  const char* name;
  DType dtype;
  int head_dim, head_dim_v;  // the largest it takes; smaller ones are padded inside
  int tile_m, tile_n;
  cudaError_t (*prepare)();  // once a device, outside stream capture
  // control: two zeros in device memory of this call's own, left zero; null: work is dealt out in advance.
  cudaError_t (*launch)(const ForwardParams& params, uint32_t* control, int multiprocessors,
                        cudaStream_t stream);
};

// The rule that keeps the kernel from running the call, or null.
const char* forward_refuses(const ForwardRow& row, const ForwardParams& params);

}  // namespace tilewise::sm90
#endif  // TILEWISE_CUDA_SM90_FORWARD_ROWS_H_
