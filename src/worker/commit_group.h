#pragma once

#include <string>
#include <vector>

#include "weightcast/registration.h"
#include "weightcast/worker.h"

// Several models that are updated together (WorkerOptions::commit_group) are one model for the controller:
// its ranks are those of the models, one model after the other in the order of their names, and its tensors
// are called MODEL/NAME. So all that holds of the ranks of one model holds of them, and the protocol knows
// nothing of it.
namespace weightcast::worker {

class CommitGroup {
 public:
  /// Turns the options of one model into those of the whole group; without a group they stay as they are.
  /// kInvalidArgument: a name or a number of ranks that cannot be, or a model that is not in its group.
  static Result<CommitGroup> Join(WorkerOptions& options);

  /// "commit group draft+policy: draft has ranks 0..0, policy 1..4", of joined options; empty without one.
  static std::string RanksText(const WorkerOptions& options);

  /// Whose tensors these are; empty without a group.
  [[nodiscard]] const std::string& model() const { return model_; }

  // From the names of tensors in the model to those in the group. An empty name stays one, to be refused.
  void Qualify(std::string& name) const;
  void Qualify(std::vector<std::string>& names) const;
  void Qualify(Registration& registration) const;
  void Qualify(NameRules& rules) const;

  /// The tensors of this model, under its names.
  [[nodiscard]] std::vector<TensorInfo> OwnOf(std::vector<TensorInfo> tensors) const;
  /// A tensor's name in the model.
  [[nodiscard]] std::string OwnName(const std::string& name) const;

 private:
  std::string model_;
  std::string prefix_;
};

}  // namespace weightcast::worker
