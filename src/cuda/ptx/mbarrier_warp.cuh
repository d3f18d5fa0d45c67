// A warp's arrival at an mbarrier, after the last lane's access and __syncwarp: lane 0's. ptxas drops the
// __syncwarp of a converged warp, and racecheck then knows of one lane's accesses alone; a build with
// TILEWISE_EVERY_LANE_ARRIVES is for it (tests/racecheck.allow): there each lane arrives for itself.
#ifndef TILEWISE_CUDA_PTX_MBARRIER_WARP_H_
#define TILEWISE_CUDA_PTX_MBARRIER_WARP_H_

#include "cuda/ptx/mbarrier.cuh"

namespace tilewise::ptx {

#ifdef TILEWISE_EVERY_LANE_ARRIVES
constexpr int kWarpArrivals = 32;
#else
constexpr int kWarpArrivals = 1;  // that the barrier counts for a warp
#endif

__device__ __forceinline__ void mbarrier_arrive_warp(Mbarrier* barrier, int lane) {
  if (kWarpArrivals == 32 || lane == 0) mbarrier_arrive(barrier);
}

}  // namespace tilewise::ptx
#endif  // TILEWISE_CUDA_PTX_MBARRIER_WARP_H_
