#include "plan/verify.h"

#include <algorithm>
#include <numeric>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "base/advice.h"
#include "base/strings.h"
#include "plan/expected_feeds.h"

// Shares nothing with the planner but the types, Layout and MatchName: a mistake there must show here.
namespace weightcast::plan {
namespace {

Status Offence(const std::string& message) {
  return Error(Code::kInternal, "the plan that weightcast made is wrong: ", message, kReportBug);
}

/// Stands for no shard among those of a rank.
constexpr uint32_t kNoShard = UINT32_MAX;

/// Checks the routes into one tensor after the other, so that what is looked up stays near.
class TensorVerifier {
 public:
  TensorVerifier(const PlanRequest& request, const RoutingTable& table) : request_(request), table_(table) {}

  /// `routes` are all into `tensor`, by destination rank.
  Status Check(int tensor, bool not_sent, std::span<const uint32_t> routes);

 private:
  /// Sorts the routes into ranks that hold several boxes of a tensor by these boxes.
  Status SortByShard(std::span<const uint32_t> routes);
  /// Which of its rank's boxes a route begins in, 0 if the rank has one.
  [[nodiscard]] uint32_t ShardOf(const RouteView& route) const;
  /// The routes into one shard: each as it should be, and all together covering it.
  Status CheckShard(int rank, const Box& shard, std::span<const uint32_t> routes);
  Status CheckRoute(const RouteView& route, const Box& shard);
  Status CheckDisjoint(std::span<const uint32_t> routes, const Box& shard);
  /// Whether two routes into one tensor write a common element.
  [[nodiscard]] bool Overlap(uint32_t a, uint32_t b) const;
  [[nodiscard]] size_t FinestDim(std::span<const uint32_t> routes, const Box& shard) const;
  [[nodiscard]] std::string Describe(const RouteView& route) const;

  struct Interval {
    int64_t begin;
    int64_t end;
    uint32_t route;
  };

