#include "core/dropout.h"

#include "tilewise/c.h"

int tilewise_dropout_keep(uint64_t seed, uint64_t offset, int64_t batch, int64_t head, int64_t row,
                          int64_t key, float dropout_p) {
  using namespace tilewise;
  if (!(dropout_p > 0.0f)) return 1;
  const uint32_t threshold = dropout_p >= 1.0f ? 65536u : dropout_threshold_of(dropout_p);
  return dropout_keep(dropout_row(seed, offset, batch, head, row), key, threshold);
}
