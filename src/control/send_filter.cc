#include "control/send_filter.h"

#include <utility>
#include <variant>

#include "base/strings.h"
#include "control/packet.h"

namespace weightcast::control {
namespace {

bool Registers(const protocol::WorkerMessage& message) {
  const auto* result = std::get_if<protocol::EngineCommandResult>(&message);
  return std::holds_alternative<protocol::Register>(message) ||
         std::holds_alternative<protocol::Suspended>(message) || (result != nullptr && result->order == 0);
}

}  // namespace

SendFilter::SendFilter(std::shared_ptr<SessionLink> link, std::string controller)
    : link_(std::move(link)), controller_(std::move(controller)) {}

Status SendFilter::Push(const protocol::WorkerMessage& message) {
  auto packet = MakePacket(message);  // Takes time: before the lock.
  const std::lock_guard lock(mutex_);
  if (phase_ == Phase::kClosed || phase_ == Phase::kNoSession) return Status::Ok();
  if (phase_ == Phase::kUnregistered) {
    if (!Registers(message)) return Status::Ok();
    phase_ = Phase::kOpen;
  }
  if (!packet.ok()) return packet.status();
  if (link_->Push(std::move(*packet)) != 0) return Status::Ok();
  return Error(Code::kExhausted, "too many messages wait for the controller at ", controller_,
               ": it does not read them; check that its process runs and is not overloaded");
}

void SendFilter::BeginSession() {
  const std::lock_guard lock(mutex_);
  if (phase_ == Phase::kFirst) {
    phase_ = Phase::kOpen;
    link_->Rewind(0);
  } else {
    phase_ = Phase::kUnregistered;
    link_->Reset();
  }
}

void SendFilter::EndSession() {
  const std::lock_guard lock(mutex_);
  phase_ = Phase::kNoSession;
  link_->Reset();
}

void SendFilter::Close() {
  const std::lock_guard lock(mutex_);
  phase_ = Phase::kClosed;
}

}  // namespace weightcast::control