  const PlanRequest& request_;
  const RoutingTable& table_;
  std::vector<uint32_t> sorted_;
  std::vector<Interval> sweep_;
  std::vector<Interval> open_;
  Box source_;  ///< The shard that a route comes from.
};

std::string TensorVerifier::Describe(const RouteView& route) const {
  const Box box{Shape(route.src_offset.begin(), route.src_offset.end()),
                Shape(route.size.begin(), route.size.end())};
  return StrCat("the route of '", request_.trainers.tensor(route.link->src_tensor).name, "' ", ToString(box),
                " from trainer ", route.src_rank, " to '",
                request_.inference.tensor(route.link->dst_tensor).name, "' on inference rank ",
                route.dst_rank);
}

Status TensorVerifier::CheckRoute(const RouteView& route, const Box& shard) {
  const Link& link = *route.link;
  if (!request_.trainers.FindBox(link.src_tensor, route.src_rank, route.src_offset, source_))
    return Offence(Describe(route) + " starts at a rank that does not hold it");
  if (route.dst_copy > 0 && ShardOf(route) == kNoShard)
    return Offence(Describe(route) + " goes to a copy that the rank does not have");
  for (size_t d = 0; d < route.size.size(); ++d) {
    const int64_t from = route.src_offset[d];
    const int64_t to = route.dst_offset(static_cast<int>(d));
    const int64_t size = route.size[d];
    if (size < 1) return Offence(Describe(route) + " is empty");
    if (from < source_.offset[d] || from + size > source_.offset[d] + source_.size[d])
      return Offence(Describe(route) + " leaves the source shard");
    if (to < shard.offset[d] || to + size > shard.offset[d] + shard.size[d])
      return Offence(Describe(route) + " leaves the destination shard");
    const bool linked = static_cast<int>(d) != link.dim ||
                        (from >= link.src_start && from + size <= link.src_start + link.extent);
    if (!linked)
      return Offence(Describe(route) + " leaves the part of the tensor that the name rules send there");
    const bool ends = from + size == request_.trainers.tensor(link.src_tensor).shape[d];
    if (link.transform == Transform::kQuantise && (from % 128 != 0 || (size % 128 != 0 && !ends)))
      return Offence(Describe(route) + " cuts blocks that are quantised");
  }
  return Status::Ok();
}

bool TensorVerifier::Overlap(uint32_t a, uint32_t b) const {
  const RouteView left = table_.View(a);
  const RouteView right = table_.View(b);
  for (int d = 0; d < static_cast<int>(left.size.size()); ++d) {
    if (left.dst_offset(d) >= right.dst_offset(d) + right.size[d]) return false;
    if (right.dst_offset(d) >= left.dst_offset(d) + left.size[d]) return false;
  }
  return true;
}

size_t TensorVerifier::FinestDim(std::span<const uint32_t> routes, const Box& shard) const {
  size_t finest = 0;
  double shortest = 2;
  for (size_t d = 0; d < shard.size.size(); ++d) {
    double sum = 0;
    for (const uint32_t route : routes) sum += static_cast<double>(table_.View(route).size[d]);
    const double share = sum / static_cast<double>(shard.size[d]) / static_cast<double>(routes.size());
    if (share >= shortest) continue;
    shortest = share;
    finest = d;
  }
  return finest;
}

Status TensorVerifier::CheckDisjoint(std::span<const uint32_t> routes, const Box& shard) {
  // A sweep along the dimension in which the boxes are shortest: few are open at a time.
  const int along = static_cast<int>(FinestDim(routes, shard));
  sweep_.clear();
  for (const uint32_t route : routes) {
    const RouteView view = table_.View(route);
    const int64_t begin = shard.size.empty() ? 0 : view.dst_offset(along);
    sweep_.push_back(
        {begin, begin + (shard.size.empty() ? 1 : view.size[static_cast<size_t>(along)]), route});
  }
  std::sort(sweep_.begin(), sweep_.end(),
            [](const Interval& a, const Interval& b) { return a.begin < b.begin; });
  open_.clear();
  for (const Interval& span : sweep_) {
    std::erase_if(open_, [&](const Interval& other) { return other.end <= span.begin; });
    for (const Interval& other : open_) {
      if (!Overlap(span.route, other.route)) continue;
      return Offence(StrCat(Describe(table_.View(span.route)), " and ", Describe(table_.View(other.route)),
                            " write the same elements"));
    }
    open_.push_back(span);
  }
  return Status::Ok();
}

Status TensorVerifier::CheckShard(int rank, const Box& shard, std::span<const uint32_t> routes) {
  for (const uint32_t route : routes) WC_RETURN_IF_ERROR(CheckRoute(table_.View(route), shard));
  if (routes.size() > 1) WC_RETURN_IF_ERROR(CheckDisjoint(routes, shard));
  int64_t covered = 0;
  for (const uint32_t route : routes) covered += table_.View(route).elements();
  if (covered == ElementsOf(shard)) return Status::Ok();
  return Offence(StrCat("inference rank ", rank, " gets ", covered, " of the ", ElementsOf(shard),
                        " elements of its box ", ToString(shard)));
}

uint32_t TensorVerifier::ShardOf(const RouteView& route) const {
  const RankBoxes boxes = request_.inference.FindCoords(route.link->dst_tensor, route.dst_rank);
  if (boxes.count < 2) return route.dst_copy == 0 ? 0 : kNoShard;
  Shape at;
  for (size_t d = 0; d < route.size.size(); ++d) at.push_back(route.dst_offset(static_cast<int>(d)));
  const uint32_t shard = boxes.Find(at, route.dst_copy);
  return shard < boxes.count ? shard : kNoShard;
}

Status TensorVerifier::SortByShard(std::span<const uint32_t> routes) {
  std::vector<std::tuple<int, uint32_t, uint32_t>> order;
  for (const uint32_t route : routes) {
    const RouteView view = table_.View(route);
    const uint32_t shard = ShardOf(view);
    if (shard == kNoShard) return Offence(Describe(view) + " goes to no shard of that rank");
    order.emplace_back(view.dst_rank, shard, route);
  }
  std::sort(order.begin(), order.end());
  sorted_.clear();
  for (const auto& [rank, shard, route] : order) sorted_.push_back(route);
  return Status::Ok();
}

Status TensorVerifier::Check(int tensor, bool not_sent, std::span<const uint32_t> routes) {
  const auto named = [&](const Status& offence) {
    return Error(offence.code(), "tensor '", request_.inference.tensor(tensor).name,
                 "': ", offence.message());
  };
  const bool several = request_.inference.several();
  Status status;
  if (several) {
    status = SortByShard(routes);
    routes = sorted_;
  }
  size_t next = 0;
  int last_rank = -1;
  uint32_t number = 0;  // Of the shard, among its rank's.
  request_.inference.ForEachBox(tensor, [&](int rank, const Box& shard) {
    if (!status.ok() || not_sent) return;
    number = rank == std::exchange(last_rank, rank) ? number + 1 : 0;
    const size_t first = next;
    for (; next < routes.size() && table_.View(routes[next]).dst_rank == rank; ++next)
      if (several && ShardOf(table_.View(routes[next])) != number) break;
    status = CheckShard(rank, shard, routes.subspan(first, next - first));
  });
  if (!status.ok()) return named(status);
  if (next < routes.size())
    return named(Offence(Describe(table_.View(routes[next])) + " reaches a rank that does not take it"));
  return Status::Ok();
}

/// All routes by destination tensor, then by destination rank, and where each tensor's begin.
struct RoutesByTensor {
  std::vector<uint32_t> routes;
  std::vector<size_t> first;
};

RoutesByTensor SortByTensor(const RoutingTable& table, int tensors) {
  RoutesByTensor out{std::vector<uint32_t>(static_cast<size_t>(table.size())),
                     std::vector<size_t>(static_cast<size_t>(tensors) + 1, 0)};
  for (int64_t route = 0; route < table.size(); ++route) ++out.first[table.View(route).link->dst_tensor + 1];
  std::partial_sum(out.first.begin(), out.first.end(), out.first.begin());
  std::vector<size_t> next(out.first.begin(), out.first.end() - 1);
  for (int rank = 0; rank < table.destination_ranks(); ++rank) {
    for (const uint32_t route : table.OfDestination(rank))
      out.routes[next[table.View(route).link->dst_tensor]++] = route;
  }
  return out;
}

/// Whether ranks, tensors and dimensions are in range at all, and the views by source and by
/// destination tell of the same routes: the other checks rely on it.
Status CheckShape(const PlanRequest& request, const RoutingTable& table) {
  const auto in = [](int value, int end) { return value >= 0 && value < end; };
  if (table.source_ranks() != request.trainers.ranks() ||
      table.destination_ranks() != request.inference.ranks())
    return Offence(StrCat("it is for ", table.source_ranks(), " trainers and ", table.destination_ranks(),
                          " inference ranks, not for ", request.trainers.ranks(), " and ",
                          request.inference.ranks()));
  for (const Link& link : table.links()) {
    if (!in(link.src_tensor, request.trainers.tensors()) || !in(link.dst_tensor, request.inference.tensors()))
      return Offence("it names a tensor that is not in the layouts");
  }
  int64_t reached = 0;
  for (int rank = 0; rank < table.destination_ranks(); ++rank) {
    for (const uint32_t route : table.OfDestination(rank)) {
      if (route >= table.size() || table.View(route).dst_rank != rank)
        return Offence(StrCat("the routes of inference rank ", rank, " are not those that go to it"));
    }
    reached += static_cast<int64_t>(table.OfDestination(rank).size());
  }
  if (reached != table.size())
    return Offence(
        StrCat("the routes listed by inference rank are ", reached, ", the plan has ", table.size()));
  for (int64_t route = 0; route < table.size(); ++route) {
    const RouteView view = table.View(route);
    const size_t src_dims = request.trainers.tensor(view.link->src_tensor).shape.size();
    const size_t dst_dims = request.inference.tensor(view.link->dst_tensor).shape.size();
    if (!in(view.src_rank, table.source_ranks()))
      return Offence("a route has a source rank that does not exist");
    if (view.size.size() != src_dims || view.size.size() != dst_dims)
      return Offence("a route has other dimensions than its tensors");
  }
  return Status::Ok();
}

}  // namespace

Status Verify(const PlanRequest& request, const RoutingTable& table) {
  WC_RETURN_IF_ERROR(CheckShape(request, table));
  const ExpectedFeeds feeds(request);
  if (const std::string name = feeds.TensorWithoutPartner(); !name.empty())
    return Offence(
        StrCat("it was made although tensor '", name, "' has no partner and is not declared not sent"));
  for (const Link& link : table.links()) {
    if (!feeds.Allows(link))
      return Offence(StrCat("it sends '", request.trainers.tensor(link.src_tensor).name, "' to '",
                            request.inference.tensor(link.dst_tensor).name,
                            "' otherwise than the name rules say"));
  }
  const RoutesByTensor sorted = SortByTensor(table, request.inference.tensors());
  TensorVerifier verifier(request, table);
  for (int tensor = 0; tensor < request.inference.tensors(); ++tensor) {
    const size_t first = sorted.first[static_cast<size_t>(tensor)];
    const size_t count = sorted.first[static_cast<size_t>(tensor) + 1] - first;
    WC_RETURN_IF_ERROR(
        verifier.Check(tensor, feeds.IsNotSent(tensor), std::span(sorted.routes).subspan(first, count)));
  }
  return Status::Ok();
}

}  // namespace weightcast::plan
