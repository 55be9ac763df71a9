#include "control/plan_job.h"

#include <algorithm>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <utility>

#include "base/available.h"
#include "base/hash.h"
#include "base/strings.h"
#include "plan/layout_builder.h"
#include "plan/links.h"
#include "plan/table_format.h"
#include "plan/verify.h"
#include "protocol/identity.h"
#include "weightcast/rules.h"

namespace weightcast::control {
namespace {

std::vector<SessionId> SessionsOf(const std::vector<PlanMember>& members) {
  std::vector<SessionId> sessions;
  for (const PlanMember& member : members) sessions.push_back(member.session);
  return sessions;
}

/// Each engine's names have been checked by themselves.
const std::vector<std::string> kAnyName = {"{**}"};

/// An error and whose fault it is.
struct Failure {
  Status status;
  std::vector<SessionId> concerned;
};

/// Of names, dtypes and shapes: hundreds of engines are mostly alike.
uint64_t HashOfTensors(const plan::Layout& layout) {
  constexpr uint64_t kPrime = 0x9e3779b97f4a7c15ULL;
  uint64_t hash = 0;
  for (int t = 0; t < layout.tensors(); ++t) {
    const TensorInfo& tensor = layout.tensor(t);
    hash = hash * kPrime + Hash64(tensor.name) + static_cast<uint64_t>(tensor.dtype);
    for (const int64_t extent : tensor.shape) hash = hash * kPrime + static_cast<uint64_t>(extent);
    hash = hash * kPrime + (layout.not_sent(t) ? 1 : 0);
  }
  return hash;
}

using Takes = std::function<bool(const PlanMember&, const protocol::ShardInfo&)>;

/// Of the shards that `takes` takes; of all without it.
Result<plan::Layout> BuildLayout(const std::vector<PlanMember>& members, const Takes& takes = {}) {
  plan::LayoutBuilder builder(static_cast<int>(members.size()));
  for (size_t rank = 0; rank < members.size(); ++rank) {
    std::vector<plan::Holding> holdings;
    for (const protocol::ShardInfo& shard : members[rank].registration->shards) {
      if (takes && !takes(members[rank], shard)) continue;
      if (shard.declared) {
        builder.DeclareNotSent(shard.tensor.name);
      } else {
        holdings.push_back({.tensor = shard.tensor, .box = shard.box});
      }
    }
    WC_RETURN_IF_ERROR(builder.AddRank(static_cast<int>(rank), holdings));
  }
  return builder.Build();
}

/// Which engine cuts which tensor otherwise than most of the engines that hold it. (Boxes as text.)
std::set<std::pair<std::string_view, std::string_view>> OddCuts(const std::vector<PlanMember>& engines) {
  using Cut = std::set<std::string>;
  std::map<std::string_view, std::map<std::string_view, Cut>> cuts;  // By tensor, then by engine.
  for (const PlanMember& rank : engines)
    for (const protocol::ShardInfo& shard : rank.registration->shards)
      if (!shard.declared) cuts[shard.tensor.name][rank.member.name.engine].insert(ToString(shard.box));
  std::set<std::pair<std::string_view, std::string_view>> odd;
  for (const auto& [tensor, by_engine] : cuts) {
    std::map<Cut, size_t> users;
    for (const auto& [engine, cut] : by_engine) ++users[cut];
    const auto usual =
        std::ranges::max_element(users, {}, [](const auto& cut_and_count) { return cut_and_count.second; });
    for (const auto& [engine, cut] : by_engine)
      if (cut != usual->first) odd.emplace(engine, tensor);
  }
  return odd;
}

/// What engines give to one that lacks it: of the tensors that are wanted; where they cut a tensor
/// differently (another tensor parallelism), from those that cut it as most do, for the sources of a tensor
/// have equal shards or disjoint ones.
Result<plan::Layout> BuildGivenLayout(const std::vector<PlanMember>& sources,
                                      const std::set<std::string>& wanted) {
  auto all = BuildLayout(sources, [&](const PlanMember&, const protocol::ShardInfo& shard) {
    return wanted.contains(shard.tensor.name);
  });
  if (all.ok()) return all;
  const auto odd = OddCuts(sources);
  if (odd.empty()) return all;
  return BuildLayout(sources, [&](const PlanMember& source, const protocol::ShardInfo& shard) {
    return wanted.contains(shard.tensor.name) &&
           !odd.contains({source.member.name.engine, shard.tensor.name});
  });
}

/// The ranks of an engine hand on and are granted group after group together.
Status CheckGroups(const std::vector<PlanMember>& engine) {
  const PlanMember& first = engine.front();
  for (const PlanMember& rank : engine) {
    if (rank.registration->parts != first.registration->parts)
      return {Code::kInvalidArgument,
              StrCat(protocol::ToString(rank.member.name), " registered ", rank.registration->parts,
                     " groups, and rank ", first.member.name.rank, " ", first.registration->parts,
                     "; give all ranks of an engine the same number")};
  }
  return Status::Ok();
}

/// The rules that all trainers of a model have; with a commit group those of its models together.
Result<NameRules> CommonRules(const std::vector<PlanMember>& trainers) {
  std::map<std::string_view, const PlanMember*> models;  // By group_model.
  for (const PlanMember& trainer : trainers) {
    const PlanMember& first = *models.emplace(trainer.registration->group_model, &trainer).first->second;
    if (trainer.registration->rules != first.registration->rules)
      return Status(
          Code::kInvalidArgument,
          StrCat(protocol::ToString(trainer.member.name), " and ", protocol::ToString(first.member.name),
                 " have registered different name rules; give all trainers the same"));
  }
  NameRules all;
  for (const auto& [model, trainer] : models) {
    if (trainer->registration->rules.empty()) continue;
    WC_ASSIGN_OR_RETURN(NameRules rules, ParseRules(trainer->registration->rules));
    std::ranges::move(rules.rules, std::back_inserter(all.rules));
  }
  return all;
}

/// The layouts of a job and what has been planned for them.
class JobPlanner {
 public:
  explicit JobPlanner(const PlanJob& job) : job_(job) {}

