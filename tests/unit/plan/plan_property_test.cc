#include <gtest/gtest.h>
#include <rapidcheck.h>
#include <rapidcheck/gtest.h>

#include "plan/layout_json.h"
#include "plan/table_format.h"
#include "plan/verify.h"
#include "unit/plan/plan_cases.h"
#include "weightcast/rules.h"

namespace weightcast::plan::testing {
namespace {

int64_t PickOne(int64_t low, int64_t high) { return *rc::gen::inRange<int64_t>(low, high + 1); }

/// A random case, shown if its property fails.
Case Drawn() {
  Case random = RandomCase(PickOne);
  RC_LOG() << ToJson(random.trainers) << ToJson(random.inference) << ToJson(random.rules);
  return random;
}

/// A table of the routes of another, changed.
RoutingTable TableOf(const Case& random, const RoutingTable& like, const std::vector<Route>& routes) {
  std::vector<uint8_t> dims;
  for (const Link& link : like.links())
    dims.push_back(static_cast<uint8_t>(random.trainers.tensor(link.src_tensor).shape.size()));
  RoutingTableBuilder builder(like.source_ranks(), like.destination_ranks(), like.links(), dims);
  for (const Route& route : routes) {
    uint32_t link = 0;
    while (like.links()[link].src_tensor != route.src_tensor ||
           like.links()[link].dst_tensor != route.dst_tensor)
      ++link;
    builder.Add(link, route.src_rank, {route.dst_rank, route.dst_copy}, builder.AddBox(route.src_box));
  }
  return std::move(builder).Build();
}

RC_GTEST_PROP(PlanProperty, EveryPlanVerifiesAndDeliversEveryElementOnce, ()) {
  const Case random = Drawn();
  for (const Strategy strategy : {Strategy::kGreedy, Strategy::kBalanced}) {
    const auto plan = MakePlan(random.Request(strategy));
    RC_ASSERT(plan.status().ToString() == "ok");
    RC_ASSERT(Verify(random.Request(strategy), plan->table).ToString() == "ok");
    RC_ASSERT(CarryOut(random, RoutesOf(plan->table)) == "");
    RC_ASSERT(plan->report.routes == plan->table.size());
    RC_ASSERT(plan->report.lower_bound_bytes <= plan->report.makespan_bytes);
  }
}

RC_GTEST_PROP(PlanProperty, BalancedIsNeverWorseThanGreedyAndTheSameEachTime, ()) {
  const Case random = Drawn();
  const auto greedy = MakePlan(random.Request(Strategy::kGreedy));
  const auto balanced = MakePlan(random.Request());
  const auto again = MakePlan(random.Request());
  RC_ASSERT(greedy.ok() && balanced.ok() && again.ok());
  RC_ASSERT(balanced->report.busiest_sender_bytes <= greedy->report.busiest_sender_bytes);
  RC_ASSERT(balanced->report.receiver_bytes == greedy->report.receiver_bytes);
  RC_ASSERT(RoutesOf(balanced->table) == RoutesOf(again->table));
}

/// Changes one thing in a list of routes.
void Mutate(const Case& random, std::vector<Route>& routes) {
  const auto at = static_cast<size_t>(PickOne(0, static_cast<int64_t>(routes.size()) - 1));
  Route& route = routes[at];
  const auto dims = static_cast<int64_t>(route.src_box.size.size());
  const auto dim = static_cast<size_t>(dims > 0 ? PickOne(0, dims - 1) : 0);
  switch (PickOne(0, dims > 0 ? 7 : 4)) {
    case 0:
      routes.erase(routes.begin() + static_cast<ptrdiff_t>(at));
      return;
    case 1:
      routes.push_back(routes[at]);
      return;
    case 2:
      route.src_rank = static_cast<int>(PickOne(0, random.trainers.ranks() - 1));
      return;
    case 3:
      route.dst_rank = static_cast<int>(PickOne(0, random.inference.ranks() - 1));
      return;
    case 4:
      route.dst_copy = static_cast<uint32_t>(PickOne(0, 2));
      return;
    case 5:
      --route.src_box.size[dim];
      return;
    case 6:
      ++route.src_box.size[dim];
      return;
    default:
      route.src_box.offset[dim] += PickOne(0, 1) * 2 - 1;
      return;
  }
}

RC_GTEST_PROP(PlanProperty, TheVerifierTellsGoodTablesFromBad, ()) {
  const Case random = Drawn();
  const auto plan = MakePlan(random.Request());
  RC_ASSERT(plan.ok());
  std::vector<Route> routes = RoutesOf(plan->table);
  RC_PRE(!routes.empty());
  for (int64_t changes = PickOne(1, 2); changes > 0 && !routes.empty(); --changes) Mutate(random, routes);
  const RoutingTable table = TableOf(random, plan->table, routes);
  // An empty box is an offence to the verifier, though it writes nothing.
  const bool empty = std::any_of(routes.begin(), routes.end(),
                                 [](const Route& route) { return ElementsOf(route.src_box) < 1; });
  const std::string wrong = empty ? "empty" : CarryOut(random, RoutesOf(table));
  RC_ASSERT(Verify(random.Request(), table).ok() == wrong.empty());
}

RC_GTEST_PROP(PlanProperty, JsonComesBackAsItWas, ()) {
  const Case random = Drawn();
  RC_ASSERT(*ParseRules(ToJson(random.rules)) == random.rules);
  for (const Layout* layout : {&random.trainers, &random.inference}) {
    const std::string json = ToJson(*layout);
    const auto read = ParseLayout(json);
    RC_ASSERT(read.status().ToString() == "ok");
    RC_ASSERT(ToJson(*read) == json);
    for (int t = 0; t < layout->tensors(); ++t) {
      RC_ASSERT(read->tensor(t) == layout->tensor(t));
      for (int rank = 0; rank < layout->ranks(); ++rank)
        RC_ASSERT(read->BoxesOf(t, rank) == layout->BoxesOf(t, rank));
    }
  }
}

/// What a decoded table says of one route must be what the plan says.
void ExpectSame(const Case& random, const RankTable& table, const RankTable::Route& got, const Route& want) {
  const RankTable::Shard& source = table.source_shards[got.src_shard];
  const RankTable::Shard& destination = table.destination_shards[got.dst_shard];
  RC_ASSERT(source.rank == want.src_rank);
  RC_ASSERT(destination.rank == want.dst_rank);
  RC_ASSERT(table.source_tensors[static_cast<size_t>(source.tensor)] ==
            random.trainers.tensor(want.src_tensor));
  RC_ASSERT(table.destination_tensors[static_cast<size_t>(destination.tensor)] ==
            random.inference.tensor(want.dst_tensor));
  const auto sources = random.trainers.BoxesOf(want.src_tensor, want.src_rank);
  RC_ASSERT(source.box == sources.at(static_cast<size_t>(ShardOf(sources, want.src_box))));
  const auto destinations = random.inference.BoxesOf(want.dst_tensor, want.dst_rank);
  const int shard = ShardOf(destinations, {want.dst_offset, want.src_box.size}, want.dst_copy);
  RC_ASSERT(destination.box == destinations.at(static_cast<size_t>(shard)));
  RC_ASSERT(source.copy == 0U && destination.copy == want.dst_copy);
  RC_ASSERT(got.src_box == want.src_box);
  RC_ASSERT(got.dst_offset == want.dst_offset);
  RC_ASSERT(got.transform == want.transform);
  RC_ASSERT(got.peer == (table.role == RankTable::Role::kTrainer ? want.dst_rank : want.src_rank));
}

RC_GTEST_PROP(PlanProperty, EachRankReadsItsRoutesFromItsTable, ()) {
  const Case random = Drawn();
  const auto plan = MakePlan(random.Request());
  RC_ASSERT(plan.ok());
  const RoutingTable& table = plan->table;
  const TableEncoder encoder(random.trainers, random.inference, table);
  const auto read = [&](RankTable::Role role, int rank) {
    return DecodeRankTable(*encoder.Encode(role, rank, 7));
  };
  for (int rank = 0; rank < random.trainers.ranks(); ++rank) {
    const auto mine = read(RankTable::Role::kTrainer, rank);
    RC_ASSERT(mine.status().ToString() == "ok");
    RC_ASSERT(mine->epoch == 7U && mine->rank == rank && mine->source_ranks == random.trainers.ranks());
    const auto [first, last] = table.OfSource(rank);
    RC_ASSERT(static_cast<int64_t>(mine->routes.size()) == last - first);
    for (int64_t i = first; i < last; ++i) {
      const RankTable::Route& route = mine->routes[static_cast<size_t>(i - first)];
      ExpectSame(random, *mine, route, table.At(i));
      RC_ASSERT(table.OfDestination(route.peer)[route.slot] == static_cast<uint32_t>(i));
    }
  }
  for (int rank = 0; rank < random.inference.ranks(); ++rank) {
    const auto mine = read(RankTable::Role::kInference, rank);
    RC_ASSERT(mine.status().ToString() == "ok");
    const auto incoming = table.OfDestination(rank);
    RC_ASSERT(mine->routes.size() == incoming.size());
    for (size_t slot = 0; slot < incoming.size(); ++slot) {
      RC_ASSERT(mine->routes[slot].slot == slot);
      ExpectSame(random, *mine, mine->routes[slot], table.At(incoming[slot]));
    }
  }
}

}  // namespace
}  // namespace weightcast::plan::testing
