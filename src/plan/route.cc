#include "plan/route.h"

#include <algorithm>
#include <cassert>
#include <numeric>
#include <utility>

namespace weightcast::plan {

int64_t RouteView::elements() const {
  int64_t elements = 1;
  for (const int64_t extent : size) elements *= extent;
  return elements;
}

Route RoutingTable::At(int64_t route) const {
  const RouteView view = View(route);
  Route out{.src_tensor = view.link->src_tensor,
            .dst_tensor = view.link->dst_tensor,
            .src_rank = view.src_rank,
            .dst_rank = view.dst_rank,
            .dst_copy = view.dst_copy,
            .src_box = {Shape(view.src_offset.begin(), view.src_offset.end()),
                        Shape(view.size.begin(), view.size.end())},
            .dst_offset = {},
            .transform = view.link->transform};
  for (size_t d = 0; d < view.size.size(); ++d)
    out.dst_offset.push_back(view.dst_offset(static_cast<int>(d)));
  return out;
}

std::pair<int64_t, int64_t> RoutingTable::OfSource(int rank) const {
  return {by_source_[static_cast<size_t>(rank)], by_source_[static_cast<size_t>(rank) + 1]};
}

std::span<const uint32_t> RoutingTable::OfDestination(int rank) const {
  const auto first = static_cast<size_t>(by_destination_[static_cast<size_t>(rank)]);
  const auto last = static_cast<size_t>(by_destination_[static_cast<size_t>(rank) + 1]);
  return {incoming_.data() + first, last - first};
}

RoutingTableBuilder::RoutingTableBuilder(int source_ranks, int destination_ranks, std::vector<Link> links,
                                         std::vector<uint8_t> dims, LargeVector<int64_t> coords) {
  assert(links.size() == dims.size());
  table_.links_ = std::move(links);
  table_.dims_ = std::move(dims);
  table_.coords_ = std::move(coords);
  table_.by_source_.assign(static_cast<size_t>(source_ranks) + 1, 0);
  table_.by_destination_.assign(static_cast<size_t>(destination_ranks) + 1, 0);
}

uint32_t RoutingTableBuilder::AddBox(const Box& box) {
  const auto coord = static_cast<uint32_t>(table_.coords_.size());
  table_.coords_.insert(table_.coords_.end(), box.offset.begin(), box.offset.end());
  table_.coords_.insert(table_.coords_.end(), box.size.begin(), box.size.end());
  return coord;
}

void RoutingTableBuilder::Reserve(size_t routes) { table_.routes_.reserve(routes); }

void RoutingTableBuilder::Add(uint32_t link, int src_rank, RankCopy to, uint32_t coord) {
  table_.routes_.push_back({link, coord, src_rank, to, 0});
}

RoutingTable RoutingTableBuilder::Build() && {
  auto& routes = table_.routes_;
  auto& from = table_.by_source_;
  auto& to = table_.by_destination_;
  for (const auto& route : routes) {
    ++from[static_cast<size_t>(route.src_rank) + 1];
    ++to[static_cast<size_t>(route.to.rank()) + 1];
  }
  std::partial_sum(from.begin(), from.end(), from.begin());
  std::partial_sum(to.begin(), to.end(), to.begin());
  const auto by_source = [](const auto& a, const auto& b) { return a.src_rank < b.src_rank; };
  if (!std::is_sorted(routes.begin(), routes.end(), by_source)) {
    std::vector<int64_t> next(from.begin(), from.end() - 1);
    LargeVector<RoutingTable::Entry> sorted(routes.size());
    for (const auto& route : routes) sorted[next[route.src_rank]++] = route;
    routes.swap(sorted);
  }
  std::vector<uint32_t> reached(to.size(), 0);
  table_.incoming_.resize(routes.size());
  for (size_t i = 0; i < routes.size(); ++i) {
    const auto rank = static_cast<size_t>(routes[i].to.rank());
    routes[i].slot = reached[rank]++;
    table_.incoming_[static_cast<size_t>(to[rank]) + routes[i].slot] = static_cast<uint32_t>(i);
  }
  return std::move(table_);
}

}  // namespace weightcast::plan
