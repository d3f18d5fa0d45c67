// Which rows exist and which keys a query sees: the oracle's own reading of the rules, one element at a time.
// Written apart from core/mask.h on purpose, so that kernel and oracle cannot share a wrong mask.
#ifndef TILEWISE_REFERENCE_VISIBLE_H_
#define TILEWISE_REFERENCE_VISIBLE_H_

#include <cstdint>
#include <vector>

#include "core/params.h"

namespace tilewise {

// Row `row` of sequence `sequence`.
struct RowId {
  int64_t sequence = 0, row = 0;
  friend bool operator==(const RowId&, const RowId&) = default;
};

// Lengths of one sequence, clamped to what the tensors hold.
struct SequenceShape {
  int64_t q_begin = 0, kv_begin = 0;  // first row in a packed tensor, else 0
  int64_t q_rows = 0, kv_rows = 0;    // rows that the call owns
  int64_t q_length = 0;               // rows from here on are padding
  int64_t key_begin = 0, key_end = 0;
  int64_t q_offset = 0;
};

SequenceShape shape_of_sequence(const ForwardParams& p, int64_t b);

// False for a key of a page that does not exist: a window may have passed it by, and nobody may read it.
bool has_memory(const ForwardParams& p, int64_t b, int64_t j);
// Element at which key j of one head begins in t (k or v): in the sequence's rows, its slot or its page.
int64_t offset_of_key(const ForwardParams& p, const RowTensor& t, const SequenceShape& s, int64_t b,
                      int64_t j, int64_t kv_head);

// Where in `scales`, those of k or of v, it stands what the stored elements of key j's row of one head are
// multiplied by.
int64_t offset_of_scale(const ForwardParams& p, const CacheScales& scales, int64_t b, int64_t j,
                        int64_t kv_head);

// By position, lengths, kv_ranges, segment ids, mask and -inf bias. A padding row sees nothing.
bool sees(const ForwardParams& p, const SequenceShape& s, int64_t b, int64_t h, int64_t i, int64_t j);

// Every row of o (of k) that the call owns, sequence by sequence.
std::vector<RowId> all_query_rows(const ForwardParams& p);
std::vector<RowId> all_key_rows(const ForwardParams& p);

}  // namespace tilewise
#endif  // TILEWISE_REFERENCE_VISIBLE_H_
