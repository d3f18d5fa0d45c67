// What the backward's kernels on plain FMA do for other rows too: D and dsinks; for fp32 rows dbias, and what
// their products cannot hold.
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

// dk, dv and dq. Marks: null, or of every tile of 64 keys or queries of a head the turns to make
// (backward.cuh). `p.delta` is D.
cudaError_t launch_gradients(const BackwardParams& p, const uint32_t* key_marks, const uint32_t* query_marks,
                             cudaStream_t stream);
cudaError_t launch_bias(const BackwardParams& p, cudaStream_t stream);

// Loads all kernels of a problem's backward, those of prepare_parts() too.
cudaError_t prepare_gradients(const tilewise_problem& p);

}  // namespace tilewise::cuda::simt
#endif  // TILEWISE_CUDA_SIMT_BACKWARD_PARTS_H_
