#include "soak/role.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <functional>
#include <random>
#include <thread>

#include "base/log.h"
#include "base/strings.h"
#include "weightcast/worker.h"
#include "weights.h"

namespace weightcast::soak {
namespace {

using test::Cut;
using test::Weights;

constexpr double kPatience = 60;
constexpr double kWait = 0.2;
/// Failed calls in a row after which a process gives up and wants to be started again.
constexpr int kTries = 40;

/// Small enough to be compared all the time, and of several transfers.
std::vector<TensorInfo> Model() {
  return {{"embed", DType::kU64, {640, 256}}, {"norm", DType::kU64, {256}}, {"scale", DType::kU64, {}}};
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
    auto trainer = Trainer::Connect(options_);
    if (!trainer.ok()) return Note(trainer.status());
    Weights weights(Model(), setup_.sharded ? Cut::kRows : Cut::kWhole, place_.rank, place_.ranks);
    if (Status status = (*trainer)->Register({.shards = weights.shards()}); !status.ok()) return Note(status);
    int failures = 0;
    for (int64_t last = -1; !board_.stop;) {
      mine_.stage = Stage::kPlanning;
      const int64_t number = board_.publish;
      if (number <= last) {
        Rest(1);
        continue;
      }
      last = number;
      weights.Fill(number);
      mine_.stage = Stage::kSending;
      auto update = (*trainer)->Publish(number);
      Status status = update.status();
      if (status.ok()) status = (*update)->WaitSources(In(kPatience));
      mine_.stage = Stage::kCommitting;
      if (status.ok()) status = (*update)->Wait(In(kPatience)).status();
      if (status.ok()) mine_.committed = number;
      if (!status.ok()) Note(status);
      mine_.finished = number;
      failures = status.ok() ? 0 : failures + 1;
      if (failures > kTries || IsOver(status)) return 3;
    }
    return 0;
  }

  int RunInference() {
    auto inference = Inference::Connect(options_);
    if (!inference.ok()) return Note(inference.status());
    Weights weights(Model(), Cut::kColumns, place_.rank, place_.ranks);
    const auto landing = setup_.shadow ? LandingMode::kShadow : LandingMode::kInPlace;
    if (Status status = (*inference)->Register({.shards = weights.shards()}, {.landing = landing});
        !status.ok())
      return Note(status);
    std::atomic<bool> over{false};
    std::thread reader([&] {
      while (!over) Compare(**inference, weights);
    });
    int failures = 0;
    Status status;
    while (!board_.stop && failures <= kTries && !IsOver(status)) {
      if (place_.engine == "b") {
        board_.b_is_held = board_.hold_b.load();
        if (board_.b_is_held) {
          Rest(1);
          continue;
        }
      }
      status = ReceiveOne(**inference, weights);
      const bool late = status.code() == Code::kTimedOut;
      failures = status.ok() || late ? 0 : failures + 1;
      if (status.ok() || late) continue;
      Note(status);
      Rest(5);
    }
    over = true;
    reader.join();
    return board_.stop ? 0 : 3;
  }

 private:
  /// By the phases, with an engine that takes its time, or in one.
  Status ReceiveOne(Inference& inference, const Weights& weights) {
    if (random_() % 4 == 0) {
      const Version before = inference.version();
      WC_ASSIGN_OR_RETURN(const Version version, inference.Wait(before, In(kWait)));
      Served(version, weights);
      return Status::Ok();
    }
    WC_RETURN_IF_ERROR(inference.Begin());
    auto version = inference.Receive(In(kWait));
    while (version.status().code() == Code::kTimedOut && !board_.stop) version = inference.Receive(In(kWait));
    if (!version.ok()) return GiveUp(inference, version.status());
    post_processing_ = true;
    Rest(static_cast<int>(random_() % 20));
    post_processing_ = false;
    Status status = inference.Finish(In(kPatience));
    while (!status.ok() && status.code() == Code::kTimedOut && !board_.stop)
      status = inference.Finish(In(kPatience));
    if (!status.ok()) return GiveUp(inference, status);
    Served(*version, weights);
    return Status::Ok();
  }

  /// Stays paused as long as a stopped source might still write.
  Status GiveUp(Inference& inference, const Status& reason) {
    Status status = inference.Abort();
    while (status.code() == Code::kFenced && !board_.stop) status = inference.Abort();
    return reason;
  }

  /// Nobody writes until the next call, so all must be there.
  void Served(const Version& version, const Weights& weights) {
    if (weights.Wrong(version.number) != 0) ++mine_.mixtures;
    mine_.run = static_cast<int64_t>(version.run);
    mine_.served = version.number;
  }

  /// Whenever a version is reported, every byte is of that version: read before and after, as with a sequence
  /// lock.
  void Compare(const Inference& inference, const Weights& weights) {
    mine_.stage = StageOf(inference.state());
    Rest(1);
    const Version before = inference.version();
    if (before.number < 0) return;
    const int64_t wrong = weights.Wrong(before.number);
    if (inference.version() != before) return;
    if (wrong != 0) ++mine_.mixtures;
    ++mine_.comparisons;
  }

  [[nodiscard]] Stage StageOf(EngineState state) const {
    if (post_processing_) return Stage::kSwitching;
    if (state == EngineState::kUpdating) return Stage::kUpdating;
    if (state == EngineState::kReady) return Stage::kReady;
    if (state == EngineState::kCommitted) return Stage::kCommitted;
    return state == EngineState::kServing ? Stage::kServing : Stage::kPlanning;
  }

  /// A session that has ended does not come back.
  [[nodiscard]] static bool IsOver(const Status& status) {
    return status.message().find("refused") != std::string::npos ||
           status.message().find("no controller at") != std::string::npos ||
           status.message().find("was closed") != std::string::npos;
  }

  int Note(const Status& status) {
    const std::string text = status.ToString();
    auto& slot = mine_.error[mine_.errors % mine_.error.size()];
    std::strncpy(slot.data(), text.c_str(), slot.size() - 1);
    ++mine_.errors;
    return 3;
  }

  Board& board_;
  Board::Process& mine_;
  const Place place_;
  const Setup setup_;
  WorkerOptions options_;
  std::mt19937 random_{std::random_device{}()};
  std::atomic<bool> post_processing_{false};
};

}  // namespace

int RunRole(Board& board, size_t index, const Setup& setup) {
  SetLogLevel(LogLevel::kInfo);  // Read only after a violation.
  board.process[index].stage = Stage::kStarting;
  Role role(board, index, setup);
  if (kPlaces[index].role == "controller") return role.RunController();
  return kPlaces[index].role == "trainer" ? role.RunTrainer() : role.RunInference();
}

}  // namespace weightcast::soak
