// Launchers of the peak bursts. Random operands: zeros would draw less power and run at a higher clock.
#ifndef TILEWISE_CUDA_SUPPORT_PEAK_H_
#define TILEWISE_CUDA_SUPPORT_PEAK_H_

#include <cuda_runtime_api.h>

#include <cstdint>

namespace tilewise::cuda {

// FLOP of one launch of `rounds` rounds; `sink` takes 4 bytes. By the widest instruction that the capability
// has: wgmma on 9.0, mma.sync elsewhere (7.5 has no bf16: its rate is fp16's).
double matrix_burst_flops(int capability, int multiprocessors, int rounds);
cudaError_t launch_matrix_burst(int capability, int multiprocessors, int rounds, float* sink,
                                cudaStream_t stream);

cudaError_t launch_read_burst(int multiprocessors, const void* data, int64_t bytes, float* sink,
                              cudaStream_t stream);

}  // namespace tilewise::cuda
#endif  // TILEWISE_CUDA_SUPPORT_PEAK_H_
