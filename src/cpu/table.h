// Turns kernels.def into one unit's rows. The unit defines CPU_KERNEL_<isa> as TILEWISE_CPU_ROWS for its own
// instruction set and as nothing for the others.
#ifndef TILEWISE_CPU_TABLE_H_
#define TILEWISE_CPU_TABLE_H_

#include "core/kernel.h"
#include "cpu/backward.h"
#include "cpu/lanes.h"
#include "cpu/row_forward.h"
#include "cpu/rules.h"
#include "cpu/small.h"

#define TILEWISE_CPU_ROWS(isa, op, form, m, n)                                            \
  TILEWISE_CPU_ROW(isa, op, form, f32, m, n), TILEWISE_CPU_ROW(isa, op, form, f16, m, n), \
      TILEWISE_CPU_ROW(isa, op, form, bf16, m, n), TILEWISE_CPU_QUANTIZED_##form(isa, op, form, m, n)
// A quantised cache with q in any dtype: read by the form for a few rows of q alone.
#define TILEWISE_CPU_QUANTIZED_fused(...)
#define TILEWISE_CPU_QUANTIZED_standard(...)
#define TILEWISE_CPU_QUANTIZED_small(...)
#define TILEWISE_CPU_QUANTIZED_rows(isa, op, form, m, n)                    \
  tilewise::cpu::with_any_q(TILEWISE_CPU_ROW(isa, op, form, f8e4m3, m, n)), \
      tilewise::cpu::with_any_q(TILEWISE_CPU_ROW(isa, op, form, i8, m, n)),
#define TILEWISE_CPU_ROW(isa, op, form, dtype, m, n)                                                      \
  tilewise::cpu::row(#op "_" #isa "_" #dtype TILEWISE_CPU_FORM_##form "_" #m "x" #n, Target::isa, Op::op, \
                     DType::dtype, Form::form, m, n, HWY_NAMESPACE::kLanes, TILEWISE_CPU_RUN_##op##_##form)
#define TILEWISE_CPU_FORM_fused ""
#define TILEWISE_CPU_FORM_standard "_standard"
#define TILEWISE_CPU_FORM_rows "_rows"
#define TILEWISE_CPU_FORM_small "_small"
#define TILEWISE_CPU_RUN_forward_fused &HWY_NAMESPACE::Forward, nullptr
#define TILEWISE_CPU_RUN_forward_standard &HWY_NAMESPACE::StandardForward, nullptr
#define TILEWISE_CPU_RUN_forward_rows &HWY_NAMESPACE::RowForward, nullptr
#define TILEWISE_CPU_RUN_forward_small &HWY_NAMESPACE::SmallForward<HWY_NAMESPACE::Bf16>, nullptr
#define TILEWISE_CPU_RUN_backward_fused nullptr, &HWY_NAMESPACE::Backward
#define TILEWISE_CPU_RUN_backward_small nullptr, &HWY_NAMESPACE::SmallBackward<HWY_NAMESPACE::Bf16>

namespace tilewise::cpu {

// Not constexpr, so that a line of the table beyond a limit does not compile.
inline void tile_m_is_too_large() {}
inline void tile_n_does_not_fit() {}

constexpr int most_rows(Form form) {
  return form == Form::rows ? kMaxRows : form == Form::small ? kSmallRows : kMaxLanes;
}

// One of `forward` and `backward` is given; `lanes` are those of a vector. `op` is said beside them: gcc's
// UBSan does not take a comparison of a function's address with null for a constant.
constexpr Kernel row(const char* name, Target target, Op op, DType dtype, Form form, int tile_m, int tile_n,
                     int lanes, decltype(Kernel::forward) forward, decltype(Kernel::backward) backward) {
  if (tile_m > most_rows(form)) tile_m_is_too_large();
  if (form == Form::fused && lanes > 1 && tile_m > kMostVectors * lanes) tile_m_is_too_large();
  if (form == Form::small && tile_n > kSmallKeys) tile_n_does_not_fit();
  if (op == Op::backward && form == Form::fused && tile_n > kMaxTileKeys) tile_n_does_not_fit();
  if (form == Form::rows && (tile_n > kMaxRowKeys || kSplitKeys % tile_n != 0)) tile_n_does_not_fit();
  return {.name = name,
          .op = op,
          .target = target,
          .dtype = dtype,
          .head_dim = 0,
          .tile_m = tile_m,
          .tile_n = tile_n,
          .form = form,
          .refuses = refuses,
          .schedule = schedule,
          .scratch_bytes = scratch_bytes,
          .estimate = estimate,
          .forward = forward,
          .backward = backward};
}

constexpr Kernel with_any_q(Kernel kernel) {
  kernel.dtype_kv = kernel.dtype;
  kernel.dtype = DType::none;
  return kernel;
}

}  // namespace tilewise::cpu
#endif  // TILEWISE_CPU_TABLE_H_
