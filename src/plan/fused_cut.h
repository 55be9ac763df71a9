#pragma once

#include <map>
#include <optional>
#include <string>

#include "plan/layout.h"
#include "plan/route.h"
#include "weightcast/status.h"

// A rank of a tensor-parallel engine holds [q_r; k_r; v_r] of a fused tensor: a part of each, which no single
// box of the whole says. A box that is a part of the fused dimension would be taken for rows of the whole,
// and every byte would arrive in the wrong place. Until a rank can register several boxes of a tensor,
// whoever holds a part of that dimension registers views under the names of the parts; all else is refused
// here.
namespace weightcast::plan {

struct FusedCut {
  int rank = 0;
  Box box;
};

/// The first rank that holds a part of `tensor` along `dim`, if there is one. Boxes that end where a part of
/// the fusion ends count too: of q, k, v over three ranks the first box is all of q, but the engine holds
/// a third of each.
std::optional<FusedCut> FindCut(const Layout& layout, int tensor, int dim);

/// The fused tensors of a destination, and the dimension along which each is fused.
using FusedTensors = std::map<std::string, int>;
FusedTensors FusedTensorsOf(const RoutingTable& table, const Layout& inference);

/// For plans from engines to engines, which have no rules. Errors (kInvalidArgument): a rank of the
/// destinations holds a part of a fused tensor; where it is not known which are fused (nullptr), a rank wants
/// a box that no source holds as it is.
Status CheckCutsAmongEngines(const FusedTensors* fused, const Layout& sources, const Layout& destinations);

}  // namespace weightcast::plan
