#include "tools/bench/register.h"

#include <unistd.h>

#include <algorithm>
#include <condition_variable>
#include <cstdlib>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "base/process.h"
#include "base/random.h"
#include "base/strings.h"
#include "control/client.h"
#include "endpoint/transfers/descriptor.h"
#include "plan/models.h"
#include "protocol/identity.h"
#include "tools/bench/processes.h"
#include "tools/common/codec.h"
#include "tools/demo/options.h"
#include "weightcast/clock.h"
#include "weightcast/worker.h"
#include "worker/shards.h"
#include "worker/table_file.h"

namespace weightcast::tools {
namespace {

constexpr double kRegisterSeconds = 120;

double NowSeconds() { return Seconds(Clock::now().time_since_epoch()); }
TimePoint RegisterDeadline() { return Clock::now() + FromSeconds(kRegisterSeconds); }

/// What one process has seen.
struct Seen {
  double last = 0;  ///< Seconds of this host's clock: when the last of its workers had its table.
  uint32_t epoch = 0;
  uint64_t routes = 0;  ///< Of trainers' tables: each route is in one of them.
  uint64_t table_bytes = 0;
};
constexpr auto Fields(Is<Seen> auto& m, auto&& visit) {
  return visit(F("last", m.last), F("epoch", m.epoch), F("routes", m.routes),
               F("table_bytes", m.table_bytes));
}

/// The workers of one process count here what they have.
class Tally {
 public:
  void Add(bool trainer, const plan::RankTable& table, uint64_t table_bytes) {
    const std::lock_guard lock(mutex_);
    ++workers_;
    seen_.last = NowSeconds();
    seen_.epoch = std::max(seen_.epoch, table.epoch);
    if (trainer) seen_.routes += table.routes.size();
    seen_.table_bytes += table_bytes;
    changed_.notify_all();
  }
  void Fail(const Status& reason) {
    const std::lock_guard lock(mutex_);
    if (failure_.ok()) failure_ = reason;
    changed_.notify_all();
  }
  Result<Seen> WaitFor(size_t workers, TimePoint deadline) {
    std::unique_lock lock(mutex_);
    const bool over =
        changed_.wait_until(lock, deadline, [&] { return workers_ == workers || !failure_.ok(); });
    if (!failure_.ok()) return failure_;
    if (!over)
      return Error(Code::kTimedOut, "only ", workers_, " of ", workers,
                   " workers of a process have got their tables within the time "
                   "limit; run the benchmark where cores are idle");
    return seen_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  size_t workers_ = 0;
  Seen seen_;
  Status failure_;
};

/// A trainer or an inference rank as its controller sees it.
class SimulatedWorker {
 public:
  /// `layout`: of the trainers, or of this rank's engine.
  SimulatedWorker(const Cluster& cluster, const plan::Layout& layout, protocol::WorkerName name, Tally& tally)
      : cluster_(cluster),
        tally_(tally),
        name_(std::move(name)),
        secret_(protocol::NewSecret()),
        incarnation_(protocol::IncarnationOf(secret_)) {
    uint64_t at = 0;
    for (int i = 0; i < layout.tensors(); ++i) {
      auto box = layout.BoxOf(i, static_cast<int>(name_.rank));
      if (!box) continue;
      const TensorInfo& tensor = layout.tensor(i);
      places_.places.push_back({.region = 0, .offset = at, .shard = worker::ShardKey(tensor.name, *box)});
      at += static_cast<uint64_t>(BytesOf(tensor.dtype, ElementsOf(box->size)));
      registration_.shards.push_back({.tensor = tensor, .box = std::move(*box)});
    }
    places_.regions.push_back(DescribeMemory(at));
    world_size_ = static_cast<uint32_t>(layout.ranks());
  }

  Status Start(const Settings& settings) {
    control::ClientOptions options;
    options.settings = settings;
    tables_ = settings.tables;
    options.hello.model = "policy";
    options.hello.name = name_;
    options.hello.world_size = world_size_;
    options.hello.incarnation = incarnation_;
    options.hello.secret = secret_;
    options.hello.addresses = {"127.0.0.1:9"};
    options.hello.host = HostName();
    options.on_message = [this](protocol::ControllerMessage message) {
      std::visit([this](auto& one) { On(one); }, message);
    };
    options.on_state = [this](control::LinkState state, const Status& reason) {
      if (state == control::LinkState::kEnded) tally_.Fail(reason);
    };
    const std::lock_guard lock(mutex_);
    WC_ASSIGN_OR_RETURN(client_, control::ControlClient::Start(std::move(options)));
    return Status::Ok();
  }

 private:
  [[nodiscard]] bool trainer() const { return name_.role == protocol::Role::kTrainer; }

  /// Memory that is not there, described as a rank's that is.
  [[nodiscard]] std::string DescribeMemory(uint64_t bytes) const {
    return endpoint::EncodeDescriptor(
        {.name = {.owner = incarnation_, .id = 1, .generation = 1},
         .access = Access::kGranted,
         .registered = bytes,
         .offset = 0,
         .length = bytes,
         .keys = {{"shm", std::string(16, 'k')}, {"tcp", std::string(8, 'k')}}});
  }

