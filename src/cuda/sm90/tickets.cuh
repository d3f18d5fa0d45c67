// Handing out work to persistent blocks: a counter in the control block, zero on entry and left zero.
#ifndef TILEWISE_CUDA_SM90_TICKETS_H_
#define TILEWISE_CUDA_SM90_TICKETS_H_

#include <cstdint>

namespace tilewise::sm90 {

// What a block takes after piece `index`; it begins with the one of its own number. Without a counter: every
// gridDim-th.
__device__ __forceinline__ uint32_t draw_ticket(uint32_t* control, uint32_t index) {
  return control ? gridDim.x + atomicAdd(control, 1) : index + gridDim.x;
}

// By each block when it has drawn its last ticket: the last one to leave has seen all others do so. Where
// `together` blocks share each piece, one of them draws and leaves for all.
__device__ __forceinline__ void leave_tickets(uint32_t* control, uint32_t together = 1) {
  if (control == nullptr) return;
  __threadfence();
  if (atomicAdd(control + 1, 1) + 1 == gridDim.x / together) {
    control[0] = 0;
    control[1] = 0;
  }
}

}  // namespace tilewise::sm90
#endif  // TILEWISE_CUDA_SM90_TICKETS_H_
