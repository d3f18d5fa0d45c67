// Problem: what is asked, as upper bounds; nothing about hardware. Mask options are part of it.
#ifndef TILEWISE_PROBLEM_H_
#define TILEWISE_PROBLEM_H_

#include <string>

#include "tilewise/tensor.h"

namespace tilewise {

enum class Direction : int32_t { forward = TILEWISE_FORWARD, backward = TILEWISE_BACKWARD };
enum class Position : int32_t {
  bottom_right = TILEWISE_BOTTOM_RIGHT,
  top_left = TILEWISE_TOP_LEFT,
  given = TILEWISE_GIVEN,
};

// Fields and their meaning: tilewise_problem in c_problem.h. Default: forward, f32, no mask, scale
// 1/sqrt(head_dim).
struct Problem : tilewise_problem {
  Problem() { tilewise_problem_init(this); }
  Problem(const tilewise_problem& other) : tilewise_problem(other) {}

  Problem& with_causal(Position where = Position::bottom_right) {
    causal = 1;
    position = static_cast<int32_t>(where);
    return *this;
  }
  // Keys p - left .. p + right, both inclusive; -1 = unbounded.
  Problem& with_window(int64_t left, int64_t right) {
    window_left = left;
    window_right = right;
    return *this;
  }
  bool has(tilewise_feature feature) const { return (features & static_cast<uint32_t>(feature)) != 0; }
  std::string to_string() const {
    std::string text(tilewise_problem_print(this, nullptr, 0), '\0');
    tilewise_problem_print(this, text.data(), text.size() + 1);
    return text;
  }
};

}  // namespace tilewise
#endif  // TILEWISE_PROBLEM_H_
