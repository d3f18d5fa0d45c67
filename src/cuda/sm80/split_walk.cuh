// A block's piece of the line, unit by unit (split_schedule.cuh). What is found out about a unit is left in
// shared memory, for the copies and for the products, which follow.
#ifndef TILEWISE_CUDA_SM80_SPLIT_WALK_H_
#define TILEWISE_CUDA_SM80_SPLIT_WALK_H_

#include "cuda/sm80/split_schedule.cuh"

namespace tilewise::sm80 {

template <typename C, typename Shared>
class Walk {
 public:
  __device__ __forceinline__ Walk(const SplitArgs& args, const Shared& shared) {
    const int total = shared.found.total, share = share_of<C>(args, total);
    position_ = share * place_on_line<C>(args);
    left_ = min(share, total - position_);
    entry_ = shared.found.entry;
    skip_ = shared.found.at;
  }

  // What the block takes of its next unit; count 0: there is no more.
  __device__ __forceinline__ Piece next(const SplitArgs& args, Shared& shared) {
    constexpr int kPieces = Shared::kPieces;
    const int heads = line_heads<C>(args);
    Piece piece;
    piece.span = shared.pieces[number_ == 0 ? kPieces - 1 : number_ - 1].span;  // of the piece before
    Span& span = piece.span;
    int at = 0;
#pragma unroll 1
    while (left_ > 0) {
      if (head_ == heads) {
        head_ = 0;
        ++entry_;
        fresh_ = true;
      }
      if (fresh_) {
        fresh_ = false;
        if (args.uniform) {
          span = args.span;
          span.band.batch = entry_;
        } else {
          span = span_of<C>(args, entry_, args.chunks);
        }
        if (span.groups == 0) {
          head_ = heads;
          continue;
        }
        head_ = args.uniform ? args.span_groups.divide(skip_) : skip_ / span.groups;
        at = skip_ - head_ * span.groups;
        skip_ = 0;
      }
      if (args.chunks == 0 || at == 0) break;
      left_ -= span.groups - at;  // where cuts are fixed the block before walks all of it
      position_ += span.groups - at;
      at = 0;
      ++head_;
    }
    const bool ended = left_ <= 0;
    piece.head = head_ + first_head<C>(args);
    piece.at = at;
    piece.count = ended ? 0 : args.chunks ? span.groups : min(left_, span.groups - at);
    piece.start = position_ - at;
    shared.pieces[number_] = piece;
    number_ = number_ + 1 == kPieces ? 0 : number_ + 1;
    if (ended) return piece;
    left_ -= piece.count;
    position_ += piece.count;
    ++head_;
    return piece;
  }

 private:
  int left_, position_, entry_, skip_;  // of the line from here on; `skip_` groups of the first entry
  int head_ = 0, number_ = 0;
  bool fresh_ = true;
};

}  // namespace tilewise::sm80
#endif  // TILEWISE_CUDA_SM80_SPLIT_WALK_H_