  /// False: failure() tells.
  bool Run() { return BuildLayouts() && CheckNames() && JoinLayouts() && MakeAndVerify(); }
  [[nodiscard]] const Failure& failure() const { return failure_; }

  [[nodiscard]] const plan::Plan& plan() const { return plan_; }
  [[nodiscard]] const plan::Layout& trainers() const { return trainers_; }
  [[nodiscard]] const plan::Layout& inference() const { return inference_; }

 private:
  bool Fail(Status status, std::vector<SessionId> concerned) {
    failure_ = {.status = std::move(status), .concerned = std::move(concerned)};
    return false;
  }
  [[nodiscard]] std::vector<SessionId> Everybody() const {
    std::vector<SessionId> all = SessionsOf(job_.sources);
    for (const auto& engine : job_.engines)
      for (const PlanMember& member : engine) all.push_back(member.session);
    return all;
  }
  [[nodiscard]] std::string NameOf(size_t engine) const {
    return StrCat("engine ", job_.engines[engine].front().member.name.engine);
  }

  /// What the destinations have.
  [[nodiscard]] std::set<std::string> Wanted() const {
    std::set<std::string> names;
    for (const auto& engine : job_.engines)
      for (const PlanMember& member : engine)
        for (const protocol::ShardInfo& shard : member.registration->shards) names.insert(shard.tensor.name);
    return names;
  }

