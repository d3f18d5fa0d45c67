#include <cmath>
#include <cstring>
#include <limits>

#include "core/text.h"
#include "plan/planner.h"

void tilewise_problem_init(tilewise_problem* p) {
  if (!p) return;
  std::memset(p, 0, sizeof *p);
  p->struct_bytes = sizeof *p;
  p->direction = TILEWISE_FORWARD;
  p->dtype_q = p->dtype_k = p->dtype_v = p->dtype_o = TILEWISE_F32;
  p->dtype_dout = p->dtype_dq = p->dtype_dk = p->dtype_dv = TILEWISE_F32;
  p->dtype_bias = p->dtype_dbias = TILEWISE_F32;
  p->dtype_mask = TILEWISE_BOOL;
  for (int i = 0; i < 4; ++i) p->bias_shape[i] = p->mask_shape[i] = 1;
  p->window_left = p->window_right = -1;
  p->position = TILEWISE_BOTTOM_RIGHT;
  p->softmax_scale = std::numeric_limits<float>::quiet_NaN();
  p->alignment = 1;
}

size_t tilewise_problem_print(const tilewise_problem* problem, char* text, size_t text_bytes) {
  try {
    return problem ? tilewise::copy_text(tilewise::print_problem(*problem), text, text_bytes) : 0;
  } catch (...) {
    return 0;
  }
}
