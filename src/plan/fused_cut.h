#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "plan/layout.h"
#include "plan/route.h"
#include "weightcast/status.h"

// A rank of a tensor-parallel engine holds [q_r; k_r; v_r] of a fused tensor: a part of each, which no single
// box of the whole says. One box that is a part of the fused dimension would be taken for rows of the whole,
// and every byte would arrive in the wrong place: it is refused here. Such a rank registers a box for each
// part, or views under the names of the parts.
namespace weightcast::plan {

struct FusedCut {
  int rank = 0;
  Box box;
};

/// How a tensor is fused: along which dimension, and where each part begins in it (ascending).
struct FusedParts {
  int dim = 0;
  std::vector<int64_t> starts;
  friend bool operator==(const FusedParts&, const FusedParts&) = default;
};

/// The first rank that holds only a part of `tensor` along the fused dimension, and does not say which rows
/// of which part it is: that takes boxes at several places, each inside one part. One box that ends where a
/// part ends says nothing: of q, k, v over three ranks the first is all of q, but the engine holds a third
/// of each. Boxes that touch inside one part are one place.
std::optional<FusedCut> FindCut(const Layout& layout, int tensor, const FusedParts& fusion);

/// The fused tensors of a destination.
using FusedTensors = std::map<std::string, FusedParts>;
FusedTensors FusedTensorsOf(const RoutingTable& table, const Layout& inference);

/// For plans from engines to engines, which have no rules. Errors (kInvalidArgument): a rank of the
/// destinations cuts a fused tensor (FindCut); where it is not known which are fused (nullptr), a rank wants
/// a box that no source holds as it is.
Status CheckCutsAmongEngines(const FusedTensors* fused, const Layout& sources, const Layout& destinations);

}  // namespace weightcast::plan
