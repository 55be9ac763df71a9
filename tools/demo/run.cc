#include "tools/demo/run.h"

#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <optional>
#include <set>

#include "base/available.h"
#include "base/random.h"
#include "base/strings.h"
#include "plan/models.h"
#include "tools/common/files.h"
#include "tools/common/stop.h"
#include "tools/demo/children.h"
#include "tools/demo/memory.h"
#include "tools/demo/messages.h"
#include "tools/demo/weights.h"
#include "weightcast/clock.h"

namespace weightcast::tools {
namespace {

constexpr double kGraceSeconds = 3;
// No process of a healthy demo is silent for so long, not even on a slow disk with a large model.
constexpr double kSilenceSeconds = 600;

/// The temporary folder of a demo. It goes when the demo has succeeded, or but for the logs when it failed.
class Workplace {
 public:
  static Result<Workplace> Make(bool keep) {
    WC_ASSIGN_OR_RETURN(auto folder, MakeTemporaryFolder());
    return Workplace(std::move(folder), keep);
  }
  Workplace(Workplace&& other) noexcept = default;
  ~Workplace() {
    std::error_code ignored;
    if (folder_.empty() || keep_) return;
    if (succeeded_)
      std::filesystem::remove_all(folder_, ignored);
    else
      std::filesystem::remove(weights(), ignored);
    // Goes too if nobody has written a log yet.
    rmdir(folder_.c_str());
  }
  [[nodiscard]] const std::filesystem::path& folder() const { return folder_; }
  [[nodiscard]] std::filesystem::path weights() const { return folder_ / "model.safetensors"; }
  void Succeeded() { succeeded_ = true; }

 private:
  Workplace(std::filesystem::path folder, bool keep) : folder_(std::move(folder)), keep_(keep) {}
  std::filesystem::path folder_;
  bool keep_;
  bool succeeded_ = false;
};

/// The processes of one demo and what they say.
class Director {
 public:
  Director(const Context& context, const DemoOptions& options, const std::filesystem::path& folder,
           std::string weights, const DemoWatcher& watcher)
      : context_(context),
        options_(options),
        folder_(folder),
        weights_(std::move(weights)),
        watcher_(watcher) {}
  ~Director() { EndChildren(children_, kGraceSeconds); }

  Result<DemoReport> Run();

 private:
  enum Role { kController, kTrainer, kInference };
  static constexpr const char* kRoleNames[] = {"controller", "trainer", "inference"};

  [[nodiscard]] size_t workers() const {
    return static_cast<size_t>(options_.cluster.trainers + options_.cluster.inference);
  }
  Status StartChild(Role role, int64_t rank);
  /// Waits until `count` events of these kinds have come; anything that goes wrong meanwhile is the result.
  Status Collect(size_t count, const std::set<DemoEvent::Kind>& kinds,
                 const std::function<void(size_t child, const DemoEvent&)>& take);
  Result<bool> ReadFrom(size_t child, const std::set<DemoEvent::Kind>& kinds,
                        const std::function<void(size_t child, const DemoEvent&)>& take);
  Status Publish(int64_t version, DemoReport& report);
  Status EndAll();
  Status FailureOf(Child& child, std::string_view what) const;
  void Step(std::string_view text) {
    if (watcher_.on_step)
      watcher_.on_step(static_cast<double>(steps_) / static_cast<double>(all_steps_), text);
  }

