// The dropout mask: keep(seed, offset, batch, head, row, key), a pure function with 16 bits a key, the same
// on every backend. One 32-bit hash serves the two keys 2n and 2n+1: neighbours in a row of S on every layout
// that we use.
//
// Cost a hash: 3 multiplications (one of them uniform where lanes are queries), 3 shifts, 4 exclusive ors and
// an addition, so about 5 integer operations a score; the state of a row is made once a row
// (docs/decisions/dropout.md has the alternatives and their costs).
#ifndef TILEWISE_CORE_DROPOUT_H_
#define TILEWISE_CORE_DROPOUT_H_

#include <cstdint>

#include "core/hd.h"
#include "core/params.h"

namespace tilewise {

// p in 65536ths, rounded: what is applied, so that the scale 1/(1-p) is exact for it.
TILEWISE_HD inline uint32_t dropout_threshold_of(float p) {
  return static_cast<uint32_t>(p * 65536.0f + 0.5f);
}

// 1/(1-p); 0 where everything is dropped.
TILEWISE_HD inline float dropout_scale_of(uint32_t threshold) {
  return threshold >= 65536u ? 0.0f : 65536.0f / static_cast<float>(65536u - threshold);
}

struct DropoutRow {
  uint32_t a = 0, b = 0;
};

// Finaliser of splitmix64 (Steele, Lea, Flood 2014).
TILEWISE_HD inline uint64_t mix64(uint64_t x) {
  x ^= x >> 30;
  x *= 0xbf58476d1ce4e5b9ull;
  x ^= x >> 27;
  x *= 0x94d049bb133111ebull;
  return x ^ (x >> 31);
}

TILEWISE_HD inline DropoutRow dropout_row(uint64_t seed, uint64_t offset, int64_t batch, int64_t head,
                                          int64_t row) {
  uint64_t x = mix64(seed + 0x9e3779b97f4a7c15ull);
  x = mix64(x ^ (offset + 0x9e3779b97f4a7c15ull));
  x = mix64(x ^ (static_cast<uint64_t>(batch) * 0xd1342543de82ef95ull));
  x = mix64(x ^ (static_cast<uint64_t>(head) * 0xaf251af3b0f025b5ull));
  x = mix64(x ^ (static_cast<uint64_t>(row) * 0x9e3779b97f4a7c15ull));
  return {static_cast<uint32_t>(x), static_cast<uint32_t>(x >> 32)};
}

// Of a call: seed and offset by value, or where they lie on the kernel's device.
TILEWISE_HD inline DropoutRow dropout_row_of(const ForwardParams& p, int64_t batch, int64_t head,
                                             int64_t row) {
  if (!p.dropout_state) return dropout_row(p.dropout_seed, p.dropout_offset, batch, head, row);
  return dropout_row(p.dropout_state[0], p.dropout_state[p.dropout_state_stride], batch, head, row);
}

constexpr uint32_t kDropoutKeyFactor = 0x9e3779b1u, kDropoutFactor1 = 0x21f0aaadu,
                   kDropoutFactor2 = 0x735a2d97u;

// Hash of the key pair `key / 2`: its low half belongs to the even key, its high half to the odd one.
TILEWISE_HD inline uint32_t dropout_pair(DropoutRow row, uint32_t key_pair) {
  uint32_t x = key_pair * kDropoutKeyFactor + row.a;
  x ^= x >> 16;
  x *= kDropoutFactor1;
  x ^= (x >> 15) ^ row.b;
  x *= kDropoutFactor2;
  x ^= x >> 15;
  return x;
}

TILEWISE_HD inline bool dropout_keep(DropoutRow row, int64_t key, uint32_t threshold) {
  const uint32_t pair = dropout_pair(row, static_cast<uint32_t>(key >> 1));
  const uint32_t bits = (key & 1) ? pair >> 16 : pair & 0xffffu;
  return bits >= threshold;
}

}  // namespace tilewise
#endif  // TILEWISE_CORE_DROPOUT_H_
