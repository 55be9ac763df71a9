#include "endpoint/transfers/user_callbacks.h"

#include <utility>

namespace weightcast::endpoint {

Status UserCallbacks::GiveToUser() {
  WC_ASSIGN_OR_RETURN(waiting_, WakeFd::Create());
  return Status::Ok();
}

void UserCallbacks::Later(std::function<void()> callback) {
  if (!waiting_) return progress_.Later(std::move(callback));
  if (queue_.Push(MakeTask(std::move(callback)))) waiting_->Wake();
}

size_t UserCallbacks::Run() {
  if (!waiting_) return 0;
  const std::unique_lock lock(mutex_, std::try_to_lock);
  if (!lock.owns_lock()) return 0;
  waiting_->Drain();  // Before they are taken: what comes now makes it readable again.
  return queue_.RunAll();
}

}  // namespace weightcast::endpoint
