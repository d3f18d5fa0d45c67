// The CPU kernels of one instruction set: a kernels_<set>.cpp chooses HWY_TARGET and includes this once.
//
// Highway would compile a file once for every instruction set; here each has a translation unit of its own,
// so that they build side by side and their options differ. The instruction set is switched on by Highway's
// pragma for what stands between BEFORE and AFTER alone, never by -m flags: inline code of the standard
// library that the linker may keep from this unit runs on any processor.
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <type_traits>

#include "core/arena.h"
#include "core/cache.h"
#include "core/dropout.h"
#include "core/element.h"
#include "core/half.h"
#include "core/kernel.h"
#include "core/mask.h"
#include "core/softmax.h"
#include "cpu/backward.h"
#include "cpu/features.h"
#include "cpu/forward.h"
#include "cpu/lanes.h"
#include "cpu/row_forward.h"
#include "cpu/row_mask.h"
#include "cpu/small.h"
#include "cpu/standard.h"
#include "cpu/stretches.h"
#include "hwy/highway.h"
//
#include "hwy/contrib/math/math-inl.h"

HWY_BEFORE_NAMESPACE();
#include "cpu/storage-inl.h"
//
#include "cpu/tile_product-inl.h"
//
#include "cpu/exp-inl.h"
#include "cpu/rows-inl.h"
#include "cpu/score-inl.h"
#include "cpu/transpose-inl.h"
//
#include "cpu/softmax-inl.h"
//
#include "cpu/query_block-inl.h"
//
#include "cpu/fp32_products-inl.h"
//
#include "cpu/forward-inl.h"
#include "cpu/row_product-inl.h"
#include "cpu/row_score-inl.h"
#include "cpu/row_softmax-inl.h"
#include "cpu/row_task-inl.h"
#include "cpu/row_tile-inl.h"
//
#include "cpu/row_floats-inl.h"
//
#include "cpu/row_forward-inl.h"
#include "cpu/standard-inl.h"
//
#include "cpu/small_lanes-inl.h"
#include "cpu/small_products-inl.h"
//
#include "cpu/small_rows-inl.h"
//
#include "cpu/small_backward-inl.h"
#include "cpu/small_forward-inl.h"
//
#include "cpu/backward_tile-inl.h"
//
#include "cpu/backward-inl.h"
//
#include "cpu/backward_bias-inl.h"
HWY_AFTER_NAMESPACE();
