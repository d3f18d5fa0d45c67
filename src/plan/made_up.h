// Made-up kernels and devices for tests: rows whose cost, scratch and refusals are figures of the test.
#ifndef TILEWISE_PLAN_MADE_UP_H_
#define TILEWISE_PLAN_MADE_UP_H_

#include "core/cost.h"
#include "core/kernel.h"

namespace tilewise::made_up {

// tile_m is the row's time in microseconds, tile_n its scratch in KiB a thread.
inline Kernel row(const char* name, int microseconds, int kib, Target target = Target::scalar,
                  Op op = Op::forward) {
  Kernel k{};
  k.name = name;
  k.op = op;
  k.target = target;
  k.dtype = DType::f32;
  k.tile_m = microseconds;
  k.tile_n = kib;
  k.schedule = [](const Kernel& self, const Problem&, const DeviceInfo&, int threads) {
    return Schedule{threads, self.tile_m, self.tile_n, 1};
  };
  k.scratch_bytes = [](const Kernel& self, const Problem&, const Schedule& s) {
    return int64_t{1024} * self.tile_n * s.threads;
  };
  k.estimate = [](const Kernel& self, const Problem& p, const DeviceInfo&, const Schedule&) {
    return Estimate{self.tile_m * 1e-6, ideal_bytes(p)};
  };
  k.forward = [](const Kernel&, const ForwardParams&, const Schedule&, const Launch&) { return Status(); };
  k.backward = [](const Kernel&, const BackwardParams&, const Schedule&, const Launch&) { return Status(); };
  return k;
}

inline tilewise_device_info device(int cores = 4, uint64_t isa = TILEWISE_ISA_SCALAR | TILEWISE_ISA_AVX2) {
  tilewise_device_info d{};
  d.struct_bytes = sizeof d;
  d.cores = cores;
  d.isa = isa;
  d.l1_bytes = 32 << 10;
  d.l2_bytes = 1 << 20;
  d.l3_bytes = 8 << 20;
  d.memory_bytes = int64_t{1} << 34;
  d.core_gflops = 50;
  d.memory_gbps = 10;
  d.name[0] = 'X';
  return d;
}

inline Problem problem(int64_t seqlen = 64) {
  Problem p;
  p.batch = 1;
  p.seqlen_q = p.seqlen_kv = seqlen;
  p.heads_q = 4;
  p.heads_kv = 2;
  p.head_dim = p.head_dim_v = 16;
  return p;
}

}  // namespace tilewise::made_up
#endif  // TILEWISE_PLAN_MADE_UP_H_
