#include "tune/work.h"

#include "core/cost.h"

namespace tilewise::tune {

double flops_of(const Problem& p) {
  const bool causal_only = (p.causal || p.window_right == 0) && p.window_left < 0;
  if (!causal_only || p.seqlen_q != p.seqlen_kv || p.position == TILEWISE_GIVEN) return operations(p);
  Problem full = p;
  full.causal = 0;
  full.window_right = -1;
  return 0.5 * operations(full);
}

}  // namespace tilewise::tune
