// Turns kernels.def into one unit's rows. The unit defines CPU_KERNEL_<isa> as TILEWISE_CPU_ROWS for its own
// instruction set and as nothing for the others.
#ifndef TILEWISE_CPU_TABLE_H_
#define TILEWISE_CPU_TABLE_H_

#include "core/kernel.h"
#include "cpu/lanes.h"
#include "cpu/row_forward.h"
#include "cpu/rules.h"

#define TILEWISE_CPU_ROWS(isa, op, form, m, n) \
  TILEWISE_CPU_ROW(isa, op, form, f32, m, n)   \
  TILEWISE_CPU_ROW(isa, op, form, f16, m, n)   \
  TILEWISE_CPU_ROW(isa, op, form, bf16, m, n)
#define TILEWISE_CPU_ROW(isa, op, form, dtype, m, n)                                              \
  tilewise::cpu::row(#op "_" #isa "_" #dtype TILEWISE_CPU_FORM_##form "_" #m "x" #n, Target::isa, \
                     DType::dtype, m, n, TILEWISE_CPU_RUN_##op##_##form),
#define TILEWISE_CPU_FORM_fused ""
#define TILEWISE_CPU_FORM_standard "_standard"
#define TILEWISE_CPU_FORM_rows "_rows"
#define TILEWISE_CPU_RUN_forward_fused \
  ForwardFused { &HWY_NAMESPACE::Forward }
#define TILEWISE_CPU_RUN_forward_standard \
  ForwardStandard { &HWY_NAMESPACE::StandardForward }
#define TILEWISE_CPU_RUN_forward_rows \
  ForwardRows { &HWY_NAMESPACE::RowForward }
#define TILEWISE_CPU_RUN_backward_fused \
  BackwardFused { &HWY_NAMESPACE::Backward }

namespace tilewise::cpu {

struct ForwardFused {
  Status (*run)(const Kernel&, const ForwardParams&, const Schedule&, const Launch&);
};
struct ForwardStandard {
  Status (*run)(const Kernel&, const ForwardParams&, const Schedule&, const Launch&);
};
struct ForwardRows {
  Status (*run)(const Kernel&, const ForwardParams&, const Schedule&, const Launch&);
};
struct BackwardFused {
  Status (*run)(const Kernel&, const BackwardParams&, const Schedule&, const Launch&);
};

// Not constexpr, so that a line of the table beyond a limit does not compile.
inline void tile_m_is_too_large() {}

constexpr Kernel row_of(const char* name, Op op, Target target, DType dtype, int tile_m, int tile_n,
                        bool standard) {
  if (tile_m > kMaxLanes) tile_m_is_too_large();
  return {.name = name,
          .op = op,
          .target = target,
          .dtype = dtype,
          .head_dim = 0,
          .tile_m = tile_m,
          .tile_n = tile_n,
          .standard = standard,
          .refuses = refuses,
          .schedule = schedule,
          .scratch_bytes = scratch_bytes,
          .estimate = estimate,
          .forward = nullptr,
          .backward = nullptr};
}
constexpr Kernel row(const char* name, Target target, DType dtype, int m, int n, ForwardFused form) {
  Kernel kernel = row_of(name, Op::forward, target, dtype, m, n, false);
  kernel.forward = form.run;
  return kernel;
}
constexpr Kernel row(const char* name, Target target, DType dtype, int m, int n, ForwardStandard form) {
  Kernel kernel = row_of(name, Op::forward, target, dtype, m, n, true);
  kernel.forward = form.run;
  return kernel;
}
constexpr Kernel row(const char* name, Target target, DType dtype, int m, int n, ForwardRows form) {
  if (m > kMaxRows) tile_m_is_too_large();
  Kernel kernel = row_of(name, Op::forward, target, dtype, m, n, false);
  kernel.rows = true;
  kernel.forward = form.run;
  return kernel;
}
constexpr Kernel row(const char* name, Target target, DType dtype, int m, int n, BackwardFused form) {
  Kernel kernel = row_of(name, Op::backward, target, dtype, m, n, false);
  kernel.backward = form.run;
  return kernel;
}

}  // namespace tilewise::cpu
#endif  // TILEWISE_CPU_TABLE_H_
