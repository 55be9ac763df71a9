#include "transport/verbs/control.h"

#include <algorithm>
#include <utility>

#include "base/strings.h"
#include "transport/other_release.h"

namespace weightcast::transport::verbs {

/// One queue pair's end of it.
class Control::Rail final : public QueueOwner {
 public:
  Rail(Control& control, uint32_t index) : control_(control), index_(index) {}

  void OnSent(uint32_t sequence) override {
    control_.moved_ = true;
    const uint32_t before = queue->done();
    queue->Complete(sequence);
    uint32_t count = queue->done() - before;
    const uint32_t others = std::min(count, ahead);
    ahead -= others;
    count -= others;
    if (std::exchange(probing, false)) control_.events_.OnQueueProven(index_);
    control_.OnDelivered(index_, count);
  }
  void OnSendError(uint32_t sequence, Code, std::string_view reason) override {
    if (!queue->Fail()) return;
    if (sequence != queue->done()) OnSent(sequence - 1);
    control_.events_.OnQueueBroken(index_, {Code::kUnavailable, std::string(reason)});
  }
  void OnMessage(std::string_view bytes) override {
    control_.moved_ = true;
    control_.OnReceived(index_, bytes);
  }
  void OnImmediate(uint32_t bits) override {
    control_.events_.OnQueueBroken(
        index_, OtherRelease(StrCat("the peer sent an immediate value on a control queue pair: ", bits)));
  }
  void OnBroken(Status reason) override { control_.events_.OnQueueBroken(index_, std::move(reason)); }

  std::unique_ptr<Queue> queue;
  bool open = false;
  bool probing = false;
  uint32_t ahead = 0;  ///< Under way before the first message: a probe, or a test.

 private:
  Control& control_;
  uint32_t index_;
};

Control::Control(Host& host, QueueEvents& events, bool& moved, uint32_t rails, uint64_t own_cookie)
    : host_(host), events_(events), moved_(moved), own_cookie_(own_cookie) {
  for (uint32_t i = 0; i < rails; ++i) rails_.push_back(std::make_unique<Rail>(*this, i));
}

Control::~Control() = default;

bool Control::any_open() const {
  return std::ranges::any_of(rails_, [](const auto& rail) { return rail->open; });
}

bool Control::lost() const {
  return std::ranges::none_of(rails_, [](const auto& rail) { return rail->queue != nullptr; });
}

void Control::Begin(uint32_t rail, std::unique_ptr<Queue> queue, std::optional<Probe> probe) {
  Rail& begun = *rails_[rail];
  begun.queue = std::move(queue);
  begun.queue->SetOwner(begun);
  begun.probing = probe.has_value();
  if (!probe) return;
  begun.queue->AddMessage(Encode(verbs::Message(*probe)));
  begun.ahead = 1;
  if (Status posted = begun.queue->Flush(); !posted.ok()) events_.OnQueueBroken(rail, std::move(posted));
}

void Control::Open(uint32_t rail) {
  rails_[rail]->open = rails_[rail]->queue != nullptr;
  Flush();
}

void Control::Break(uint32_t rail) {
  Rail& broken = *rails_[rail];
  broken.open = broken.probing = false;
  if (broken.queue != nullptr) broken.queue->Retire();
  broken.queue.reset();
  broken.ahead = 0;
  if (rail != carrier_) return;
  posted_ = 0;  // Whatever of it has arrived is known there by its number.
  Flush();
}

void Control::Leave() {
  for (uint32_t rail = 0; rail < rails(); ++rail) Break(rail);
}

void Control::TestOthers() {
  for (uint32_t rail = 0; rail < rails_.size(); ++rail) {
    Rail& other = *rails_[rail];
    if (rail == carrier_ || !other.open || other.queue->under_way() > 0) continue;
    other.queue->AddWrite({});
    other.ahead = 1;
    if (Status posted = other.queue->Flush(); !posted.ok()) events_.OnQueueBroken(rail, std::move(posted));
  }
}

bool Control::Send(const ControlMessage& message) {
  if (outgoing_.size() >= kMostWaiting) return false;
  outgoing_.push_back({.cookie = peer_cookie_, .number = next_out_++, .message = message});
  Flush();
  return true;
}

void Control::Flush() {
  if (!rails_[carrier_]->open) {
    const auto other = std::ranges::find_if(rails_, [](const auto& rail) { return rail->open; });
    if (other == rails_.end()) return;
    carrier_ = static_cast<uint32_t>(other - rails_.begin());
    posted_ = 0;
  }
  Queue& queue = *rails_[carrier_]->queue;
  while (posted_ < std::min<size_t>(outgoing_.size(), kDepth) && queue.HasRoom()) {
    queue.AddMessage(Encode(verbs::Message(outgoing_[posted_++])));
  }
  if (Status posted = queue.Flush(); !posted.ok()) events_.OnQueueBroken(carrier_, std::move(posted));
}

void Control::OnDelivered(uint32_t rail, uint32_t count) {
  if (rail != carrier_) return;
  for (; count > 0 && posted_ > 0; --count, --posted_) outgoing_.pop_front();
  Flush();
}

void Control::OnReceived(uint32_t rail, std::string_view bytes) {
  const auto message = ParseMessage(bytes);
  if (message && std::holds_alternative<Probe>(*message)) {
    return events_.OnQueueProbed(rail, std::get<Probe>(*message));
  }
  const auto* numbered = message ? std::get_if<Numbered>(&*message) : nullptr;
  if (numbered == nullptr || numbered->cookie != own_cookie_) {
    return events_.OnQueueBroken(rail, OtherRelease("the peer sent a control message that is too long"));
  }
  const auto ahead = static_cast<int32_t>(numbered->number - next_in_);
  if (ahead < 0) return;  // Again, over another rail.
  if (ahead > 0) {
    if (ahead_.size() >= kAhead) {
      return events_.OnQueueBroken(rail, OtherRelease("one of the peer's control messages is missing"));
    }
    ahead_[numbered->number] = numbered->message;
    return;
  }
  ++next_in_;
  host_.OnControl(numbered->message);
  for (auto next = ahead_.find(next_in_); next != ahead_.end(); next = ahead_.find(next_in_)) {
    const ControlMessage waiting = next->second;
    ahead_.erase(next);
    ++next_in_;
    host_.OnControl(waiting);
  }
}

}  // namespace weightcast::transport::verbs
