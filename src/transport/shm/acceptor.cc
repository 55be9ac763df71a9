#include "transport/shm/acceptor.h"

#include <unistd.h>

#include <algorithm>

#include "base/log.h"
#include "base/random.h"
#include "base/socket.h"
#include "base/strings.h"

namespace weightcast::transport::shm {
namespace {

constexpr size_t kMostStrangers = 256;
constexpr int kAcceptAtOnce = 64;
constexpr Duration kPatience = std::chrono::seconds(10);
/// After descriptors have run out.
constexpr Duration kRest = std::chrono::milliseconds(100);

}  // namespace

Result<Acceptor> Acceptor::Create(const Poller& poller) {
  Acceptor acceptor;
  uint64_t random[2] = {RandomId(), RandomId()};
  acceptor.name_ = StrCat("weightcast-", ToHex({reinterpret_cast<const char*>(random), sizeof random}));
  WC_ASSIGN_OR_RETURN(UniqueFd listener, Channel::Listen(acceptor.name_));
  acceptor.listener_ = Listener(std::move(listener));
  WC_RETURN_IF_ERROR(poller.Add(acceptor.listener_.get(), EPOLLIN, PollKey(PollKind::kListener, 0)));
  return acceptor;
}

void Acceptor::Listen(const Poller& poller, uint32_t events) const {
  (void)poller.Modify(listener_.get(), events, PollKey(PollKind::kListener, 0));
}

void Acceptor::Accept(const Poller& poller, TimePoint now) {
  for (int i = 0; i < kAcceptAtOnce; ++i) {
    auto accepted = weightcast::Accept(listener_.get());
    if (!accepted.ok()) {
      // Who waits there keeps the listener readable: without a rest we would spin on it.
      if (complaint_.Due(now)) {
        WC_LOG(kWarning, "shm: peers cannot connect now: ", accepted.status().message());
      }
      Listen(poller, 0);
      rest_ = now + kRest;
      return;
    }
    if (!accepted->valid()) return;
    const auto credentials = CredentialsOf(accepted->get());
    if (!credentials.ok() || credentials->uid != geteuid()) continue;
    if (strangers_.size() >= kMostStrangers) Dismiss(poller, strangers_.begin());
    const uint32_t number = next_number_++;
    if (!poller.Add(accepted->get(), EPOLLIN, PollKey(PollKind::kStranger, number)).ok()) continue;
    strangers_.emplace(number, Stranger{Channel(std::move(accepted).value()), now + kPatience});
  }
}

std::optional<Acceptor::Guest> Acceptor::ReadHello(const Poller& poller, uint32_t number) {
  const auto found = strangers_.find(number);
  if (found == strangers_.end()) return std::nullopt;
  auto message = found->second.channel.Receive();
  if (message.ok() && !*message) return std::nullopt;
  std::optional<Guest> guest;
  if (message.ok()) {
    if (auto hello = Decode<Hello>((*message)->bytes); hello.ok()) {
      poller.Remove(found->second.channel.fd());
      guest = Guest{std::move(found->second.channel), std::move(**message), *hello};
      strangers_.erase(found);
      return guest;
    }
  }
  Dismiss(poller, found);
  return guest;
}

void Acceptor::Expire(const Poller& poller, TimePoint now) {
  if (rest_ && *rest_ <= now) {
    rest_.reset();
    Listen(poller, EPOLLIN);
  }
  while (!strangers_.empty() && strangers_.begin()->second.deadline <= now) {
    Dismiss(poller, strangers_.begin());
  }
}

std::optional<TimePoint> Acceptor::due() const {
  if (strangers_.empty()) return rest_;
  const TimePoint deadline = strangers_.begin()->second.deadline;
  return rest_ ? std::min(*rest_, deadline) : deadline;
}

void Acceptor::Dismiss(const Poller& poller, std::map<uint32_t, Stranger>::iterator stranger) {
  poller.Remove(stranger->second.channel.fd());
  strangers_.erase(stranger);
}

}  // namespace weightcast::transport::shm
