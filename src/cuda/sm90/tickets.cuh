// Handing out work to persistent blocks: a counter in the control block, zero on entry and left zero.
#ifndef TILEWISE_CUDA_SM90_TICKETS_H_
#define TILEWISE_CUDA_SM90_TICKETS_H_

#include <cstdint>

namespace tilewise::sm90 {

// What a block takes after piece `index`; it begins with the one of its own number. Without a counter: every
// gridDim-th. Where `together` blocks share each piece, one of them draws for all and leaves for all.
__device__ __forceinline__ uint32_t draw_ticket(uint32_t* control, uint32_t index, uint32_t together = 1) {
  const uint32_t drawers = gridDim.x / together;
  return control ? drawers + atomicAdd(control, 1) : index + drawers;
}

// By each block when it has drawn its last ticket: the last one to leave has seen all others do so.
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
