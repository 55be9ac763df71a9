#include "soak/role.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <random>
#include <string_view>
#include <thread>

#include "base/log.h"
#include "base/strings.h"
#include "fake_cuda/fake_cuda.h"
#include "soak/tensors.h"
#include "weightcast/worker.h"

namespace weightcast::soak {
namespace {

using test::Cut;

constexpr double kCallPatience = 60;
constexpr double kWait = 0.2;
constexpr double kFinish = 2;  // Then it looks whether the process ends.
/// Failed calls in a row after which a process gives up and wants to be started again.
constexpr int kTries = 40;
/// Five leases.
constexpr int kBlockMs = 1500;

/// Small enough to be compared all the time; the policy has several transfers. They have the same names. Of
/// device memory there is less: a row of a column's cut is an operation, and over tcp each costs two copies.
std::vector<TensorInfo> Model(std::string_view name, Where where) {
  const int64_t rows = name == "draft" ? 40 : where == Where::kHost ? 640 : 160;
  return {{"embed", DType::kU64, {rows, 256}}, {"norm", DType::kU64, {256}}, {"scale", DType::kU64, {}}};
}

void Rest(int milliseconds) { std::this_thread::sleep_for(std::chrono::milliseconds(milliseconds)); }

/// One process of a cluster.
class Role {
 public:
  Role(Board& board, size_t index, const Setup& setup)
      : board_(board), mine_(board.process[index]), place_(kPlaces[index]), setup_(setup) {
    options_.controller = setup.controller;
    options_.rank = place_.rank;
    options_.world_size = place_.ranks;
    options_.engine = place_.engine;
    options_.settings = setup.settings;
    if (setup.holding != Holding::kModels) return;
    options_.model = place_.rank == 0 ? "draft" : "policy";
    options_.commit_group = {{"draft", 1}, {"policy", 1}};
    options_.rank = 0;
    options_.world_size = 1;
  }

  ~Role() {
    over_ = true;
    if (obeying_.joinable()) obeying_.join();
  }
  Role(const Role&) = delete;
  Role& operator=(const Role&) = delete;

  /// Before Run...: where the weights are to be.
  int UseDevice(int ordinal) {
    auto opened = UsedDevice::Open(ordinal);
    if (!opened.ok()) return Note(opened.status());
    device_ = std::move(*opened);
    obeying_ = std::thread([this] {
      while (!over_) {
        Obey();
        Rest(1);
      }
    });
    return 0;
  }

  int RunController() {
    auto controller = Controller::Start({.listen = setup_.controller, .settings = setup_.settings});
    if (!controller.ok()) return Note(controller.status());
    mine_.stage = Stage::kServing;
    while (!board_.stop) Rest(2);
    (*controller)->Stop();
    return 0;
  }

  /// Publishes whatever number the board says.
  int RunTrainer() {
    const Cut cut = setup_.holding == Holding::kSharded ? Cut::kRows : Cut::kWhole;
    // Outlives the trainer, as all memory that is registered.
    auto weights = Tensors::Make(Model(options_.model, setup_.where), cut, options_.rank, options_.world_size,
                                 device_.get());
    if (!weights.ok()) return Note(weights.status());
    auto trainer = Trainer::Connect(options_);
    if (!trainer.ok()) return Note(trainer.status());
    if (Status status = (*trainer)->Register({.shards = (*weights)->shards()}); !status.ok())
      return Note(status);
    int failures = 0;
    for (int64_t last = -1; !board_.stop;) {
      mine_.stage = Stage::kPlanning;
      const int64_t number = board_.publish;
      if (number <= last) {
        Rest(1);
        continue;
      }
      last = number;
      // As a kernel of the trainer's would fail.
      if (Status filled = (*weights)->Fill(number); !filled.ok()) return Note(filled);
      mine_.stage = Stage::kSending;
      auto update = (*trainer)->Publish(number);
      Status status = update.status();
      if (status.ok()) status = (*update)->WaitSources(In(kCallPatience));
      mine_.stage = Stage::kCommitting;
      if (status.ok()) status = (*update)->Wait(In(kCallPatience)).status();
      if (status.ok()) mine_.committed = number;
      if (!status.ok()) Note(status);
      mine_.finished = number;
      failures = status.ok() ? 0 : failures + 1;
      if (failures > kTries || IsOver(status)) return 3;
    }
    return 0;
  }

