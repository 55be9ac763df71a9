#include "worker/commit_group.h"

#include <utility>

#include "base/strings.h"

namespace weightcast::worker {
namespace {

/// More than any group of ranks can have, and little enough that sums stay in range.
constexpr uint32_t kMaxGroupRanks = uint32_t{1} << 20;

Status Bad(std::string message) { return {Code::kInvalidArgument, "commit_group: " + std::move(message)}; }

Status Check(const WorkerOptions& options) {
  uint64_t ranks = 0;
  for (const auto& [model, size] : options.commit_group) {
    if (model.empty() || model.find_first_of("/+{}") != std::string::npos)
      return Bad(StrCat("'", model, "' cannot be the name of a model; leave out '/', '+', '{' and '}'"));
    if (size == 0) return Bad(StrCat("model '", model, "' has 0 ranks; it needs one at least"));
    ranks += size;
  }
  if (ranks > kMaxGroupRanks)
    return Bad(StrCat("its models have ", ranks, " ranks together; give at most ", kMaxGroupRanks));
  const auto own = options.commit_group.find(options.model);
  if (own == options.commit_group.end())
    return Bad(StrCat("model '", options.model, "' is not in it; list all models of the group"));
  if (own->second != options.world_size)
    return Bad(StrCat("it gives model '", options.model, "' ", own->second, " ranks, but world_size is ",
                      options.world_size, "; give both the same"));
  if (options.rank >= options.world_size)
    return Bad(StrCat("rank ", options.rank, " of model '", options.model, "' is outside 0..",
                      options.world_size - 1, "; ranks count from 0 in each model"));
  return Status::Ok();
}

}  // namespace

Result<CommitGroup> CommitGroup::Join(WorkerOptions& options) {
  CommitGroup group;
  if (options.commit_group.empty()) return group;
  WC_RETURN_IF_ERROR(Check(options));
  group.model_ = std::exchange(options.model, {});
  group.prefix_ = group.model_ + "/";
  options.world_size = 0;
  for (const auto& [model, size] : options.commit_group) {
    if (model < group.model_) options.rank += size;
    options.world_size += size;
    options.model += (options.model.empty() ? "" : "+") + model;
  }
  return group;
}

std::string CommitGroup::RanksText(const WorkerOptions& options) {
  std::string text;
  uint32_t first = 0;
  for (const auto& [model, size] : options.commit_group) {
    text += text.empty() ? StrCat("commit group ", options.model, ": ", model, " has ranks ")
                         : StrCat(", ", model, " ");
    text += StrCat(first, "..", first + size - 1);
    first += size;
  }
  return text;
}

void CommitGroup::Qualify(std::string& name) const {
  if (!name.empty()) name.insert(0, prefix_);
}

void CommitGroup::Qualify(std::vector<std::string>& names) const {
  for (std::string& name : names) Qualify(name);
}

void CommitGroup::Qualify(Registration& registration) const {
  for (Shard& shard : registration.shards) Qualify(shard.tensor.name);
}

void CommitGroup::Qualify(NameRules& rules) const {
  const auto both = [this](auto& rule) {
    Qualify(rule.from);
    Qualify(rule.to);
  };
  for (Rule& rule : rules.rules) {
    if (auto* not_sent = std::get_if<NotSent>(&rule)) Qualify(not_sent->name);
    if (auto* rename = std::get_if<Rename>(&rule)) both(*rename);
    if (auto* fuse = std::get_if<Fuse>(&rule)) both(*fuse);
    if (auto* split = std::get_if<Split>(&rule)) both(*split);
    if (auto* tie = std::get_if<Tie>(&rule)) both(*tie);
    if (auto* quantise = std::get_if<Quantise>(&rule)) {
      both(*quantise);
      Qualify(quantise->scales);
    }
  }
}

std::vector<TensorInfo> CommitGroup::OwnOf(std::vector<TensorInfo> tensors) const {
  if (prefix_.empty()) return tensors;
  std::erase_if(tensors, [this](const TensorInfo& tensor) { return !tensor.name.starts_with(prefix_); });
  for (TensorInfo& tensor : tensors) tensor.name = OwnName(tensor.name);
  return tensors;
}

std::string CommitGroup::OwnName(const std::string& name) const { return name.substr(prefix_.size()); }

}  // namespace weightcast::worker