  bool BuildLayouts() {
    auto rules = job_.from_engines ? NameRules{} : CommonRules(job_.sources);
    if (!rules.ok()) return Fail(rules.status(), SessionsOf(job_.sources));
    rules_ = std::move(*rules);
    auto trainers = job_.from_engines ? BuildGivenLayout(job_.sources, Wanted()) : BuildLayout(job_.sources);
    if (!trainers.ok())
      return Fail({trainers.status().code(),
                   StrCat(job_.from_engines ? "engines: " : "trainers: ", trainers.status().message())},
                  SessionsOf(job_.sources));
    trainers_ = std::move(*trainers);
    for (size_t i = 0; i < job_.engines.size(); ++i) {
      if (const Status status = CheckGroups(job_.engines[i]); !status.ok())
        return Fail({status.code(), StrCat(NameOf(i), ": ", status.message())}, SessionsOf(job_.engines[i]));
      auto engine = BuildLayout(job_.engines[i]);
      if (!engine.ok())
        return Fail({engine.status().code(), StrCat(NameOf(i), ": ", engine.status().message())},
                    SessionsOf(job_.engines[i]));
      engines_.push_back(std::move(*engine));
    }
    return true;
  }

  /// Each engine takes every tensor of the trainers but those that it says it does not: one that it has
  /// forgotten would never be updated there, though other engines have it.
  bool CheckNames() {
    if (job_.from_engines) return true;  // Only what is wanted was asked for.
    std::map<std::pair<uint64_t, std::vector<std::string>>, Status> known;
    Status first;
    std::vector<SessionId> concerned;
    for (size_t i = 0; i < engines_.size(); ++i) {
      const std::vector<std::string> unwanted = UnwantedBy(i);
      const auto [at, is_new] = known.try_emplace({HashOfTensors(engines_[i]), unwanted});
      if (is_new) at->second = plan::ResolveLinks(rules_, trainers_, engines_[i], unwanted).status();
      const Status& status = at->second;
      if (status.ok()) continue;
      if (first.ok()) first = {status.code(), StrCat(NameOf(i), ": ", status.message())};
      for (const PlanMember& member : job_.engines[i]) concerned.push_back(member.session);
    }
    return first.ok() || Fail(first, std::move(concerned));
  }

  [[nodiscard]] std::vector<std::string> UnwantedBy(size_t engine) const {
    std::set<std::string> patterns;
    for (const PlanMember& member : job_.engines[engine])
      patterns.insert(member.registration->unwanted.begin(), member.registration->unwanted.end());
    return {patterns.begin(), patterns.end()};
  }

  bool JoinLayouts() {
    auto joined = plan::JoinEngines(engines_);
    if (joined.ok()) {
      inference_ = std::move(*joined);
      return true;
    }
    const auto [engine, status] = FirstMisfit(
        [](const std::vector<plan::Layout>& layouts) { return plan::JoinEngines(layouts).status(); });
    const Status& reason = status.ok() ? joined.status() : status;
    return Fail({reason.code(), StrCat(NameOf(engine), ": ", reason.message())},
                SessionsOf(job_.engines[engine]));
  }

  /// Engines from the one that is here longest: sessions are numbered as they come.
  [[nodiscard]] std::vector<size_t> ByAge() const {
    std::vector<std::pair<SessionId, size_t>> order;
    for (size_t i = 0; i < job_.engines.size(); ++i) {
      SessionId newest = 0;
      for (const PlanMember& member : job_.engines[i]) newest = std::max(newest, member.session);
      order.emplace_back(newest, i);
    }
    std::sort(order.begin(), order.end());
    std::vector<size_t> engines;
    for (const auto& [session, engine] : order) engines.push_back(engine);
    return engines;
  }

  /// The first engine that does not fit together with the older ones, and why; otherwise the newest.
  template <typename Fits>
  [[nodiscard]] std::pair<size_t, Status> FirstMisfit(Fits fits) const {
    std::vector<plan::Layout> older;
    const std::vector<size_t> order = ByAge();
    for (const size_t engine : order) {
      older.push_back(engines_[engine]);
      if (Status status = fits(older); !status.ok()) return {engine, status};
    }
    return {order.back(), Status::Ok()};
  }

  [[nodiscard]] plan::PlanRequest RequestFor(const plan::Layout& inference) const {
    return {.trainers = trainers_,
            .inference = inference,
            .rules = rules_,
            .strategy = job_.strategy,
            .memory = MemoryToUse(job_.memory),
            .unwanted = kAnyName};
  }

