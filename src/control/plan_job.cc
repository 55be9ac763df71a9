#include "control/plan_job.h"

#include <algorithm>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <utility>

#include "base/available.h"
#include "base/hash.h"
#include "base/out_of_memory.h"
#include "base/strings.h"
#include "plan/layout_builder.h"
#include "plan/links.h"
#include "plan/verify.h"
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
      return Error(Code::kInvalidArgument, protocol::ToString(rank.member.name), " registered ",
                   rank.registration->parts, " groups of tensors, but rank ", first.member.name.rank,
                   " registered ", first.registration->parts,
                   "; give all ranks of an engine the same number");
  }
  return Status::Ok();
}

/// The rules that all trainers of a model have; with a commit group those of its models together.
Result<NameRules> CommonRules(const std::vector<PlanMember>& trainers) {
  std::map<std::string_view, const PlanMember*> models;  // By group_model.
  for (const PlanMember& trainer : trainers) {
    const PlanMember& first = *models.emplace(trainer.registration->group_model, &trainer).first->second;
    if (trainer.registration->rules != first.registration->rules)
      return Error(Code::kInvalidArgument, protocol::ToString(trainer.member.name), " and ",
                   protocol::ToString(first.member.name),
                   " have registered different name rules; give all trainers the same");
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
  JobPlanner(const PlanJob& job, PlanOutput& output) : job_(job), output_(output) {}

  /// False: `output` has the error, and whose fault it is.
  bool Run() { return BuildLayouts() && CheckNames() && JoinLayouts() && MakeAndVerify(); }

  [[nodiscard]] const plan::Plan& plan() const { return plan_; }
  [[nodiscard]] const plan::Layout& trainers() const { return trainers_; }
  [[nodiscard]] const plan::Layout& inference() const { return inference_; }

 private:
  bool Fail(Status status, std::vector<SessionId> concerned) {
    output_.status = std::move(status);
    output_.concerned = std::move(concerned);
    return false;
  }
  [[nodiscard]] std::vector<SessionId> Everybody() const {
    std::vector<SessionId> all = SessionsOf(job_.sources);
    for (const auto& engine : job_.engines)
      for (const PlanMember& member : engine) all.push_back(member.session);
    return all;
  }
  /// Of an engine.
  [[nodiscard]] Status Named(size_t engine, const Status& status) const {
    return Error(status.code(), "engine ", job_.engines[engine].front().member.name.engine, ": ",
                 status.message());
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
      return Fail(Error(trainers.status().code(),
                        job_.from_engines ? "engines: " : "trainers: ", trainers.status().message()),
                  SessionsOf(job_.sources));
    trainers_ = std::move(*trainers);
    for (size_t i = 0; i < job_.engines.size(); ++i) {
      if (const Status status = CheckGroups(job_.engines[i]); !status.ok())
        return Fail(Named(i, status), SessionsOf(job_.engines[i]));
      auto engine = BuildLayout(job_.engines[i]);
      if (!engine.ok()) return Fail(Named(i, engine.status()), SessionsOf(job_.engines[i]));
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
      if (first.ok()) first = Named(i, status);
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
    return Fail(Named(engine, status.ok() ? joined.status() : status), SessionsOf(job_.engines[engine]));
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
      if (!status.ok()) return Fail(Named(i, status), Everybody());
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
  PlanOutput& output_;
  NameRules rules_;
  plan::Layout trainers_;
  std::vector<plan::Layout> engines_;
  plan::Layout inference_;
  plan::Plan plan_;
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

Result<PlanOutput> PlanAndEncode(const PlanJob& job) {
  PlanOutput output;
  output.epoch = job.epoch;
  JobPlanner planning(job, output);
  if (!planning.Run()) return output;
  const plan::RoutingTable& table = planning.plan().table;
  output.summary = Summary(job, planning);
  output.fused =
      job.from_engines
          ? job.fused
          : std::make_shared<const plan::FusedTensors>(plan::FusedTensorsOf(table, planning.inference()));
  output.status = MakeHandouts(
      job, {.trainers = planning.trainers(), .inference = planning.inference(), .table = table}, output);
  if (!output.status.ok()) output.handouts.clear();  // Too large to be sent.
  return output;
}

}  // namespace

PlanOutput RunPlan(const PlanJob& job) {
  auto output = OrOutOfMemory("the controller", "the plan", [&] { return PlanAndEncode(job); });
  if (output.ok()) return std::move(*output);
  PlanOutput failed;
  failed.epoch = job.epoch;
  failed.status = output.status();
  return failed;
}

}  // namespace weightcast::control
