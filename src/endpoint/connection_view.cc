#include "endpoint/connection_view.h"

#include "base/advice.h"
#include "base/strings.h"

namespace weightcast::endpoint {

std::string ConnectionView::Describe() const {
  const std::lock_guard lock(mutex_);
  return description_;
}

std::string ConnectionView::transport_name() const {
  const std::lock_guard lock(mutex_);
  return transport_name_;
}

Status ConnectionView::status() const {
  if (ok_.load(std::memory_order_acquire)) return Status::Ok();
  const std::lock_guard lock(mutex_);
  return status_;
}

bool ConnectionView::was_ready() const {
  const std::lock_guard lock(mutex_);
  return was_ready_;
}

bool ConnectionView::usable() const {
  const std::lock_guard lock(mutex_);
  return was_ready_ && status_.ok();
}

void ConnectionView::SetReady(std::string transport_name) {
  const std::lock_guard lock(mutex_);
  transport_name_ = std::move(transport_name);
  was_ready_ = true;
}

void ConnectionView::SetLink(std::string_view description, uint32_t lanes) {
  const std::lock_guard lock(mutex_);
  description_ = StrCat(description, ", ", lanes, lanes == 1 ? " lane" : " lanes", ", to ",
                        ToString(peer_.identity), " at ", peer_.address);
  lanes_ = lanes;
}

void ConnectionView::SetEnd(const Status& reason) {
  const std::lock_guard lock(mutex_);
  if (!status_.ok()) return;
  const bool broken = reason.code() == Code::kProtocol;
  const bool named = reason.message().find(peer_.label) != std::string::npos;
  status_ = named ? reason
                  : WithSameRelease(
                        Error(reason.code(), peer_.label, broken ? kBrokeProtocol : ": ", reason.message()));
  ok_.store(false, std::memory_order_release);
}

}  // namespace weightcast::endpoint
