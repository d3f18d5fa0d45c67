#include "reference/kernels.h"

#include <new>

#include "reference/elements.h"
#include "reference/oracle.h"

namespace tilewise {
namespace {

std::string refuses(const Kernel&, const Problem&, const DeviceInfo& device) {
  if (device.kind != TILEWISE_CPU) return "runs on the CPU only; the device asked for is not one";
  return {};
}

Schedule schedule(const Kernel&, const Problem&, const DeviceInfo&, int) {
  Schedule result;
  result.tile_m = 1;
  result.tile_n = 1;
  return result;
}

int64_t scratch_bytes(const Kernel&, const Problem&, const Schedule&) { return 0; }

Estimate estimate(const Kernel& kernel, const Problem& problem, const DeviceInfo&, const Schedule&) {
  constexpr double kMultiplyAddsPerSecond = 0.5e9;
  const double pairs = static_cast<double>(problem.batch) * static_cast<double>(problem.heads_q) *
                       static_cast<double>(problem.seqlen_q) * static_cast<double>(problem.seqlen_kv);
  const double per_pair = kernel.op == Op::forward
                              ? static_cast<double>(problem.head_dim + problem.head_dim_v)
                              : static_cast<double>(3 * problem.head_dim + 2 * problem.head_dim_v);
  Estimate result;
  result.seconds = pairs * per_pair / kMultiplyAddsPerSecond;
  result.bytes = pairs * per_pair * 8.0;
  return result;
}

// Adds to what is there for `accumulate`.
void store_rows(const std::vector<double>& values, const std::vector<RowId>& rows, bool keys, bool accumulate,
                const ForwardParams& p, const RowTensor& out, int64_t heads, int64_t dim) {
  if (out.data == nullptr) return;
  size_t from = 0;
  for (const RowId& id : rows) {
    const SequenceShape shape = shape_of_sequence(p, id.sequence);
    for (int64_t h = 0; h < heads; ++h) {
      const int64_t to = offset_of(out, id.sequence, keys ? shape.kv_begin : shape.q_begin, id.row, h);
      for (int64_t d = 0; d < dim; ++d, ++from) {
        const double before = accumulate ? read_element(out.data, out.dtype, to + d) : 0.0;
        write_element(out.data, out.dtype, to + d, before + values[from]);
      }
    }
  }
}

void forward_all(const ForwardParams& p) {
  const OracleForward result = run_oracle_forward(p);
  store_rows(result.o, result.rows, false, false, p, p.o, p.heads_q, p.head_dim_v);
  if (p.lse.data == nullptr) return;
  size_t from = 0;
  for (const RowId& id : result.rows) {
    const int64_t begin = shape_of_sequence(p, id.sequence).q_begin;
    for (int64_t h = 0; h < p.heads_q; ++h) {
      p.lse.data[offset_of(p.lse, id.sequence, begin, id.row, h)] = static_cast<float>(result.lse[from++]);
    }
  }
}

void backward_all(const BackwardParams& p) {
  const OracleBackward result = run_oracle_backward(p);
  store_rows(result.dq, result.query_rows, false, p.accumulate, p, p.dq, p.heads_q, p.head_dim);
  store_rows(result.dk, result.key_rows, true, p.accumulate, p, p.dk, p.heads_kv, p.head_dim);
  store_rows(result.dv, result.key_rows, true, p.accumulate, p, p.dv, p.heads_kv, p.head_dim_v);
  if (p.dbias.data != nullptr && !result.dbias.empty()) {
    size_t from = 0;
    for (int64_t b = 0; b < p.bias_shape[0]; ++b) {
      for (int64_t h = 0; h < p.bias_shape[1]; ++h) {
        for (int64_t i = 0; i < p.bias_shape[2]; ++i) {
          for (int64_t j = 0; j < p.bias_shape[3]; ++j) {
            write_element(p.dbias.data, p.dbias.dtype, offset_of(p.dbias, b, h, i, j), result.dbias[from++]);
          }
        }
      }
    }
  }
  if (p.dsinks != nullptr && !result.dsinks.empty()) {
    for (int64_t h = 0; h < p.heads_q; ++h) {
      p.dsinks[h * p.dsinks_stride] = static_cast<float>(result.dsinks[static_cast<size_t>(h)]);
    }
  }
}

Status out_of_memory(const Kernel& kernel) {
  return {Code::out_of_memory, std::string(kernel.name) + " could not allocate its double-precision copies"};
}

Status run_forward(const Kernel& kernel, const ForwardParams& params, const Schedule&, const Launch&) {
  try {
    forward_all(params);
  } catch (const std::bad_alloc&) {
    return out_of_memory(kernel);
  }
  return {};
}

Status run_backward(const Kernel& kernel, const BackwardParams& params, const Schedule&, const Launch&) {
  try {
    backward_all(params);
  } catch (const std::bad_alloc&) {
    return out_of_memory(kernel);
  }
  return {};
}

constexpr Kernel row(const char* name, Op op) {
  const bool forward = op == Op::forward;
  return {.name = name,
          .op = op,
          .target = Target::reference,
          .dtype = DType::none,
          .head_dim = 0,
          .tile_m = 1,
          .tile_n = 1,
          .refuses = refuses,
          .schedule = schedule,
          .scratch_bytes = scratch_bytes,
          .estimate = estimate,
          .forward = forward ? run_forward : nullptr,
          .backward = forward ? nullptr : run_backward};
}

constexpr Kernel kKernels[] = {
    row("forward_reference_f64", Op::forward),
    row("backward_reference_f64", Op::backward),
};

}  // namespace

std::span<const Kernel> reference_kernels() { return kKernels; }

}  // namespace tilewise