  /// With a commit group engine b has both models in this process.
  int RunInference() {
    std::vector<std::string> models = {options_.model};
    if (setup_.holding == Holding::kModels && place_.engine == "b") models = {"draft", "policy"};
    std::deque<Rank> ranks;
    for (const std::string& model : models)
      if (Status status = Join(model, ranks); !status.ok()) return Note(status);
    std::atomic<bool> over{false};
    std::thread reader([&] {
      while (!over) Compare(ranks);
    });
    std::vector<std::thread> others;
    for (size_t i = 1; i < ranks.size(); ++i) others.emplace_back([&, i] { Serve(ranks[i], ranks); });
    Serve(ranks[0], ranks);
    for (std::thread& other : others) other.join();
    over = true;
    reader.join();
    return board_.stop ? 0 : 3;
  }

 private:
  /// An inference rank of this process.
  struct Rank {
    std::unique_ptr<Tensors> landing;  ///< What is registered.
    std::unique_ptr<Tensors> own;      ///< Loader landing: what the engine computes with.
    std::unique_ptr<Inference> inference;
    std::mt19937 random{std::random_device{}()};
    std::atomic<int64_t> served{-1};
    [[nodiscard]] const Tensors& live() const { return own ? *own : *landing; }
  };

  Status Join(const std::string& model, std::deque<Rank>& ranks) {
    WorkerOptions options = options_;
    options.model = model;
    const bool loader = setup_.landing == LandingMode::kLoader;
    const auto make = [&] {
      return Tensors::Make(Model(model, setup_.where), Cut::kColumns, options.rank, options.world_size,
                           device_.get());
    };
    Rank& rank = ranks.emplace_back();
    WC_ASSIGN_OR_RETURN(rank.landing, make());
    if (loader) {
      WC_ASSIGN_OR_RETURN(rank.own, make());
    }
    WC_ASSIGN_OR_RETURN(rank.inference, Inference::Connect(options));
    return rank.inference->Register(
        {.shards = rank.landing->shards()},
        {.landing = setup_.landing,
         .on_switch = loader ? [this, &rank](const Version&) { return Load(rank); }
                             : std::function<Status(const Version&)>()});
  }

  /// What an engine's loader does.
  Status Load(Rank& rank) {
    if (board_.loads_fail && rank.random() % 30 == 0) return {Code::kInternal, "this engine cannot load it"};
    return rank.own->CopyFrom(*rank.landing);
  }

  void Serve(Rank& rank, const std::deque<Rank>& all) {
    int failures = 0;
    Status status;
    while (!board_.stop && !ends_) {
      if (place_.engine == "b") {
        board_.b_is_held = board_.hold_b.load();
        if (board_.b_is_held) {
          Rest(1);
          continue;
        }
      }
      status = ReceiveOne(rank, all);
      const bool lost = IsLost(status);  // A time-out says so, too, when repair could not help.
      const bool late = status.code() == Code::kTimedOut && !lost;
      failures = status.ok() || late ? 0 : failures + 1;
      if (lost) mine_.lost = rank.inference->state() == EngineState::kFailed ? 1 : 2;
      if (failures > kTries || IsOver(status) || lost) ends_ = true;
      if (status.ok() || late) continue;
      Note(status);
      Rest(5);
    }
  }

  /// By the phases, with an engine that takes its time, or in one.
  Status ReceiveOne(Rank& rank, const std::deque<Rank>& all) {
    Inference& inference = *rank.inference;
    if (rank.random() % 4 == 0) {
      const Version before = inference.version();
      WC_ASSIGN_OR_RETURN(const Version version, inference.Wait(before, In(kWait)));
      return Served(version, rank, all);
    }
    WC_RETURN_IF_ERROR(inference.Begin());
    auto version = inference.Receive(In(kWait));
    while (version.status().code() == Code::kTimedOut && !board_.stop && !ends_)
      version = inference.Receive(In(kWait));
    if (!version.ok()) return GiveUp(inference, version.status());
    post_processing_ = true;
    Rest(static_cast<int>(rank.random() % 20));
    post_processing_ = false;
    Status status = inference.Finish(In(kFinish));
    while (!status.ok() && status.code() == Code::kTimedOut && !board_.stop && !ends_)
      status = inference.Finish(In(kFinish));
    if (!status.ok()) return GiveUp(inference, status);
    return Served(*version, rank, all);
  }

  /// Stays paused as long as a stopped source might still write.
  Status GiveUp(Inference& inference, const Status& reason) {
    Status status = inference.Abort();
    while (status.code() == Code::kFenced && !board_.stop) status = inference.Abort();
    return reason;
  }

