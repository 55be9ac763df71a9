#include "plan/links.h"

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <tuple>
#include <utility>

#include "base/advice.h"
#include "base/strings.h"
#include "plan/fused_cut.h"
#include "plan/quantise.h"

namespace weightcast::plan {
namespace {

constexpr size_t kNamesShown = 10;

std::string Count(size_t count, std::string_view noun) {
  return StrCat(count, " ", noun, count == 1 ? "" : "s");
}

bool IsFloat(DType dtype) { return dtype == DType::kF32 || dtype == DType::kF16 || dtype == DType::kBF16; }

/// Whether the shapes agree in every dimension but `dim` (-1: in every one).
bool AgreeBut(const Shape& a, const Shape& b, int dim) {
  if (a.size() != b.size()) return false;
  for (size_t d = 0; d < a.size(); ++d) {
    if (static_cast<int>(d) != dim && a[d] != b[d]) return false;
  }
  return true;
}

/// Walks over the trainers' tensors once and notes which destination each feeds.
class Resolver {
 public:
  Resolver(const NameRules& rules, const Layout& trainers, const Layout& inference,
           std::span<const std::string> unwanted)
      : names_(rules),
        rules_(rules.rules),
        trainers_(trainers),
        inference_(inference),
        unwanted_(unwanted),
        fed_by_(inference.tensors(), -1) {}

  Result<std::vector<Link>> Run();

 private:
  using FuseKey = std::pair<size_t, std::string>;  ///< Rule and name of the destination.

  void MarkNotSent();
  Status Follow(int source);
  /// Applies a rule to a source; false if it does not match its name.
  Result<bool> Apply(size_t rule, int source);
  Result<bool> ApplyFuse(const Fuse& fuse, size_t rule, int source);
  Status ApplySplit(const Split& split, int source, const std::vector<std::string>& captures);
  Status FinishFuse(size_t rule, const std::string& name, const std::vector<int>& parts);
  Status CheckFuse(const Fuse& fuse, int destination, const std::vector<int>& parts) const;
  Status CheckFusedWhole(size_t rule, int destination, const std::vector<int>& parts) const;
  Status FindQuantised();
  Status FollowQuantised(int source, const Quantised& quantised);
  Status CheckDType(int source, int destination, const Quantised& quantised, DType dtype) const;
  /// The whole of a source is the whole of a destination.
  Status LinkWhole(int source, const std::string& name);
  /// Notes it. Errors: other shapes; something else fills the destination.
  Status Claim(int source, int destination);
  Status AddLink(Link link);
  Status CheckPartners() const;

  [[nodiscard]] const TensorInfo& source(int index) const { return trainers_.tensor(index); }
  [[nodiscard]] const TensorInfo& destination(int index) const { return inference_.tensor(index); }
  /// The destination of that name; notes a source without a partner if there is none.
  std::optional<int> Partner(int source, const std::string& name);

