#pragma once

#include <optional>
#include <span>

#include "plan/layout.h"

namespace weightcast::plan {

/// Refuses a pattern that a tensor of `dims` dimensions cannot have, that reaches beyond `ranks`
/// ranks, or whose strides give two places of the mesh one rank (strides must nest: sorted, each
/// is at least the next smaller one times its size).
Status CheckPattern(const Pattern& pattern, int dims, int ranks);

/// Calls visit for the ranks of a (checked) pattern that hold anything of a tensor of this shape,
/// ascending, with `shift` added to each.
void ExpandPattern(const Pattern& pattern, int shift, const Shape& shape, const BoxVisitor& visit);

/// The box of one rank; false if it is not in the mesh or its box is empty.
bool FindInPattern(const Pattern& pattern, int rank, const Shape& shape, Box& box);

/// The box at one place of a (checked) mesh, a coordinate for each of its dimensions. False if it is empty.
bool FindAtPlace(std::span<const MeshDim> mesh, std::span<const int> place, const Shape& shape, Box& box);

/// The pattern that gives exactly these boxes (by ascending rank, none empty), if there is one. There is none
/// where a rank holds several.
/// `coords` holds per box its offsets, then its sizes.
std::optional<Pattern> RecognisePattern(const Shape& shape, std::span<const int> ranks,
                                        std::span<const int64_t> coords);

}  // namespace weightcast::plan
