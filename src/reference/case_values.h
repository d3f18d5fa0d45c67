// The numbers of a case's tensors, by the patterns that tests/cases/README.md names.
#ifndef TILEWISE_REFERENCE_CASE_VALUES_H_
#define TILEWISE_REFERENCE_CASE_VALUES_H_

#include <cstdint>
#include <string>
#include <vector>

#include "reference/case.h"

namespace tilewise {

// Small generator of our own: the same numbers with every standard library.
class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}
  uint64_t bits();
  double uniform();                            // [0, 1)
  int64_t integer(int64_t low, int64_t high);  // both inclusive
  double normal();
  bool chance(double share) { return uniform() < share; }

 private:
  uint64_t state_;
};

// One element of q, k, v or dout; `row` counts within its sequence.
double input_value(const Case& c, const std::string& tensor, int64_t row, int64_t head, int64_t dim,
                   Random& random);

// What the numbers of k and v are multiplied by before they are stored as `dtype`: for i8 most of its range
// is used.
inline double stored_unit(DType dtype) { return dtype == DType::i8 ? 30.0 : 1.0; }

// One element of a mask (1 = may attend) or bias.
bool mask_value(const std::string& pattern, int64_t row, int64_t key, int64_t flat, Random& random);
double bias_value(const std::string& pattern, DType dtype, int64_t row, int64_t key, int64_t flat,
                  Random& random);

int32_t segment_id(const std::string& pattern, int64_t row, int64_t rows, Random& random);
// [first, last) of a row, possibly empty or beyond the keys.
std::pair<int32_t, int32_t> kv_range(const std::string& pattern, int64_t row, int64_t keys, Random& random);
float sink_value(const std::string& pattern, int64_t head, Random& random);

// Empty, or the tensor whose pattern is unknown and what it accepts.
std::string unknown_pattern(const Case& c);

}  // namespace tilewise
#endif  // TILEWISE_REFERENCE_CASE_VALUES_H_
