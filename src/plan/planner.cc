#include "plan/planner.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "base/strings.h"
#include "plan/assign.h"
#include "plan/fair_share.h"
#include "plan/links.h"
#include "plan/pieces.h"
#include "plan/table_format.h"

namespace weightcast::plan {
namespace {

/// Cutting a piece to move fewer bytes than this costs more than it saves.
constexpr int64_t kSmallestCut = 64 << 10;
/// Of a sender's mean, how far its share may end from where it should at either end: with both ends
/// and the rounding to rows the busiest sender stays within 1% of the mean.
constexpr int64_t kSlackFraction = 400;

std::vector<int64_t> DemandPerSet(const PieceList& list) {
  std::vector<int64_t> demand(list.sets.size(), 0);
  for (const Piece& piece : list.pieces) demand[piece.set] += piece.bytes;
  return demand;
}

int64_t Busiest(const std::vector<int64_t>& bytes) {
  return bytes.empty() ? 0 : *std::max_element(bytes.begin(), bytes.end());
}

/// In how many sets that leave a choice the most popular rank is: each adds two ends to its share.
int64_t MostChoices(const PieceList& list, const std::vector<int64_t>& demand, int ranks) {
  std::vector<int64_t> choices(static_cast<size_t>(ranks), 0);
  for (size_t set = 0; set < list.sets.size(); ++set) {
    if (demand[set] == 0 || list.sets[set].size() == 1) continue;
    for (const int rank : list.sets[set]) ++choices[rank];
  }
  return Busiest(choices);
}

/// The fair shares, cut as coarsely as keeps the busiest sender no busier than the greedy strategy's.
std::vector<Shipment> AssignNoWorseThanGreedy(PieceList& list, const FairShare& share,
                                              const std::vector<int64_t>& demand, int ranks) {
  const int64_t choices = MostChoices(list, demand, ranks);
  if (choices == 0) return AssignGreedy(list, ranks);  // Nothing to choose: the only assignment there is.
  std::vector<Shipment> greedy = AssignGreedy(list, ranks);
  const int64_t limit = Busiest(BytesPerSender(greedy, ranks));
  const int64_t mean = std::accumulate(demand.begin(), demand.end(), int64_t{0}) / ranks;
  const int64_t coarse = std::max(kSmallestCut, mean / kSlackFraction / choices);
  for (const int64_t slack : {coarse, kSmallestCut}) {
    std::vector<Shipment> balanced = AssignBalanced(list, share, slack);
    if (Busiest(BytesPerSender(balanced, ranks)) <= limit) return balanced;
    if (coarse == kSmallestCut) break;
  }
  return greedy;
}

/// The table of one rank numbers so many.
Status CheckTables(const PlanReport& report, const std::vector<Shipment>& shipments) {
  std::vector<size_t> sent(report.sender_bytes.size(), 0);
  std::vector<size_t> received(report.receiver_bytes.size(), 0);
  for (const Shipment& shipment : shipments) {
    ++sent[static_cast<size_t>(shipment.src_rank)];
    ++received[static_cast<size_t>(shipment.to.rank())];
  }
  for (const auto& [what, routes] : {std::pair{"sender", &sent}, std::pair{"inference rank", &received}}) {
    for (size_t rank = 0; rank < routes->size(); ++rank) {
      if ((*routes)[rank] <= kMaxRoutesOfRank) continue;
      return Error(Code::kExhausted, "of the ", shipments.size(), " routes of the plan, ", what, " ", rank,
                   " has ", (*routes)[rank], "; its table holds at most ", kMaxRoutesOfRank,
                   ": use fewer engines, more trainers or larger shards");
    }
  }
  return Status::Ok();
}

/// Sorts stably by a small key.
template <typename Key>
void CountingSort(std::vector<Shipment>& shipments, int keys, Key key) {
  std::vector<size_t> next(static_cast<size_t>(keys) + 1, 0);
  for (const Shipment& shipment : shipments) ++next[key(shipment) + 1];
  std::partial_sum(next.begin(), next.end(), next.begin());
  std::vector<Shipment> sorted(shipments.size());
  for (const Shipment& shipment : shipments) sorted[next[key(shipment)]++] = shipment;
  shipments.swap(sorted);
}

/// Sorts each sender's shipments by destination, beginning at another one for each sender, so that
/// senders that start together do not all start with the same receiver.
void Rotate(int sources, int destinations, std::vector<Shipment>& shipments) {
  const auto by_piece = [](const Shipment& a, const Shipment& b) {
    return std::pair(a.piece, a.coord) < std::pair(b.piece, b.coord);  // Later cuts lie further on.
  };
  const auto destination = [](const Shipment& shipment) { return shipment.to.rank(); };
  if (!std::is_sorted(shipments.begin(), shipments.end(), by_piece))
    std::sort(shipments.begin(), shipments.end(), by_piece);
  CountingSort(shipments, destinations, destination);
  CountingSort(shipments, sources, [](const Shipment& shipment) { return shipment.src_rank; });
  std::vector<std::vector<Shipment>::iterator> groups;  // Where each destination's shipments begin.
  for (auto first = shipments.begin(); first != shipments.end();) {
    const int sender = first->src_rank;
    groups.clear();
    auto last = first;
    for (; last != shipments.end() && last->src_rank == sender; ++last) {
      if (last == first || destination(*last) != destination(*(last - 1))) groups.push_back(last);
    }
    std::rotate(first, groups[static_cast<size_t>(sender) % groups.size()], last);
    first = last;
  }
}

RoutingTable MakeTable(PieceList list, const std::vector<Shipment>& shipments, int sources,
                       int destinations) {
  RoutingTableBuilder builder(sources, destinations, std::move(list.links), std::move(list.dims),
                              std::move(list.coords));
  builder.Reserve(shipments.size());
  for (const Shipment& shipment : shipments) {
    builder.Add(shipment.link, shipment.src_rank, shipment.to, shipment.coord);
  }
  return std::move(builder).Build();
}

PlanReport MakeReport(const std::vector<Shipment>& shipments, const FairShare& share, int sources,
                      int destinations) {
  PlanReport report;
  report.routes = static_cast<int64_t>(shipments.size());
  report.sender_bytes = BytesPerSender(shipments, sources);
  report.receiver_bytes.assign(static_cast<size_t>(destinations), 0);
  for (const Shipment& shipment : shipments) report.receiver_bytes[shipment.to.rank()] += shipment.bytes;
  report.total_bytes = std::accumulate(report.sender_bytes.begin(), report.sender_bytes.end(), int64_t{0});
  report.busiest_sender_bytes = Busiest(report.sender_bytes);
  report.busiest_receiver_bytes = Busiest(report.receiver_bytes);
  if (report.total_bytes > 0) {
    report.sender_imbalance =
        static_cast<double>(report.busiest_sender_bytes) * sources / static_cast<double>(report.total_bytes);
  }
  report.lower_bound_bytes = std::max(share.bound, report.busiest_receiver_bytes);
  report.makespan_bytes = std::max(report.busiest_sender_bytes, report.busiest_receiver_bytes);
  return report;
}

}  // namespace

std::string_view NameOf(Strategy strategy) { return strategy == Strategy::kGreedy ? "greedy" : "balanced"; }

std::optional<Strategy> StrategyFromName(std::string_view name) {
  for (const Strategy strategy : {Strategy::kBalanced, Strategy::kGreedy}) {
    if (NameOf(strategy) == name) return strategy;
  }
  return std::nullopt;
}

Result<Plan> MakePlan(const PlanRequest& request) {
  const int sources = request.trainers.ranks();
  const int destinations = request.inference.ranks();
  WC_ASSIGN_OR_RETURN(std::vector<Link> links,
                      ResolveLinks(request.rules, request.trainers, request.inference, request.unwanted));
  WC_ASSIGN_OR_RETURN(PieceList list,
                      CollectPieces(request.trainers, request.inference, std::move(links), request.memory));
  const std::vector<int64_t> demand = DemandPerSet(list);
  const FairShare share = ShareFairly(list.sets, demand, sources);
  std::vector<Shipment> shipments;
  if (request.strategy == Strategy::kGreedy) {
    shipments = AssignGreedy(list, sources);
  } else {
    shipments = AssignNoWorseThanGreedy(list, share, demand, sources);
    Rotate(sources, destinations, shipments);
  }
  Plan plan;
  plan.report = MakeReport(shipments, share, sources, destinations);
  WC_RETURN_IF_ERROR(CheckTables(plan.report, shipments));
  plan.table = MakeTable(std::move(list), shipments, sources, destinations);
  return plan;
}

}  // namespace weightcast::plan
