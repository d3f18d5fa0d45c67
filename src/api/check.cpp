#include "api/check.h"

#include <algorithm>

#include "core/text.h"

namespace tilewise {
namespace {

std::string dtype_text(int32_t dtype) {
  if (!is_dtype(dtype)) return cat("unknown dtype ", dtype);
  return name_of(static_cast<DType>(dtype));
}

std::string device_text(int32_t kind, int32_t index) {
  if (kind == TILEWISE_CPU) return "the CPU";
  return kind == TILEWISE_CUDA ? cat("CUDA device ", index) : cat("device kind ", kind);
}

int64_t bytes_of_elements(int32_t dtype, int64_t elements) {
  return (elements * bits_of(static_cast<DType>(dtype)) + 7) / 8;
}

bool is_multiple(int64_t value, int64_t of) { return value % of == 0; }

}  // namespace

bool TensorChecks::fail(std::string sentence) {
  if (status_.ok()) status_ = Status(Code::invalid, std::move(sentence));
  return false;
}

bool TensorChecks::require(const char* name, const tilewise_tensor& t) {
  return present(t) || fail(cat(name, " is missing; this call needs it"));
}

bool TensorChecks::rank(const char* name, const tilewise_tensor& t, int rank, const char* labels) {
  if (t.rank == rank) return true;
  if (t.rank < 0 || t.rank > TILEWISE_MAX_RANK)
    return fail(cat(name, " has ", t.rank, " dimensions; accepted: ", rank, " = ", labels));
  return fail(
      cat(name, " has shape ", shape_text(t.shape, t.rank), "; accepted: ", rank, " dimensions = ", labels));
}

bool TensorChecks::dtype(const char* name, const tilewise_tensor& t, std::initializer_list<DType> accepted) {
  for (DType a : accepted) {
    if (t.dtype == static_cast<int32_t>(a)) return true;
  }
  std::string list;
  for (DType a : accepted) append_listed(list, name_of(a), " or ");
  return fail(cat(name, " is ", dtype_text(t.dtype), "; accepted: ", list));
}

// What almost every tensor is: row-major, aligned and as asked for. False settles nothing: layout() then
// looks rule by rule and has the words.
bool TensorChecks::plain(const char* name, const tilewise_tensor& t, const Shape& shape, Rules rules) {
  const bool writes = rules.access == Access::output;
  if (t.rank != shape.rank || t.device_kind != device_kind_ || t.device_kind != TILEWISE_CPU || !t.data ||
      t.dtype == TILEWISE_BIT || count_ == kMost || (writes && (t.flags & TILEWISE_READ_ONLY)))
    return false;
  int64_t elements = 1;
  for (int i = shape.rank - 1; i >= 0; --i) {
    const int64_t n = shape.size[i];
    if (n <= 0 || t.shape[i] != n || (n != 1 && t.stride[i] != elements) ||
        __builtin_mul_overflow(elements, n, &elements))
      return false;
  }
  const int64_t element = bits_of(static_cast<DType>(t.dtype)) / 8;
  const int64_t alignment = std::max<int64_t>(rules.alignment, element);  // a power of two
  const auto base = reinterpret_cast<uintptr_t>(t.data);
  const auto row = static_cast<uintptr_t>(t.shape[t.rank - 1] * element);
  if (elements > INT64_MAX / 16 || ((base | row) & static_cast<uintptr_t>(alignment - 1)) != 0) return false;
  extents_[count_++] = {name, base, base + static_cast<uintptr_t>(elements * element), true, writes};
  return true;
}

bool TensorChecks::layout(const char* name, const tilewise_tensor& t, const Shape& shape, Rules rules) {
  if (plain(name, t, shape, rules)) return true;
  if (!rank(name, t, shape.rank, shape.labels)) return false;
  if (std::any_of(t.shape, t.shape + t.rank, [](int64_t n) { return n < 0; }))
    return fail(cat(name, " has shape ", shape_text(t.shape, t.rank), "; accepted: sizes of 0 and more, ",
                    shape.labels));
  if (!std::equal(shape.size, shape.size + shape.rank, t.shape)) {
    return fail(cat(name, " has shape ", shape_text(t.shape, t.rank),
                    "; accepted: ", shape_text(shape.size, shape.rank), " = ", shape.labels));
  }
  if (t.device_kind != device_kind_ || (t.device_kind == TILEWISE_CUDA && t.device_index != device_index_)) {
    return fail(cat(name, " is on ", device_text(t.device_kind, t.device_index),
                    "; accepted: ", device_text(device_kind_, device_index_), ", as planned"));
  }
  if (rules.access == Access::output && (t.flags & TILEWISE_READ_ONLY))
    return fail(cat(name, " is read-only; accepted: writable memory, as this call writes it"));
  if (!has_elements(t)) return true;
  if (!t.data)
    return fail(cat(name, " has data NULL with shape ", shape_text(t.shape, t.rank),
                    "; accepted: NULL only without elements"));
  return strides(name, t, rules) && remember(name, t, rules);
}

bool TensorChecks::strides(const char* name, const tilewise_tensor& t, Rules rules) {
  const int inner = t.rank - 1;
  if (rules.unit_inner && t.shape[inner] != 1 && t.stride[inner] != 1) {
    return fail(cat(name, " has innermost stride ", t.stride[inner],
                    "; accepted: 1 (the last dimension contiguous; outer strides are free)"));
  }
  if (t.dtype == TILEWISE_BIT) return true;
  const int64_t element = bits_of(static_cast<DType>(t.dtype)) / 8;
  const int64_t alignment = std::max<int64_t>(rules.alignment, element);
  const auto address = reinterpret_cast<uintptr_t>(t.data);
  bool aligned = address % static_cast<uintptr_t>(alignment) == 0;
  for (int i = 0; rules.alignment > element && i < inner; ++i)
    aligned &= t.shape[i] == 1 || is_multiple(t.stride[i] * element, rules.alignment);
  if (aligned) return true;
  return fail(cat(name, " is not aligned to ", alignment, " bytes (address ends in ", address % 4096,
                  ", strides ", shape_text(t.stride, t.rank),
                  "); accepted: base and outer strides multiples of ", alignment, " bytes",
                  rules.alignment > element ? ", as planned" : ", the element's size"));
}

bool TensorChecks::remember(const char* name, const tilewise_tensor& t, Rules rules) {
  // Dimensions by stride: with a[i] elements below it, the next stride must step over them.
  int64_t low = 0, high = 0, elements = 1;
  int order[TILEWISE_MAX_RANK], n = 0;
  for (int i = t.rank - 1; i >= 0; --i) {  // row-major is in order already
    if (t.shape[i] == 1) continue;
    int64_t reach = 0;
    int64_t& end = t.stride[i] < 0 ? low : high;
    if (__builtin_mul_overflow(t.stride[i], t.shape[i] - 1, &reach) ||
        __builtin_add_overflow(end, reach, &end) || __builtin_mul_overflow(elements, t.shape[i], &elements) ||
        low < -(INT64_MAX / 16) || high > INT64_MAX / 16)
      return fail(cat(name, " has shape ", shape_text(t.shape, t.rank), " and strides ",
                      shape_text(t.stride, t.rank), ", which reach past 64-bit addresses"));
    order[n++] = i;
  }
  const auto step = [&](int i) { return t.stride[i] < 0 ? -t.stride[i] : t.stride[i]; };
  for (int i = 1; i < n; ++i) {  // insertion sort: n <= 4
    for (int j = i; j > 0 && step(order[j]) < step(order[j - 1]); --j) std::swap(order[j], order[j - 1]);
  }
  int64_t span = 1;
  for (int i = 0; i < n; ++i) {
    if (rules.access == Access::output && step(order[i]) < span) {
      return fail(cat(name, " has shape ", shape_text(t.shape, t.rank), " and strides ",
                      shape_text(t.stride, t.rank),
                      ", so that elements share memory; accepted as an output: every element its own"));
    }
    span += step(order[i]) * (t.shape[order[i]] - 1);
  }
  if (count_ == kMost) return fail("too many tensors");
  const auto base = reinterpret_cast<uintptr_t>(t.data);
  const auto below = static_cast<uintptr_t>(bytes_of_elements(t.dtype, -low));
  extents_[count_++] = {name, base - below,
                        base + static_cast<uintptr_t>(bytes_of_elements(t.dtype, high + 1)), span == elements,
                        rules.access == Access::output};
  return true;
}

bool TensorChecks::overlaps() {
  const auto inside = [](const Extent& a, uintptr_t address) { return a.low <= address && address < a.high; };
  for (int i = 0; i < count_; ++i) {
    if (!extents_[i].output) continue;
    for (int j = 0; j < count_; ++j) {
      if (i == j || (extents_[j].output && j < i)) continue;
      const Extent &a = extents_[i], &b = extents_[j];
      // An element of one lies in the other for certain: at its lowest address.
      if (a.low != b.low && !(a.dense && inside(a, b.low)) && !(b.dense && inside(b, a.low))) continue;
      return fail(cat(a.name, " overlaps ", b.name,
                      " in memory; accepted: an output that shares none with other tensors"));
    }
  }
  return true;
}

}  // namespace tilewise
