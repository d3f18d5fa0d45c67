// Kernel: one row of the table. Its name is its symbol, its log line, its bench row, its tuning value and
// what forces it. The planner knows kernels only through these fields, so a new row needs no change
// elsewhere.
#ifndef TILEWISE_CORE_KERNEL_H_
#define TILEWISE_CORE_KERNEL_H_

#include <cstdint>
#include <string>

#include "core/executor.h"
#include "core/params.h"
#include "tilewise/plan.h"

namespace tilewise {

enum class Op { forward, backward };

// Instruction set or GPU architecture that a row was built for.
enum class Target { reference, scalar, avx2, avx512, neon };

// Decided at planning, read at running.
struct Schedule {
  int threads = 1;
  int tile_m = 0, tile_n = 0;
  int num_splits =
      1;  // backward: key chunks a head is split into; fixed by problem and device, not by threads
};

struct Estimate {
  double seconds = 0;
  double bytes = 0;  // moved to and from memory
};

struct Launch {
  Executor* executor = nullptr;
  void* scratch = nullptr;  // behind the control block; undefined on entry
  int64_t scratch_bytes = 0;
  void* stream = nullptr;
};

struct Kernel {
  const char* name;
  Op op;
  Target target;
  DType dtype;         // of q, k and v in memory
  int head_dim = 0;    // the one head_dim it was built for, or 0 = any
  int tile_m, tile_n;  // rows of q and of k a tile
  bool standard;       // the three-step form, scores in memory
  bool rows = false;   // keys in the lanes, one row of q at a time

  // Empty where it can run the problem on the device; else the rule, what was given and what would be
  // accepted.
  std::string (*refuses)(const Kernel&, const Problem&, const DeviceInfo&);
  Schedule (*schedule)(const Kernel&, const Problem&, const DeviceInfo&, int threads);
  int64_t (*scratch_bytes)(const Kernel&, const Problem&, const Schedule&);
  Estimate (*estimate)(const Kernel&, const Problem&, const DeviceInfo&, const Schedule&);
  // The one that belongs to `op` is set.
  Status (*forward)(const Kernel&, const ForwardParams&, const Schedule&, const Launch&);
  Status (*backward)(const Kernel&, const BackwardParams&, const Schedule&, const Launch&);
};

}  // namespace tilewise
#endif  // TILEWISE_CORE_KERNEL_H_