  bool MakeAndVerify() {
    for (size_t i = 0; job_.from_engines && i < engines_.size(); ++i) {
      const Status status = plan::CheckCutsAmongEngines(job_.fused.get(), trainers_, engines_[i]);
      if (!status.ok()) return Fail({status.code(), StrCat(NameOf(i), ": ", status.message())}, Everybody());
    }
    const plan::PlanRequest request = RequestFor(inference_);
    auto made = plan::MakePlan(request);
    if (made.status().code() == Code::kExhausted) return Fail(made.status(), {});
    if (!made.ok()) return Fail(made.status(), WhoseFault());
    plan_ = std::move(*made);
    if (Status status = plan::Verify(request, plan_.table); !status.ok()) return Fail(status, Everybody());
    return true;
  }

  [[nodiscard]] Status TryPlan(const plan::Layout& inference) const {
    return plan::MakePlan(RequestFor(inference)).status();
  }

  /// Engines with which the trainers cannot be planned even alone; if there is none, the first that cannot be
  /// planned with the older ones. The trainers' layout is one: they may stay.
  [[nodiscard]] std::vector<SessionId> WhoseFault() const {
    std::vector<SessionId> concerned;
    for (size_t i = 0; i < engines_.size(); ++i) {
      if (engines_.size() > 1 && TryPlan(engines_[i]).ok()) continue;
      for (const PlanMember& member : job_.engines[i]) concerned.push_back(member.session);
    }
    if (!concerned.empty()) return concerned;
    const auto fits = [this](const std::vector<plan::Layout>& layouts) {
      const auto joined = plan::JoinEngines(layouts);
      return joined.ok() ? TryPlan(*joined) : joined.status();
    };
    return SessionsOf(job_.engines[FirstMisfit(fits).first]);
  }

  const PlanJob& job_;
  Failure failure_;
  NameRules rules_;
  plan::Layout trainers_;
  std::vector<plan::Layout> engines_;
  plan::Layout inference_;
  plan::Plan plan_;
};

/// Turns a plan into what each member is told.
class HandoutMaker {
 public:
  HandoutMaker(const PlanJob& job, const JobPlanner& planning, PlanOutput& output)
      : job_(job),
        planning_(planning),
        output_(output),
        encoder_(planning.trainers(), planning.inference(), planning.plan().table) {
    for (const auto& engine : job.engines)
      for (const PlanMember& member : engine) destinations_.push_back(&member);
  }

  Status Run() {
    FindPeers();
    if (!job_.tables.empty()) RemoveOldTables(job_);
    for (size_t rank = 0; rank < job_.sources.size(); ++rank) {
      WC_ASSIGN_OR_RETURN(auto packets, PlanFor(protocol::Role::kTrainer, rank, targets_[rank]));
      for (const int target : targets_[rank]) {
        WC_ASSIGN_OR_RETURN(SharedPacket landing, LandingOf(static_cast<size_t>(target)));
        packets.push_back(std::move(landing));
      }
      output_.handouts.push_back({job_.sources[rank].session, std::move(packets)});
    }
    for (size_t number = 0; number < destinations_.size(); ++number) {
      WC_ASSIGN_OR_RETURN(auto packets, PlanFor(protocol::Role::kInference, number, sources_[number]));
      output_.handouts.push_back({destinations_[number]->session, std::move(packets)});
    }
    return Status::Ok();
  }

 private:
  void FindPeers() {
    const plan::RoutingTable& table = planning_.plan().table;
    targets_.resize(job_.sources.size());
    sources_.resize(destinations_.size());
    landings_.resize(destinations_.size());
    for (size_t rank = 0; rank < job_.sources.size(); ++rank) {
      const auto [first, last] = table.OfSource(static_cast<int>(rank));
      for (int64_t route = first; route < last; ++route) {
        const int target = table.View(route).dst_rank;
        targets_[rank].insert(target);
        sources_[static_cast<size_t>(target)].insert(static_cast<int>(rank));
      }
    }
  }