  const NameRules& names_;
  const std::vector<Rule>& rules_;
  const Layout& trainers_;
  const Layout& inference_;
  const std::span<const std::string> unwanted_;
  std::vector<Link> links_;
  std::vector<int> fed_by_;  ///< Per destination the first source that feeds it.
  std::vector<bool> not_wanted_;
  std::map<FuseKey, std::vector<int>> fuses_;
  std::map<int, Quantised> quantised_;  ///< By source.
  std::set<std::string> scales_;        ///< Names of the sources that are scales.
  std::vector<std::string> alone_;      ///< Sources without a partner.
};

std::optional<int> Resolver::Partner(int source, const std::string& name) {
  const auto found = inference_.Find(name);
  const std::string& own = this->source(source).name;
  if (!found && !MatchesAny(unwanted_, own) && !MatchesAny(unwanted_, name))
    alone_.push_back(own == name ? StrCat("'", own, "'") : StrCat("'", own, "' (as '", name, "')"));
  return found;
}

void Resolver::MarkNotSent() {
  not_wanted_.resize(static_cast<size_t>(inference_.tensors()));
  for (int t = 0; t < inference_.tensors(); ++t) {
    const auto declares = [&](const Rule& rule) {
      const auto* declared = std::get_if<NotSent>(&rule);
      return declared != nullptr && declared->side != Side::kTrainers &&
             MatchName(declared->name, destination(t).name).has_value();
    };
    not_wanted_[static_cast<size_t>(t)] =
        inference_.not_sent(t) || std::any_of(rules_.begin(), rules_.end(), declares);
  }
}

Status Resolver::AddLink(Link link) {
  if (not_wanted_[static_cast<size_t>(link.dst_tensor)]) return Status::Ok();
  const TensorInfo& from = source(link.src_tensor);
  const TensorInfo& to = destination(link.dst_tensor);
  WC_ASSIGN_OR_RETURN(const Transform transform, TransformBetween(from, to));
  if (transform == Transform::kQuantise && link.transform != transform)
    return InvalidArgument("tensor '", from.name, "' is ", NameOf(from.dtype), " on the trainers' side but '",
                           to.name, "' is ", NameOf(to.dtype),
                           " on the inference side; give the trainers a rule 'quantise' for it");
  link.transform = transform;
  links_.push_back(link);
  return Status::Ok();
}

Status Resolver::Claim(int source, int destination) {
  const TensorInfo& from = this->source(source);
  const TensorInfo& to = this->destination(destination);
  if (from.shape != to.shape) {
    return InvalidArgument("tensor '", from.name, "' has shape ", ToString(from.shape),
                           " on the trainers' side but '", to.name, "' has ", ToString(to.shape),
                           " on the inference side; register equal shapes, or correct the trainers' rules");
  }
  int& owner = fed_by_[static_cast<size_t>(destination)];
  if (owner >= 0)
    return InvalidArgument("tensor '", to.name, "' would be filled twice: from '", this->source(owner).name,
                           "' and from '", from.name, "' of the trainers; correct their rules");
  owner = source;
  return Status::Ok();
}

Status Resolver::FindQuantised() {
  const auto quantises = [](const Rule& rule) { return std::holds_alternative<Quantise>(rule); };
  if (std::none_of(rules_.begin(), rules_.end(), quantises)) return Status::Ok();
  std::vector<bool> used(rules_.size());
  for (int t = 0; t < trainers_.tensors(); ++t) {
    if (trainers_.not_sent(t)) continue;
    WC_ASSIGN_OR_RETURN(auto found, QuantisedBy(names_, source(t)));
    if (!found) continue;
    used[found->rule] = true;
    if (!scales_.insert(found->scales.name).second)
      return InvalidArgument("tensor '", found->scales.name, "' would hold the scales of '", source(t).name,
                             "' and of another tensor; give each its own in the trainers' rules");
    quantised_.emplace(t, std::move(*found));
  }
  for (size_t rule = 0; rule < rules_.size(); ++rule) {
    const auto* quantise = std::get_if<Quantise>(&rules_[rule]);
    if (quantise != nullptr && !used[rule])
      return InvalidArgument("rule ", rule + 1, " quantises '", quantise->from,
                             "', but no tensor of the trainers has that name, or an earlier rule takes it; "
                             "correct or remove the rule");
  }
  return Status::Ok();
}

Status Resolver::CheckDType(int source, int destination, const Quantised& quantised, DType dtype) const {
  const TensorInfo& to = this->destination(destination);
  if (to.dtype == dtype) return Status::Ok();
  return InvalidArgument("rule ", quantised.rule + 1, " quantises tensor '", this->source(source).name,
                         "'; '", to.name, "' on the inference side must be ", NameOf(dtype), " for it, not ",
                         NameOf(to.dtype), "; register it so, or remove the rule");
}

/// The scales go by themselves.
Status Resolver::FollowQuantised(int source, const Quantised& quantised) {
  const TensorInfo& from = this->source(source);
  const auto scales = trainers_.Find(quantised.scales.name);
  if (!scales || this->source(*scales) != quantised.scales)
    return InvalidArgument("rule ", quantised.rule + 1, " quantises tensor '", from.name,
                           "'; the trainers' layout must have '", quantised.scales.name, "' F32 ",
                           ToString(quantised.scales.shape), " for its scales");
  // Also where nobody wants the values.
  const auto landing = inference_.Find(quantised.scales.name);
  if (landing && !not_wanted_[static_cast<size_t>(*landing)])
    WC_RETURN_IF_ERROR(CheckDType(source, *landing, quantised, DType::kF32));
  const auto partner = Partner(source, quantised.values);
  if (!partner || not_wanted_[static_cast<size_t>(*partner)]) return Status::Ok();
  WC_RETURN_IF_ERROR(Claim(source, *partner));
  WC_RETURN_IF_ERROR(CheckDType(source, *partner, quantised, DType::kF8E4M3));
  WC_RETURN_IF_ERROR(CheckBlocks(trainers_, source, "trainer"));
  WC_RETURN_IF_ERROR(CheckBlocks(inference_, *partner, "inference rank"));
  for (int64_t at = 0; at < from.shape[1]; at += kMaxQuantisedColumns) {
    WC_RETURN_IF_ERROR(AddLink({.src_tensor = source,
                                .dst_tensor = *partner,
                                .dim = 1,
                                .src_start = at,
                                .dst_start = at,
                                .extent = std::min(kMaxQuantisedColumns, from.shape[1] - at),
                                .transform = Transform::kQuantise}));
  }
  return Status::Ok();
}

Status Resolver::LinkWhole(int source, const std::string& name) {
  const auto partner = Partner(source, name);
  if (!partner || not_wanted_[static_cast<size_t>(*partner)]) return Status::Ok();
  WC_RETURN_IF_ERROR(Claim(source, *partner));
  const Shape& shape = this->source(source).shape;
  return AddLink({.src_tensor = source, .dst_tensor = *partner, .extent = shape.empty() ? 1 : shape[0]});
}

Status Resolver::ApplySplit(const Split& split, int source, const std::vector<std::string>& captures) {
  const TensorInfo& from = this->source(source);
  int64_t at = 0;
  bool complete = true;
  std::vector<Link> cuts;
  for (const std::string& pattern : split.to) {
    const auto partner = Partner(source, ExpandName(pattern, captures));
    complete = complete && partner.has_value();
    if (!complete) continue;
    const TensorInfo& to = destination(*partner);
    if (split.dim >= static_cast<int>(to.shape.size()) || !AgreeBut(from.shape, to.shape, split.dim)) {
      return InvalidArgument("the split of '", from.name, "' ", ToString(from.shape), " along dimension ",
                             split.dim, " cannot make '", to.name, "' ", ToString(to.shape),
                             "; correct the rule or the shapes");
    }
    if (fed_by_[static_cast<size_t>(*partner)] >= 0)
      return InvalidArgument("tensor '", to.name, "' would be filled twice, once by the split of '",
                             from.name, "'; correct the trainers' rules");
    fed_by_[static_cast<size_t>(*partner)] = source;
    const int64_t extent = to.shape[static_cast<size_t>(split.dim)];
    cuts.push_back(
        {.src_tensor = source, .dst_tensor = *partner, .dim = split.dim, .src_start = at, .extent = extent});
    at += extent;
  }
  if (!complete) return Status::Ok();
  if (at != from.shape[static_cast<size_t>(split.dim)]) {
    return InvalidArgument("the split of '", from.name, "' ", ToString(from.shape), " along dimension ",
                           split.dim, " makes tensors whose sizes there sum up to ", at,
                           ", not its own; correct the rule or the shapes");
  }
  for (const Link& cut : cuts) WC_RETURN_IF_ERROR(AddLink(cut));
  return Status::Ok();
}

Result<bool> Resolver::ApplyFuse(const Fuse& fuse, size_t rule, int source) {
  for (size_t part = 0; part < fuse.from.size(); ++part) {
    const auto captures = MatchName(fuse.from[part], this->source(source).name);
    if (!captures) continue;
    auto& parts = fuses_[{rule, ExpandName(fuse.to, *captures)}];
    parts.resize(fuse.from.size(), -1);
    if (parts[part] >= 0)
      return InvalidArgument("tensors '", this->source(parts[part]).name, "' and '",
                             this->source(source).name, "' are both the part '", fuse.from[part],
                             "' of one fusion; correct the trainers' rules");
    parts[part] = source;
    return true;
  }
  return false;
}

Status Resolver::CheckFuse(const Fuse& fuse, int destination, const std::vector<int>& parts) const {
  const TensorInfo& to = this->destination(destination);
  std::vector<std::string> shapes;
  int64_t sum = 0;
  bool fits = fuse.dim < static_cast<int>(to.shape.size());
  for (const int part : parts) {
    const TensorInfo& from = source(part);
    fits = fits && AgreeBut(from.shape, to.shape, fuse.dim);
    if (fits) sum += from.shape[static_cast<size_t>(fuse.dim)];
    shapes.push_back(StrCat("'", from.name, "' ", ToString(from.shape)));
  }
  if (fits && sum == to.shape[static_cast<size_t>(fuse.dim)]) return Status::Ok();
  return InvalidArgument("the fusion of ", JoinSome(shapes, kNamesShown), " along dimension ", fuse.dim,
                         " cannot make '", to.name, "' ", ToString(to.shape),
                         "; correct the rule or the shapes");
}

/// See FindCut: which rows of each part such a rank means is not known.
Status Resolver::CheckFusedWhole(size_t rule, int destination, const std::vector<int>& parts) const {
  const int dim = std::get<Fuse>(rules_[rule]).dim;
  FusedParts fusion{.dim = dim, .starts = {}};
  int64_t at = 0;
  std::vector<std::string> names;
  for (const int part : parts) {
    fusion.starts.push_back(std::exchange(at, at + source(part).shape[static_cast<size_t>(dim)]));
    names.push_back(StrCat("'", source(part).name, "'"));
  }
  const auto cut = FindCut(inference_, destination, fusion);
  if (!cut) return Status::Ok();
  return InvalidArgument("rule ", rule + 1, " fuses ", JoinSome(names, kNamesShown), " into '",
                         this->destination(destination).name, "' along dimension ", dim,
                         ", which inference rank ", cut->rank, " holds only in part (", ToString(cut->box),
                         "): its rows of each are not known; register on every rank its parts of ",
                         JoinSome(names, kNamesShown), " as several shards of '",
                         this->destination(destination).name,
                         "', each with its own box, or its views of them under these names or renamed");
}

Status Resolver::FinishFuse(size_t rule, const std::string& name, const std::vector<int>& parts) {
  const Fuse& fuse = std::get<Fuse>(rules_[rule]);
  const auto some = *std::find_if(parts.begin(), parts.end(), [](int part) { return part >= 0; });
  const size_t hole = static_cast<size_t>(std::find(parts.begin(), parts.end(), -1) - parts.begin());
  if (hole < parts.size())
    return InvalidArgument("tensor '", source(some).name, "' is part of the fusion into '", name,
                           "', but the trainers have no tensor for '", fuse.from[hole],
                           "' to go with it; register it, or correct the trainers' rules");
  const auto partner = inference_.Find(name);
  if (!partner) {
    for (const int part : parts) Partner(part, name);
    return Status::Ok();
  }
  if (not_wanted_[static_cast<size_t>(*partner)]) return Status::Ok();
  WC_RETURN_IF_ERROR(CheckFuse(fuse, *partner, parts));
  WC_RETURN_IF_ERROR(CheckFusedWhole(rule, *partner, parts));
  int& owner = fed_by_[static_cast<size_t>(*partner)];
  if (owner >= 0)
    return InvalidArgument("tensor '", name, "' would be filled twice: from '", source(owner).name,
                           "' and by the fusion of '", source(some).name, "'; correct the trainers' rules");
  owner = some;
  int64_t at = 0;
  for (const int part : parts) {
    const int64_t extent = source(part).shape[static_cast<size_t>(fuse.dim)];
    WC_RETURN_IF_ERROR(AddLink(
        {.src_tensor = part, .dst_tensor = *partner, .dim = fuse.dim, .dst_start = at, .extent = extent}));
    at += extent;
  }
  return Status::Ok();
}

Result<bool> Resolver::Apply(size_t rule, int source) {
  const std::string& name = this->source(source).name;
  if (const auto* fuse = std::get_if<Fuse>(&rules_[rule])) return ApplyFuse(*fuse, rule, source);
  if (const auto* declared = std::get_if<NotSent>(&rules_[rule]))
    return declared->side != Side::kInference && MatchName(declared->name, name).has_value();
  if (const auto* rename = std::get_if<Rename>(&rules_[rule])) {
    const auto captures = MatchName(rename->from, name);
    if (captures) WC_RETURN_IF_ERROR(LinkWhole(source, ExpandName(rename->to, *captures)));
    return captures.has_value();
  }
  if (const auto* split = std::get_if<Split>(&rules_[rule])) {
    const auto captures = MatchName(split->from, name);
    if (captures) WC_RETURN_IF_ERROR(ApplySplit(*split, source, *captures));
    return captures.has_value();
  }
  if (std::holds_alternative<Quantise>(rules_[rule])) return false;  // Of another tensor: see Follow.
  const auto& tie = std::get<Tie>(rules_[rule]);
  const auto captures = MatchName(tie.from, name);
  if (!captures) return false;
  for (const std::string& to : tie.to) WC_RETURN_IF_ERROR(LinkWhole(source, ExpandName(to, *captures)));
  return true;
}

Status Resolver::Follow(int source) {
  if (const auto found = quantised_.find(source); found != quantised_.end())
    return FollowQuantised(source, found->second);
  if (const std::string& name = this->source(source).name; scales_.contains(name))
    return LinkWhole(source, name);
  for (size_t rule = 0; rule < rules_.size(); ++rule) {
    WC_ASSIGN_OR_RETURN(const bool matched, Apply(rule, source));
    if (matched) return Status::Ok();
  }
  return LinkWhole(source, this->source(source).name);
}

Status Resolver::CheckPartners() const {
  std::vector<std::string> hungry;
  for (int t = 0; t < inference_.tensors(); ++t) {
    if (!not_wanted_[static_cast<size_t>(t)] && fed_by_[static_cast<size_t>(t)] < 0)
      hungry.push_back(StrCat("'", destination(t).name, "'"));
  }
  if (alone_.empty() && hungry.empty()) return Status::Ok();
  std::string message;
  if (!alone_.empty()) {
    message =
        StrCat(Count(alone_.size(), "tensor"),
               " of the trainers without a partner on the inference side: ", JoinSome(alone_, kNamesShown));
  }
  if (!hungry.empty()) {
    message += StrCat(message.empty() ? "" : "; ", Count(hungry.size(), "tensor"),
                      " of the inference side that no trainer sends: ", JoinSome(hungry, kNamesShown));
  }
  return InvalidArgument(
      message, "; rename them by a rule, declare them not_sent, or the trainers' as unwanted by the engine");
}

Result<std::vector<Link>> Resolver::Run() {
  MarkNotSent();
  WC_RETURN_IF_ERROR(FindQuantised());
  for (int t = 0; t < trainers_.tensors(); ++t) {
    if (!trainers_.not_sent(t)) WC_RETURN_IF_ERROR(Follow(t));
  }
  for (const auto& [key, parts] : fuses_) WC_RETURN_IF_ERROR(FinishFuse(key.first, key.second, parts));
  WC_RETURN_IF_ERROR(CheckPartners());
  std::ranges::sort(links_, {}, [](const Link& link) {
    return std::tie(link.dst_tensor, link.dst_start, link.src_tensor);
  });
  return std::move(links_);
}

}  // namespace

Result<Transform> TransformBetween(const TensorInfo& source, const TensorInfo& destination) {
  if (source.dtype == destination.dtype) return Transform::kNone;
  if (IsFloat(source.dtype) && IsFloat(destination.dtype)) return Transform::kCast;
  if (IsFloat(source.dtype) && destination.dtype == DType::kF8E4M3) return Transform::kQuantise;
  return InvalidArgument(
      "tensor '", source.name, "' is ", NameOf(source.dtype), " on the trainers' side but '",
      destination.name, "' is ", NameOf(destination.dtype),
      " on the inference side, and only F32, F16 and BF16 are cast into each other; register "
      "one dtype on both");
}

bool MatchesAny(std::span<const std::string> patterns, std::string_view name) {
  return std::ranges::any_of(patterns,
                             [&](const auto& pattern) { return MatchName(pattern, name).has_value(); });
}

Result<std::vector<Link>> ResolveLinks(const NameRules& rules, const Layout& trainers,
                                       const Layout& inference, std::span<const std::string> unwanted) {
  WC_RETURN_IF_ERROR(CheckRules(rules));
  return Resolver(rules, trainers, inference, unwanted).Run();
}

}  // namespace weightcast::plan
