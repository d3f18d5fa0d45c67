// What the backward's kernels on plain FMA do for other rows too: D and dsinks.
#ifndef TILEWISE_CUDA_SIMT_BACKWARD_PARTS_H_
#define TILEWISE_CUDA_SIMT_BACKWARD_PARTS_H_

#include <cuda_runtime_api.h>

#include "core/params.h"
#include "tilewise/c.h"

namespace tilewise::cuda::simt {

// Scratch for D of every row, and where it lies in it.
int64_t delta_bytes(const tilewise_problem& p);
RowStats delta_in(void* scratch, const BackwardParams& p);

// D = rowsum(dO o O) - dlse, or the delta given - dlse; 0 where lse is -inf.
cudaError_t launch_delta(const BackwardParams& given, RowStats to, cudaStream_t stream);

// `p.delta` is D.
cudaError_t launch_sinks(const BackwardParams& p, cudaStream_t stream);

// Loads both kernels.
cudaError_t prepare_parts();

}  // namespace tilewise::cuda::simt
#endif  // TILEWISE_CUDA_SIMT_BACKWARD_PARTS_H_
