// Launches that overlap: a kernel that is launched so may begin while the kernel before it on the stream
// still runs.
#ifndef TILEWISE_CUDA_PTX_GRID_H_
#define TILEWISE_CUDA_PTX_GRID_H_

namespace tilewise::ptx {

// Until all kernels before are done and what they wrote is seen. Nothing of global memory may be touched
// before, and every block must pass it; a kernel compiled for less than 9.0 may not be launched early.
__device__ __forceinline__ void grid_wait() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// The next kernel may begin, up to its own grid_wait, as soon as every block has said so and there is room.
__device__ __forceinline__ void grid_release() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

}  // namespace tilewise::ptx
#endif  // TILEWISE_CUDA_PTX_GRID_H_
