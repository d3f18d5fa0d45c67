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
enum class Target { reference, scalar, avx2, avx512, avx512bf16, neon, simt, sm80, sm90 };

constexpr bool is_cuda(Target target) { return target >= Target::simt; }

// Tile by tile; in three steps with the scores in memory; tile by tile, one row of q at a time with keys in
// the SIMD lanes; all of a head in one tile; or parts of the keys apart, joined afterwards.
enum class Form { fused, standard, rows, small, split };

// Decided at planning, read at running.
struct Schedule {
  int threads = 1;
  int tile_m = 0, tile_n = 0;
  int num_splits = 1;  // key chunks a head is split into, fixed by problem and device, not by threads; 0: cut
                       // by lengths that only the device knows
};

struct Estimate {
  double seconds = 0;
  double bytes = 0;  // moved to and from memory
  // GPU: rounds of thread blocks over the multiprocessors, and the share of the tiles' work that no visible
  // pair or dimension asked for; 0 waves = not said.
  double waves = 0, waste = 0;
};

struct Launch {
  Executor* executor = nullptr;
  void* control = nullptr;  // the workspace's control block
  void* scratch = nullptr;  // behind it; undefined on entry
  int64_t scratch_bytes = 0;
  void* stream = nullptr;
  int device_index = 0;
};

struct Kernel {
  const char* name;
  Op op;
  Target target;
  DType dtype;         // of q, k and v in memory; none = any
  int head_dim = 0;    // the one head_dim it was built for, or 0 = any
  int tile_m, tile_n;  // rows of q and of k a tile
  Form form = Form::fused;
  DType dtype_kv = DType::none;  // of k and v where it is another than `dtype`, as in a quantised cache

  // Empty where it can run the problem on the device; else the rule, what was given and what would be
  // accepted.
  std::string (*refuses)(const Kernel&, const Problem&, const DeviceInfo&);
  Schedule (*schedule)(const Kernel&, const Problem&, const DeviceInfo&, int threads);
  int64_t (*scratch_bytes)(const Kernel&, const Problem&, const Schedule&);
  Estimate (*estimate)(const Kernel&, const Problem&, const DeviceInfo&, const Schedule&);
  // The one that belongs to `op` is set.
  Status (*forward)(const Kernel&, const ForwardParams&, const Schedule&, const Launch&);
  Status (*backward)(const Kernel&, const BackwardParams&, const Schedule&, const Launch&);

  // Loads the kernel and sets its limits on a device, so that a captured or timed call need not; null =
  // nothing to do.
  Status (*prepare)(const Kernel&, const Problem&, int device_index) = nullptr;
  // Uses the workspace's control block (CPU calls always do, to see a second call).
  bool control = false;
  const void* facts = nullptr;  // what the row's own room knows besides

  constexpr DType stored_kv() const { return dtype_kv == DType::none ? dtype : dtype_kv; }
};

}  // namespace tilewise
#endif  // TILEWISE_CORE_KERNEL_H_
