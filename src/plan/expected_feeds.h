#pragma once

#include <map>
#include <set>
#include <string>
#include <vector>

#include "plan/planner.h"

namespace weightcast::plan {

/// What the name rules mean, worked out a second time for the verifier, and from the other end:
/// each tensor of the inference side gathers the sources that claim to go to it.
class ExpectedFeeds {
 public:
  /// The request must outlive this.
  explicit ExpectedFeeds(const PlanRequest& request);

  /// Whether exactly this link belongs to a plan.
  [[nodiscard]] bool Allows(const Link& link) const;
  /// Whether the inference side does not want this tensor.
  [[nodiscard]] bool IsNotSent(int dst_tensor) const;
  /// The name of a tensor, on either side, that the rules leave without a partner; empty if there is none.
  [[nodiscard]] std::string TensorWithoutPartner() const;

 private:
  /// One source's claim to be a destination, or the part of it with this number.
  struct Claim {
    int src_tensor;
    const Rule* rule;  ///< nullptr: the same name.
    size_t part;
    std::vector<std::string> captures;
  };

  /// Of the tensor of the trainers with that name, if a rule quantises it.
  void NoteScales(const std::string& name);
  void AddClaims(int src_tensor);
  void NoteHomeless(const std::string& name, const std::string& target);
  [[nodiscard]] bool Declares(const Rule& rule, const std::string& name, Side side) const;
  /// Along the dimension of the claim's rule: where it begins in the source and in the destination.
  [[nodiscard]] Link LinkOf(const Claim& claim, int dst_tensor) const;

  const PlanRequest& request_;
  std::map<std::string, std::vector<Claim>> claims_;  ///< By name of the destination.
  std::set<std::string> scales_;  ///< Tensors of the trainers that are scales: no rule is for them.
  std::vector<bool> not_sent_;
  std::string homeless_;
};

}  // namespace weightcast::plan