  /// Nobody writes until the next call, so all must be there.
  Status Served(const Version& version, Rank& rank, const std::deque<Rank>& all) {
    WC_ASSIGN_OR_RETURN(const int64_t wrong, rank.live().Wrong(version.number));
    if (wrong != 0) ++mine_.mixtures;
    rank.served = version.number;
    int64_t least = version.number;
    for (const Rank& one : all) least = std::min(least, one.served.load());
    mine_.run = static_cast<int64_t>(version.run);
    mine_.served = least;
    return Status::Ok();
  }

  /// Whenever a version is reported, every byte is of that version, and so is every other model of the
  /// engine: read before and after, as with a sequence lock.
  void Compare(const std::deque<Rank>& ranks) {
    mine_.stage = StageOf(ranks[0].inference->state());
    Rest(1);
    for (const Rank& rank : ranks) {
      const Version before = rank.inference->version();
      if (before.number < 0) continue;
      const auto wrong = rank.live().Wrong(before.number);
      if (!wrong.ok()) continue;  // The context is lost: the engine's thread is told, too.
      const bool others = std::ranges::any_of(ranks, [&](const Rank& other) {
        const Version version = other.inference->version();
        return version.number >= 0 && version != before;
      });
      if (rank.inference->version() != before) continue;
      if (*wrong != 0 || others) ++mine_.mixtures;
      ++mine_.comparisons;
    }
  }

  [[nodiscard]] Stage StageOf(EngineState state) const {
    if (post_processing_) return Stage::kSwitching;
    if (state == EngineState::kUpdating) return Stage::kUpdating;
    if (state == EngineState::kReady) return Stage::kReady;
    if (state == EngineState::kCommitted) return Stage::kCommitted;
    return state == EngineState::kServing ? Stage::kServing : Stage::kPlanning;
  }

  /// What the driver calls an uncorrectable error, by name: such a process must be started again.
  [[nodiscard]] static bool IsLost(const Status& status) {
    return status.message().find("CUDA_ERROR_ECC_UNCORRECTABLE") != std::string::npos;
  }
  /// A session that has ended does not come back.
  [[nodiscard]] static bool IsOver(const Status& status) {
    const auto says = [&](std::string_view words) {
      return status.message().find(words) != std::string::npos;
    };
    // A connection that was closed comes back.
    return says("refused") || says("no controller at") ||
           (status.code() == Code::kCancelled && says("was closed"));
  }

  int Note(const Status& status) {
    const std::lock_guard lock(notes_);
    const std::string text = status.ToString();
    auto& slot = mine_.error[mine_.errors % mine_.error.size()];
    std::strncpy(slot.data(), text.c_str(), slot.size() - 1);
    ++mine_.errors;
    return 3;
  }

  /// What the cluster wants to happen to this process's driver.
  void Obey() {
    mine_.blocked = fake_cuda_blocked(0);
    switch (mine_.order.exchange(Order::kNone)) {
      case Order::kNone:
        return;
      case Order::kLoseContext:
        return fake_cuda_lose(0, device_->context()->ordinal(), drivers::CUDA_ERROR_ECC_UNCORRECTABLE, 0);
      case Order::kBlockCall:
        return fake_cuda_block(0, "cuMemcpyAsync", 1, kBlockMs);
    }
  }

  Board& board_;
  Board::Process& mine_;
  const Place place_;
  const Setup setup_;
  WorkerOptions options_;
  std::unique_ptr<UsedDevice> device_;  ///< Null: the weights are in host memory.
  std::thread obeying_;
  std::atomic<bool> post_processing_{false};
  std::atomic<bool> ends_{false};
  std::atomic<bool> over_{false};
  std::mutex notes_;
};

}  // namespace

bool UsesDevice(const Setup& setup, size_t index) {
  if (setup.where == Where::kHost || index == kController) return false;
  return setup.where == Where::kDevice || (index != kFirstTrainer && index != kFirstRank + 1);
}

int RunRole(Board& board, size_t index, const Setup& setup) {
  SetLogLevel(LogLevel::kInfo);  // Read only after a violation.
  board.process[index].stage = Stage::kStarting;
  int result = 0;
  {
    Role role(board, index, setup);
    if (UsesDevice(setup, index)) result = role.UseDevice(static_cast<int>(index % 2));
    if (result == 0) {
      result = kPlaces[index].role == "controller" ? role.RunController()
               : kPlaces[index].role == "trainer"  ? role.RunTrainer()
                                                   : role.RunInference();
    }
  }
  if (UsesDevice(setup, index) && board.process[index].lost == 0)
    board.process[index].left = fake_cuda_stop();
  return result;
}

}  // namespace weightcast::soak