  const Context& context_;
  const DemoOptions& options_;
  const std::filesystem::path& folder_;
  const std::string weights_;
  const DemoWatcher& watcher_;
  const std::string token_ = StrCat(RandomId(), RandomId());
  std::string controller_;
  std::vector<Child> children_;
  std::set<std::string> transports_;
  size_t steps_ = 0;
  size_t all_steps_ = 1;
};

/// Settings of the children that the user has not chosen: this machine alone, patience when there are
/// many processes on few cores, and one plan for all engines.
std::map<std::string, std::string> ChildSettings(const Context& context, const DemoOptions& options) {
  std::map<std::string, std::string> settings = context.overrides;
  const auto prefer = [&](const char* name, const std::string& value) {
    const bool chosen = context.settings.Get(name) != Settings().Get(name);
    if (!chosen) settings.emplace(name, value);
  };
  prefer("bind", "127.0.0.1");
  prefer("log_level", "info");
  prefer("min_engines", StrCat(options.cluster.engine_count()));
  const int64_t processes = options.cluster.trainers + options.cluster.inference;
  if (processes > 4 * sysconf(_SC_NPROCESSORS_ONLN)) {
    prefer("lease", "20");
    prefer("timeout", "300");
    prefer("connect_timeout", "60");
    prefer("commit_timeout", "120");
  }
  settings["job"] = StrCat("demo-", getpid());
  return settings;
}

Status Director::StartChild(Role role, int64_t rank) {
  Child::Options child;
  child.name = role == kController ? "controller" : StrCat(kRoleNames[role], " ", rank);
  child.arguments = {"demo-worker", "--role",    kRoleNames[role], "--rank",
                     StrCat(rank),  "--weights", weights_};
  const auto options = ArgumentsOf(options_);
  child.arguments.insert(child.arguments.end(), options.begin(), options.end());
  auto settings = ChildSettings(context_, options_);
  settings["controller"] = role == kController ? "127.0.0.1:0" : controller_;
  for (const auto& [name, value] : settings) {
    std::string flag = "--" + name;
    std::replace(flag.begin(), flag.end(), '_', '-');
    child.arguments.push_back(StrCat(flag, "=", value));
  }
  child.environment = {{"WEIGHTCAST_TOKEN", token_}};
  std::string file = child.name;
  std::replace(file.begin(), file.end(), ' ', '-');
  child.log = folder_ / (file + ".log");
  WC_ASSIGN_OR_RETURN(auto started, Child::Start(std::move(child)));
  children_.push_back(std::move(started));
  return Status::Ok();
}

Status Director::FailureOf(Child& child, std::string_view what) const {
  return Error(Code::kPeerDead, child.name(), " (pid ", child.pid(), ") ", what, "; see its log ",
               child.log().string(), "; the other processes have been ended");
}

Result<bool> Director::ReadFrom(size_t child, const std::set<DemoEvent::Kind>& kinds,
                                const std::function<void(size_t child, const DemoEvent&)>& take) {
  WC_ASSIGN_OR_RETURN(const auto bytes, ReceiveDatagram(children_[child].fd(), Clock::now()));
  if (!bytes) {
    // Its socket closes a moment before it can be waited for.
    const bool ended = children_[child].WaitEnded(kGraceSeconds);
    return FailureOf(children_[child], ended ? children_[child].how() : "went silent");
  }
  WC_ASSIGN_OR_RETURN(const DemoEvent event, DecodeStruct<DemoEvent>(*bytes));
  if (event.kind == DemoEvent::Kind::kFailed) return FailureOf(children_[child], "failed: " + event.text);
  if (!kinds.contains(event.kind)) return false;
  take(child, event);
  return true;
}

Status Director::Collect(size_t count, const std::set<DemoEvent::Kind>& kinds,
                         const std::function<void(size_t child, const DemoEvent&)>& take) {
  std::vector<pollfd> polled;
  polled.reserve(children_.size() + 1);
  for (const Child& child : children_) polled.push_back({child.fd(), POLLIN, 0});
  polled.push_back({StopDescriptor(), POLLIN, 0});
  while (count > 0) {
    const int ready = poll(polled.data(), polled.size(), static_cast<int>(kSilenceSeconds * 1000));
    WC_RETURN_IF_ERROR(CheckStop());
    if (ready == 0)
      return Error(Code::kTimedOut, "the processes of the demo said nothing for ", kSilenceSeconds,
                   " s; see their logs in ", folder_.string());
    // Deaths first: what the others then complain about is their consequence.
    for (const short events : {short{POLLHUP}, short{POLLIN}}) {
      for (size_t i = 0; i < children_.size() && count > 0; ++i) {
        if ((polled[i].revents & events) == 0) continue;
        WC_ASSIGN_OR_RETURN(const bool taken, ReadFrom(i, kinds, take));
        polled[i].revents = 0;
        if (taken) --count;
      }
    }
  }
  return Status::Ok();
}

/// "shm" of "engine engine-0 rank 0: shm (mapped memory), 1 lane, ...".
std::string TransportOf(const std::string& connection) {
  const size_t colon = connection.find(": ");
  const std::string description = colon == std::string::npos ? connection : connection.substr(colon + 2);
  return description.substr(0, description.find_first_of(" ,:("));
}

Status Director::Publish(int64_t version, DemoReport& report) {
  const std::string order = EncodeStruct(DemoOrder{version});
  for (size_t i = 1; i <= static_cast<size_t>(options_.cluster.trainers); ++i)
    if (!SendDatagram(children_[i].fd(), order).ok()) return FailureOf(children_[i], "has ended");
  DemoUpdate update{.version = version, .sender_bytes = {}};
  size_t verified = 0;
  const auto take = [&](size_t, const DemoEvent& event) {
    ++steps_;
    if (event.kind == DemoEvent::Kind::kVerified) ++verified;
    if (event.kind == DemoEvent::Kind::kCommitted) {
      update.seconds = event.seconds;
      update.bytes = event.bytes;
      update.sender_bytes = event.sender_bytes;
      for (const std::string& line : event.connection_map) transports_.insert(TransportOf(line));
    }
    Step(StrCat("version ", version, " of ", options_.versions, ": ", verified, " of ",
                options_.cluster.inference, " inference ranks verified"));
  };
  WC_RETURN_IF_ERROR(Collect(workers(), {DemoEvent::Kind::kCommitted, DemoEvent::Kind::kVerified}, take));
  report.updates.push_back(std::move(update));
  return Status::Ok();
}

Status Director::EndAll() {
  const std::string order = EncodeStruct(DemoOrder{});
  // Workers first, so that they can take leave of a controller that is still there.
  for (const auto& [first, last] : {std::pair<size_t, size_t>{1, children_.size()}, {0, 1}}) {
    for (size_t i = first; i < last; ++i)
      if (!SendDatagram(children_[i].fd(), order).ok()) return FailureOf(children_[i], "has ended");
    for (size_t i = first; i < last; ++i) {
      pollfd polled{children_[i].fd(), POLLIN, 0};
      poll(&polled, 1, static_cast<int>(kSilenceSeconds * 1000 / 10));
      const auto outcome = ReadFrom(i, {}, [](size_t, const DemoEvent&) {});
      if (!children_[i].Ended() || !children_[i].succeeded()) return outcome.status();
    }
  }
  return Status::Ok();
}

Result<DemoReport> Director::Run() {
  const size_t trainers = static_cast<size_t>(options_.cluster.trainers);
  all_steps_ = workers() * static_cast<size_t>(options_.versions + 1);
  Step("starting the controller");
  WC_RETURN_IF_ERROR(StartChild(kController, 0));
  WC_RETURN_IF_ERROR(Collect(1, {DemoEvent::Kind::kListening},
                             [this](size_t, const DemoEvent& event) { controller_ = event.text; }));
  for (size_t rank = 0; rank < trainers; ++rank)
    WC_RETURN_IF_ERROR(StartChild(kTrainer, static_cast<int64_t>(rank)));
  for (int64_t rank = 0; rank < options_.cluster.inference; ++rank)
    WC_RETURN_IF_ERROR(StartChild(kInference, rank));
  WC_RETURN_IF_ERROR(Collect(workers(), {DemoEvent::Kind::kReady}, [this](size_t, const DemoEvent&) {
    ++steps_;
    Step(StrCat(steps_, " of ", workers(), " workers are ready"));
  }));
  DemoReport report;
  for (int64_t version = 1; version <= options_.versions; ++version)
    WC_RETURN_IF_ERROR(Publish(version, report));
  WC_RETURN_IF_ERROR(EndAll());
  report.transport = Join(transports_, "+");
  return report;
}

}  // namespace

Result<DemoReport> RunDemo(const Context& context, const DemoOptions& options, bool keep,
                           const DemoWatcher& watcher) {
  WC_RETURN_IF_ERROR(CheckCluster(options.cluster));
  WC_RETURN_IF_ERROR(CheckDevices(options));
  WC_ASSIGN_OR_RETURN(const auto tensors, DemoTensors(options));
  WC_ASSIGN_OR_RETURN(Workplace workplace, Workplace::Make(keep));
  WC_ASSIGN_OR_RETURN(const DemoMemory memory, MemoryOf(options, tensors, workplace.folder()));
  const uint64_t available = AvailableMemory();
  if (watcher.on_line) watcher.on_line(Describe(memory, available));
  WC_RETURN_IF_ERROR(CheckFits(memory, available, options));
  std::string weights = options.checkpoint;
  if (weights.empty()) {
    WC_RETURN_IF_ERROR(WriteGenerated(workplace.weights(), tensors, watcher));
    weights = workplace.weights();
  }
  Director director(context, options, workplace.folder(), weights, watcher);
  WC_ASSIGN_OR_RETURN(DemoReport report, director.Run());
  report.tensors = static_cast<int64_t>(tensors.size());
  report.bytes_per_replica = BytesOf(tensors);
  workplace.Succeeded();
  return report;
}

}  // namespace weightcast::tools
