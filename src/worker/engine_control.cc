#include <optional>
#include <utility>
#include <variant>

#include "base/advice.h"
#include "base/log.h"
#include "base/process.h"
#include "base/strings.h"
#include "base/thread.h"
#include "control/client.h"
#include "protocol/identity.h"
#include "weightcast/worker.h"
#include "worker/commit_group.h"
#include "worker/options.h"
#include "worker/waiting.h"

namespace weightcast {
namespace worker {
namespace {

/// What the client opens.
constexpr size_t kControlDescriptors = 32;

/// A session without an endpoint: no bytes come here.
class EngineControlWorker : public EngineControl {
 public:
  explicit EngineControlWorker(Interrupted interrupted) : interrupted_(std::move(interrupted)) {}
  ~EngineControlWorker() override { Close(); }

  Status Open(WorkerOptions options) {
    if (options.engine.empty())
      return {Code::kInvalidArgument,
              "an EngineControl was made without the name of its engine; give one in the option engine"};
    if (const auto own = options.commit_group.find(options.model); own != options.commit_group.end())
      options.world_size = own->second;  // It has no rank.
    WC_RETURN_IF_ERROR(CommitGroup::Join(options).status());
    control::ClientOptions client;
    WC_ASSIGN_OR_RETURN(client.settings, SettingsOf(options));
    RaiseDescriptorLimit();
    WC_RETURN_IF_ERROR(CheckDescriptors(kControlDescriptors));
    WC_RETURN_IF_ERROR(CheckThreads(kLeastThreads));
    client.hello.model = options.model;
    client.hello.name = {.role = protocol::Role::kControl, .engine = options.engine};
    client.hello.world_size = 1;
    client.hello.secret = protocol::NewSecret();
    client.hello.incarnation = protocol::IncarnationOf(client.hello.secret);
    client.hello.host = HostName();
    client.patient = options.patient;
    client.on_message = [this](const protocol::ControllerMessage& message) { OnMessage(message); };
    client.on_state = [this](control::LinkState state, const Status& status) { OnState(state, status); };
    text_ = protocol::ToString(client.hello.name);
    WC_ASSIGN_OR_RETURN(auto made, control::ControlClient::Start(std::move(client)));
    told_.Change([&](Told& told) { told.client = std::move(made); });
    std::optional<Status> outcome;
    told_.Wait({.deadline = TimePoint::max(), .interrupted = interrupted_}, [&](const Told& told) {
      outcome = told.session != 0 && !told.end ? Status::Ok() : told.end;
      return outcome.has_value();
    });
    return outcome ? *outcome : InterruptedCall("joining the controller");
  }

  Result<EngineControl::Order> Next(TimePoint deadline) override {
    WC_RETURN_IF_ERROR(process_.Check());
    std::optional<Order> order;
    std::optional<Status> end;
    // Without limit: while there is no controller there is nothing to do.
    const Limits limits{.deadline = deadline, .interrupted = interrupted_};
    const Woken woken = told_.Wait(limits, [&](Told& told) {
      end = told.end;
      if (!end) order = std::exchange(told.order, std::nullopt);
      return end || order;
    });
    if (woken == Woken::kInterrupted) return InterruptedCall("the wait for an order of the controller");
    if (end) return *end;
    if (order) return *order;
    return Status(Code::kTimedOut,
                  "the controller has sent no command within the timeout of this call; wait again");
  }

  void Answer(const Order& order, const Status& status) override {
    told_.Change([&](Told& told) {
      if (told.client == nullptr || order.session != told.session) return;
      told.client->Send(protocol::EngineCommandResult{.order = order.number, .status = status});
    });
  }

  void Close() override {
    if (!process_.Check().ok()) return;
    const auto client = told_.Change([&](Told& told) {
      if (told.client != nullptr && !told.end) told.end = ClosedHere(text_);
      return std::move(told.client);
    });
    if (client != nullptr) client->Leave(Clock::now() + kLeaveTime);
  }

 private:
  struct Told {
    uint64_t session = 0;        ///< Counts the Welcomes.
    std::optional<Order> order;  ///< The last that was not taken yet.
    std::optional<Status> end;
    std::unique_ptr<control::ControlClient> client;
  };

  // The client's thread.
  void OnMessage(const protocol::ControllerMessage& message) {
    told_.Wait({.deadline = TimePoint::max()},
               [](const Told& told) { return told.client != nullptr || told.end; });
    told_.Change([&](Told& told) {
      if (told.client == nullptr) return;
      if (std::holds_alternative<protocol::Welcome>(message)) {
        ++told.session;
        told.order.reset();
        told.client->Send(protocol::EngineCommandResult{});
      } else if (const auto* command = std::get_if<protocol::EngineCommand>(&message)) {
        told.order = Order{.number = command->order,
                           .command = static_cast<Command>(command->command),
                           .version = command->version,
                           .reason = command->reason.message(),
                           .session = told.session};
      }
    });
  }

  void OnState(control::LinkState state, const Status& status) {
    if (state == control::LinkState::kBroken && !status.ok())
      WC_LOG(kWarning, text_, ": no connection to the controller, which is tried again: ", status.message());
    if (state != control::LinkState::kEnded) return;
    told_.Change([&](Told& told) { told.end = status; });
  }

  const OwnProcess process_;
  const Interrupted interrupted_;
  std::string text_;
  Shared<Told> told_;
};

}  // namespace
}  // namespace worker

Result<std::unique_ptr<EngineControl>> EngineControl::Connect(WorkerOptions options) {
  auto made = std::make_unique<worker::EngineControlWorker>(options.interrupted);
  WC_RETURN_IF_ERROR(made->Open(std::move(options)));
  return std::unique_ptr<EngineControl>(std::move(made));
}

}  // namespace weightcast
