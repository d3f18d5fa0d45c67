// What a call looks like: visible pairs counted, the tile walk of a plan, the mask drawn small.
#ifndef TILEWISE_CLI_PICTURE_H_
#define TILEWISE_CLI_PICTURE_H_

#include <string>
#include <vector>

#include "cli/json.h"
#include "core/params.h"

namespace tilewise::cli {

// (query, key) pairs that band, lengths, ranges, segments and the dense mask leave, over all heads. The
// square causal case counts as half of all pairs, as everywhere in the field.
double visible_pairs(const ForwardParams& p);

// Tiles of one sequence, in the order in which a kernel visits them: {tile_m, tile_n, rows, keys, row_tiles,
// key_tiles, cut, classes: ["fp...", ...]} with f = full, p = partial, . = skipped.
// `heads_in_lanes` heads of a query stand side by side in a tile of tile_m lanes.
Json tile_walk(const ForwardParams& p, int64_t sequence, int64_t tile_m, int64_t tile_n,
               int64_t heads_in_lanes = 1);

// {width, height, rows, keys, shares: base64 of width * height bytes}: 255 = every pair of the cell is
// visible.
Json mask_picture(const ForwardParams& p, int64_t sequence, int64_t head);

// The sequence with the most queries.
int64_t longest_sequence(const ForwardParams& p);

std::string base64(const std::vector<uint8_t>& bytes);

}  // namespace tilewise::cli
#endif  // TILEWISE_CLI_PICTURE_H_
