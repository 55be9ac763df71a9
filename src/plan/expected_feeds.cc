#include "plan/expected_feeds.h"

#include <algorithm>
#include <array>

#include "plan/links.h"

namespace weightcast::plan {
namespace {

/// The names on both sides of a rule, as lists.
struct Sides {
  std::vector<std::string> from;
  std::vector<std::string> to;
  int dim = 0;
};

Sides SidesOf(const Rule& rule) {
  if (const auto* rename = std::get_if<Rename>(&rule)) return {{rename->from}, {rename->to}};
  if (const auto* fuse = std::get_if<Fuse>(&rule)) return {fuse->from, {fuse->to}, fuse->dim};
  if (const auto* split = std::get_if<Split>(&rule)) return {{split->from}, split->to, split->dim};
  if (const auto* tie = std::get_if<Tie>(&rule)) return {{tie->from}, tie->to};
  if (const auto* quantise = std::get_if<Quantise>(&rule))
    return {{quantise->from}, {ValuesOf(*quantise)}, 1};
  return {{std::get<NotSent>(rule).name}, {}};
}

constexpr std::array kFloats = {DType::kF32, DType::kF16, DType::kBF16};
bool CanCast(DType from, DType to) {
  return std::ranges::find(kFloats, from) != kFloats.end() && std::ranges::find(kFloats, to) != kFloats.end();
}

/// Columns of whole blocks that go from one matrix to its FP8.
bool IsStrip(const Link& link, const TensorInfo& source, const TensorInfo& destination) {
  const int64_t end = link.src_start + link.extent;
  return source.shape.size() == 2 && source.shape == destination.shape &&
         std::ranges::find(kFloats, source.dtype) != kFloats.end() && destination.dtype == DType::kF8E4M3 &&
         link.transform == Transform::kQuantise && link.dim == 1 && link.dst_start == link.src_start &&
         link.src_start >= 0 && link.src_start % 128 == 0 && link.extent > 0 && link.extent <= 16384 &&
         (end % 128 == 0 || end == source.shape[1]);
}

}  // namespace

ExpectedFeeds::ExpectedFeeds(const PlanRequest& request) : request_(request) {
  for (int t = 0; t < request_.inference.tensors(); ++t) {
    bool declared = request_.inference.not_sent(t);
    for (const Rule& rule : request_.rules.rules)
      declared = declared || Declares(rule, request_.inference.tensor(t).name, Side::kInference);
    not_sent_.push_back(declared);
  }
  for (int t = 0; t < request_.trainers.tensors(); ++t) {
    if (!request_.trainers.not_sent(t)) NoteScales(request_.trainers.tensor(t).name);
  }
  for (int t = 0; t < request_.trainers.tensors(); ++t) {
    if (!request_.trainers.not_sent(t)) AddClaims(t);
  }
}

bool ExpectedFeeds::Declares(const Rule& rule, const std::string& name, Side side) const {
  const auto* declared = std::get_if<NotSent>(&rule);
  if (declared == nullptr || (declared->side != side && declared->side != Side::kBoth)) return false;
  return MatchName(declared->name, name).has_value();
}

void ExpectedFeeds::NoteScales(const std::string& name) {
  for (const Rule& rule : request_.rules.rules) {
    if (Declares(rule, name, Side::kTrainers)) return;
    if (std::holds_alternative<NotSent>(rule)) continue;
    for (const std::string& from : SidesOf(rule).from) {
      const auto captures = MatchName(from, name);
      if (!captures) continue;
      if (const auto* quantise = std::get_if<Quantise>(&rule))
        scales_.insert(ExpandName(quantise->scales, *captures));
      return;
    }
  }
}

void ExpectedFeeds::AddClaims(int src_tensor) {
  const std::string& name = request_.trainers.tensor(src_tensor).name;
  if (scales_.contains(name)) {
    NoteHomeless(name, name);
    claims_[name].push_back({src_tensor, nullptr, 0, {}});
    return;
  }
  for (const Rule& rule : request_.rules.rules) {
    if (std::holds_alternative<NotSent>(rule)) {
      if (Declares(rule, name, Side::kTrainers)) return;
      continue;
    }
    const Sides sides = SidesOf(rule);
    for (size_t from = 0; from < sides.from.size(); ++from) {
      const auto captures = MatchName(sides.from[from], name);
      if (!captures) continue;
      for (size_t to = 0; to < sides.to.size(); ++to) {
        const std::string target = ExpandName(sides.to[to], *captures);
        NoteHomeless(name, target);
        claims_[target].push_back({src_tensor, &rule, std::max(from, to), *captures});
      }
      return;
    }
  }
  NoteHomeless(name, name);
  claims_[name].push_back({src_tensor, nullptr, 0, {}});
}

void ExpectedFeeds::NoteHomeless(const std::string& name, const std::string& target) {
  const auto& unwanted = request_.unwanted;
  if (!request_.inference.Find(target) && !MatchesAny(unwanted, name) && !MatchesAny(unwanted, target))
    homeless_ = name;
}

Link ExpectedFeeds::LinkOf(const Claim& claim, int dst_tensor) const {
  const TensorInfo& source = request_.trainers.tensor(claim.src_tensor);
  const TensorInfo& destination = request_.inference.tensor(dst_tensor);
  const bool cast = source.dtype != destination.dtype && CanCast(source.dtype, destination.dtype);
  Link link{.src_tensor = claim.src_tensor,
            .dst_tensor = dst_tensor,
            .extent = source.shape.empty() ? 1 : source.shape[0],
            .transform = cast ? Transform::kCast : Transform::kNone};
  if (claim.rule == nullptr) return link;
  const Sides sides = SidesOf(*claim.rule);
  const auto dim = static_cast<size_t>(sides.dim);
  link.dim = sides.dim;
  // What precedes this part: its elder sisters on the side that has several.
  const bool fuse = std::holds_alternative<Fuse>(*claim.rule);
  const bool split = std::holds_alternative<Split>(*claim.rule);
  const Layout& several = fuse ? request_.trainers : request_.inference;
  int64_t before = 0;
  for (size_t part = 0; (fuse || split) && part < claim.part; ++part) {
    const auto sister = several.Find(ExpandName(fuse ? sides.from[part] : sides.to[part], claim.captures));
    if (sister && dim < several.tensor(*sister).shape.size()) before += several.tensor(*sister).shape[dim];
  }
  if (fuse) link.dst_start = before;
  if (split) link.src_start = before;
  if ((fuse || split) && dim < source.shape.size()) link.extent = (fuse ? source : destination).shape[dim];
  return link;
}

bool ExpectedFeeds::Allows(const Link& link) const {
  const TensorInfo& source = request_.trainers.tensor(link.src_tensor);
  const TensorInfo& destination = request_.inference.tensor(link.dst_tensor);
  const auto claims = claims_.find(destination.name);
  if (claims == claims_.end()) return false;
  const auto quantises = [&](const Claim& claim) {
    return claim.src_tensor == link.src_tensor && claim.rule != nullptr &&
           std::holds_alternative<Quantise>(*claim.rule);
  };
  if (std::ranges::any_of(claims->second, quantises)) return IsStrip(link, source, destination);
  if (source.shape.size() != destination.shape.size()) return false;
  for (size_t d = 0; d < source.shape.size(); ++d) {
    const bool part = static_cast<int>(d) == link.dim &&
                      (source.shape[d] == link.extent || destination.shape[d] == link.extent);
    if (!part && source.shape[d] != destination.shape[d]) return false;
  }
  if (source.dtype != destination.dtype && !CanCast(source.dtype, destination.dtype)) return false;
  return std::ranges::any_of(claims->second, [&](const Claim& claim) {
    return claim.src_tensor == link.src_tensor && LinkOf(claim, link.dst_tensor) == link;
  });
}

bool ExpectedFeeds::IsNotSent(int dst_tensor) const { return not_sent_[static_cast<size_t>(dst_tensor)]; }

std::string ExpectedFeeds::TensorWithoutPartner() const {
  if (!homeless_.empty()) return homeless_;
  for (int t = 0; t < request_.inference.tensors(); ++t) {
    const std::string& name = request_.inference.tensor(t).name;
    if (!not_sent_[static_cast<size_t>(t)] && !claims_.contains(name)) return name;
  }
  return {};
}

}  // namespace weightcast::plan