  void On(const protocol::Welcome&) {
    const std::lock_guard lock(mutex_);
    client_->Send(registration_);
    if (!trainer()) client_->Send(places_);
  }
  void On(const protocol::Refused& refused) { tally_.Fail(refused.reason); }
  void On(const protocol::Plan& plan) {
    const auto role = trainer() ? plan::RankTable::Role::kTrainer : plan::RankTable::Role::kInference;
    const auto table = worker::LoadTable(plan, tables_, role);
    if (!table.ok()) return tally_.Fail(table.status());
    // Plans for those who were there before the others are read like the last, which is of everyone.
    const bool everyone =
        table->source_ranks == cluster_.trainers && table->destination_ranks == cluster_.inference;
    if (everyone && !std::exchange(done_, true)) tally_.Add(trainer(), *table, plan.table.size());
  }
  void On(const auto&) {}

  const Cluster& cluster_;
  Tally& tally_;
  const protocol::WorkerName name_;
  const std::string secret_;
  const uint64_t incarnation_;
  uint32_t world_size_ = 1;
  std::string tables_;
  protocol::Register registration_;
  protocol::LandingMap places_;
  bool done_ = false;
  std::mutex mutex_;  ///< Until the client is there, its callbacks wait.
  std::unique_ptr<control::ControlClient> client_;
};

/// What all processes of a round know.
struct Job {
  const RegisterCase& what;
  std::vector<TensorInfo> tensors;
  std::map<std::string, std::string> overrides;
};

Result<Job> MakeJob(const RegisterCase& what, const Context& context) {
  WC_RETURN_IF_ERROR(CheckCluster(what.cluster));
  WC_ASSIGN_OR_RETURN(const DType dtype, ParseDType(what.dtype));
  WC_ASSIGN_OR_RETURN(auto tensors, plan::PresetModel(what.model, dtype));
  Job job{.what = what, .tensors = std::move(tensors), .overrides = PatientSettings(context)};
  job.overrides["job"] = StrCat("bench-", getpid());
  job.overrides["controller"] = "127.0.0.1:0";
  return job;
}

Status RunController(const Job& job, const BenchParent& parent) {
  WC_ASSIGN_OR_RETURN(const auto controller, Controller::Start({.listen = {}, .settings = job.overrides}));
  WC_RETURN_IF_ERROR(parent.Report(controller->address()));
  return parent.Next().status();
}

/// Workers `process`, `process` + processes and so on.
Status RunWorkers(const Job& job, const std::string& controller, int64_t process, const BenchParent& parent) {
  const Cluster& cluster = job.what.cluster;
  WC_ASSIGN_OR_RETURN(Settings settings, Settings::From(job.overrides));
  settings.controller = controller;
  WC_ASSIGN_OR_RETURN(const plan::Layout trainers, TrainerLayout(cluster, job.tensors));
  WC_ASSIGN_OR_RETURN(const plan::Layout engine, EngineLayout(cluster, job.tensors));
  Tally tally;
  std::vector<std::unique_ptr<SimulatedWorker>> workers;
  for (int64_t i = process; i < job.what.workers(); i += job.what.processes) {
    protocol::WorkerName name{
        .role = protocol::Role::kTrainer, .engine = {}, .rank = static_cast<uint32_t>(i)};
    const int number = static_cast<int>(i - cluster.trainers);
    if (number >= 0) {
      name = {.role = protocol::Role::kInference,
              .engine = EngineName(number / cluster.ranks_per_engine()),
              .rank = static_cast<uint32_t>(number % cluster.ranks_per_engine())};
    }
    workers.push_back(
        std::make_unique<SimulatedWorker>(cluster, number >= 0 ? engine : trainers, std::move(name), tally));
  }
  WC_RETURN_IF_ERROR(parent.Report({}));
  WC_RETURN_IF_ERROR(parent.Next().status());
  for (const auto& worker : workers) WC_RETURN_IF_ERROR(worker->Start(settings));
  WC_ASSIGN_OR_RETURN(const Seen seen, tally.WaitFor(workers.size(), RegisterDeadline()));
  WC_RETURN_IF_ERROR(parent.Report(EncodeStruct(seen)));
  // They stay, so that the others report nobody's loss.
  return parent.Next().status();
}

}  // namespace

Result<RegisterTimes> MeasureRegister(const RegisterCase& what, const Context& context) {
  WC_ASSIGN_OR_RETURN(const Job job, MakeJob(what, context));
  setenv("WEIGHTCAST_TOKEN", StrCat(RandomId(), RandomId()).c_str(), /*overwrite=*/1);
  BenchProcesses workers;
  BenchProcesses controller;  // Ends before its workers, whose loss it would tell.
  WC_RETURN_IF_ERROR(controller.Start([&](const BenchParent& parent) { return RunController(job, parent); }));
  WC_ASSIGN_OR_RETURN(const auto addresses, controller.Gather(RegisterDeadline()));
  for (int64_t process = 0; process < what.processes; ++process) {
    WC_RETURN_IF_ERROR(workers.Start(
        [&](const BenchParent& parent) { return RunWorkers(job, addresses.front(), process, parent); }));
  }
  WC_RETURN_IF_ERROR(workers.Gather(RegisterDeadline()).status());
  const double begin = NowSeconds();
  WC_RETURN_IF_ERROR(workers.TellAll("go"));
  WC_ASSIGN_OR_RETURN(const auto reports, workers.Gather(RegisterDeadline() + FromSeconds(kRegisterSeconds)));
  double end = begin;
  RegisterTimes times;
  for (const std::string& report : reports) {
    WC_ASSIGN_OR_RETURN(const Seen seen, DecodeStruct<Seen>(report));
    end = std::max(end, seen.last);
    times.plans = std::max(times.plans, seen.epoch);
    times.routes += seen.routes;
    times.table_bytes += seen.table_bytes;
  }
  times.seconds = end - begin;
  return times;
}

}  // namespace weightcast::tools