  Result<std::vector<SharedPacket>> PlanFor(protocol::Role role, size_t number, const std::set<int>& peers) {
    const bool trainer = role == protocol::Role::kTrainer;
    using Role = plan::RankTable::Role;
    WC_ASSIGN_OR_RETURN(std::string table, encoder_.Encode(trainer ? Role::kTrainer : Role::kInference,
                                                           static_cast<int>(number), job_.epoch));
    protocol::Plan message{.epoch = job_.epoch,
                           .run = job_.run,
                           .table = std::move(table),
                           .table_file = {},
                           .peers = {},
                           .gives = trainer && job_.from_engines};
    if (!job_.tables.empty()) {
      auto file = WriteTable(job_, role, number, message.table);
      if (file.ok()) {
        message.table_file = std::move(*file);
        message.table.clear();
      } else {
        output_.warning = StrCat(file.status().message(), "; until then tables go by network");
      }
    }
    const size_t others = trainer ? destinations_.size() : job_.sources.size();
    for (size_t peer = 0; peer < others; ++peer) {
      const PlanMember& other = trainer ? *destinations_[peer] : job_.sources[peer];
      protocol::Member& told = message.peers.emplace_back();
      told.name = other.member.name;
      if (!peers.contains(static_cast<int>(peer))) continue;
      told = other.member;
      if (trainer) told.key = KeyFor(job_.sources[number].member, other);
    }
    WC_ASSIGN_OR_RETURN(SharedPacket packet, MakePacket(protocol::ControllerMessage(std::move(message))));
    return std::vector<SharedPacket>{std::move(packet)};
  }

  /// Sources connect to destinations.
  [[nodiscard]] std::string KeyFor(const protocol::Member& source, const PlanMember& destination) const {
    return protocol::PairKey(destination.secret,
                             protocol::IdentityOf(job_.job, source.name, source.incarnation));
  }

  /// One packet for all trainers that write to this destination.
  Result<SharedPacket> LandingOf(size_t number) {
    SharedPacket& made = landings_[number];
    if (made == nullptr) {
      protocol::PeerLanding message{.destination = static_cast<uint32_t>(number),
                                    .map = *destinations_[number]->landing};
      message.map.epoch = job_.epoch;
      WC_ASSIGN_OR_RETURN(made, MakePacket(protocol::ControllerMessage(std::move(message))));
    }
    return made;
  }

  const PlanJob& job_;
  const JobPlanner& planning_;
  PlanOutput& output_;
  const plan::TableEncoder encoder_;
  std::vector<const PlanMember*> destinations_;
  std::vector<std::set<int>> targets_;  ///< Per trainer.
  std::vector<std::set<int>> sources_;  ///< Per destination.
  std::vector<SharedPacket> landings_;
};

std::string Summary(const PlanJob& job, const JobPlanner& planning) {
  const plan::PlanReport& report = planning.plan().report;
  return StrCat(job.model, ": plan: epoch ", job.epoch, ", ", planning.inference().tensors(), " tensors, ",
                job.sources.size(), job.from_engines ? " giving ranks to " : " trainers to ",
                job.engines.size(), " engines, ", report.routes, " routes, ",
                HumanBytes(static_cast<double>(report.total_bytes)), ", busiest sender ",
                report.sender_imbalance, " of the mean, busiest link ",
                HumanBytes(static_cast<double>(report.makespan_bytes)), " (lower bound ",
                HumanBytes(static_cast<double>(report.lower_bound_bytes)), ")");
}

}  // namespace

PlanOutput RunPlan(const PlanJob& job) {
  PlanOutput output;
  output.epoch = job.epoch;
  JobPlanner planning(job);
  if (!planning.Run()) {
    output.status = planning.failure().status;
    output.concerned = planning.failure().concerned;
    return output;
  }
  output.summary = Summary(job, planning);
  output.fused = job.from_engines ? job.fused
                                  : std::make_shared<const plan::FusedTensors>(
                                        plan::FusedTensorsOf(planning.plan().table, planning.inference()));
  output.status = HandoutMaker(job, planning, output).Run();
  if (!output.status.ok()) output.handouts.clear();  // Too large to be sent.
  return output;
}

}  // namespace weightcast::control
