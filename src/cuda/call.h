// What a launch gets besides the problem's parameters. Apart from units.h, so that a new row of the table
// compiles no other row's unit again.
#ifndef TILEWISE_CUDA_CALL_H_
#define TILEWISE_CUDA_CALL_H_

#include <cuda_runtime_api.h>

#include "core/params.h"

namespace tilewise::cuda {

struct Call {
  cudaStream_t stream = nullptr;
  void* control = nullptr;  // TILEWISE_CONTROL_BYTES, zero on entry, left zero
  void* scratch = nullptr;  // undefined on entry
  int num_splits = 0;       // the plan's
  int multiprocessors = 0;
};

}  // namespace tilewise::cuda
#endif  // TILEWISE_CUDA_CALL_H_
