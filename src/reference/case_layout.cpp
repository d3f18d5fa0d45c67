#include "reference/case_layout.h"

#include <utility>

namespace tilewise {
namespace {

struct Placement {
  std::vector<int64_t> shape, stride;
  int64_t lead = 0;
};

std::string layout_of(const Case& c, const std::string& tensor) {
  const auto own = c.layouts.find(tensor);
  if (own != c.layouts.end()) return own->second;
  const auto all = c.layouts.find("");
  return all != c.layouts.end() ? all->second : "bshd";
}

// [batch, rows, heads, dim] (packed: [rows, heads, dim]) in the layout that the case asks for.
Placement place_rows(const Case& c, const std::string& tensor, std::vector<int64_t> shape) {
  Placement place;
  place.shape = shape;
  place.stride = row_major(shape);
  const size_t first = shape.size() - 3;  // index of rows
  const int64_t rows = shape[first], heads = shape[first + 1], dim = shape[first + 2];
  const std::string layout = layout_of(c, tensor);
  int64_t& row_stride = place.stride[first];
  int64_t& head_stride = place.stride[first + 1];
  if (layout == "bhsd") {
    row_stride = dim;
    head_stride = rows * dim;
  } else if (layout == "sliced") {
    head_stride = dim + 3;
    row_stride = heads * head_stride + 5;
    if (first == 1) place.stride[0] = rows * row_stride + 7;
    place.lead = 2;
  } else if (layout == "apart") {  // rows on whole vectors, most heads not
    head_stride = dim + 4;
    row_stride = (heads * head_stride + 15) / 16 * 16;
    if (first == 1) place.stride[0] = rows * row_stride;
  } else if (layout == "qkv") {
    row_stride = 3 * heads * dim;
    if (first == 1) place.stride[0] = rows * row_stride;
    place.lead =
        (tensor == "v" || tensor == "dv" ? 2 : (tensor == "k" || tensor == "dk" ? 1 : 0)) * heads * dim;
  } else if (layout == "seqfirst" && first == 1) {
    place.stride[0] = heads * dim;
    row_stride = shape[0] * heads * dim;
  } else if (layout == "offset1") {
    place.lead = 1;
  } else if (layout == "expanded" && first == 1) {
    place.stride[0] = 0;
  } else if (layout == "expanded_heads") {
    head_stride = 0;
    row_stride = dim;
    if (first == 1) place.stride[0] = rows * dim;
  }
  return place;
}

}  // namespace

CaseTensor make_rows(const Case& c, const std::string& name, DType dtype, bool packed, int64_t batch,
                     int64_t rows, int64_t total, int64_t heads, int64_t dim) {
  std::vector<int64_t> shape{batch, rows, heads, dim};
  if (packed) shape = {total, heads, dim};
  const Placement place = place_rows(c, name, shape);
  return CaseTensor(dtype, place.shape, place.stride, place.lead);
}

CaseTensor make_stats(const Case& c, const std::string& name) {
  const Problem& p = c.problem;
  std::vector<int64_t> shape{p.batch, p.heads_q, p.seqlen_q};
  if (p.packed_q != 0) shape = {p.heads_q, p.total_q};
  std::vector<int64_t> stride = row_major(shape);
  if (layout_of(c, name) == "rows_first") {
    stride[stride.size() - 1] = p.heads_q;
    stride[stride.size() - 2] = 1;
  }
  return CaseTensor(DType::f32, shape, stride, 0);
}

CaseTensor make_plain(DType dtype, std::vector<int64_t> shape) {
  const std::vector<int64_t> stride = row_major(shape);
  return CaseTensor(dtype, std::move(shape), stride, 0);
}

CaseTensor make_scores(const Case& c, const std::string& name, const std::string& letters, DType dtype) {
  const Problem& p = c.problem;
  const int64_t sizes[4] = {p.batch, p.heads_q, p.seqlen_q, p.seqlen_kv};
  std::vector<int64_t> shape(4);
  for (size_t n = 0; n < 4; ++n) shape[n] = letters[n] == '1' ? 1 : sizes[n];
  std::vector<int64_t> stride = row_major(shape);
  if (layout_of(c, name) == "padded") {
    stride[2] = shape[3] + 5;
    stride[1] = stride[2] * shape[2];
    stride[0] = stride[1] * shape[1];
  }
  return CaseTensor(dtype, shape, stride, 0);
}

CaseTensor make_scales(const Case& c, const std::string& name, int64_t blocks, int64_t rows) {
  const Problem& p = c.problem;
  std::vector<int64_t> shape{blocks, p.heads_kv};
  if (p.scale_rows > 0) shape = {blocks, (rows + p.scale_rows - 1) / p.scale_rows, p.heads_kv};
  std::vector<int64_t> stride = row_major(shape);
  if (layout_of(c, name) == "padded") {
    for (int64_t& s : stride) s *= 3;
  }
  return CaseTensor(DType::f32, shape, stride, 0);
}

CaseTensor make_integers(DType dtype, const std::vector<int64_t>& values) {
  CaseTensor tensor = make_plain(dtype, {static_cast<int64_t>(values.size())});
  for (size_t n = 0; n < values.size(); ++n) {
    if (dtype == DType::i64) {
      static_cast<int64_t*>(tensor.data())[n] = values[n];
    } else {
      static_cast<int32_t*>(tensor.data())[n] = static_cast<int32_t>(values[n]);
    }
  }
  return tensor;
}

}  // namespace tilewise
