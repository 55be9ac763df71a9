#include "transport/tcp/lane_connector.h"

#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "base/strings.h"
#include "transport/tcp/keys.h"

namespace weightcast::transport::tcp {
namespace {
constexpr Duration kStagger = std::chrono::milliseconds(50);
/// For a welcome, once connected: whoever listens there and stays silent is not our peer.
constexpr Duration kWelcomeLimit = std::chrono::seconds(2);
}  // namespace

LaneConnector::LaneConnector(const Poller& poller, const LinkTerms& terms, uint32_t lane, uint32_t generation)
    : poller_(poller),
      terms_(terms),
      key_(MakeKey(KeyKind::kConnect, terms.id, lane)),
      hello_{Greeting::Kind::kHello, static_cast<uint16_t>(lane), generation, terms.theirs},
      addresses_(terms.addresses) {
  if (terms.spread) {
    const auto first = static_cast<std::ptrdiff_t>(lane % addresses_.size());
    std::rotate(addresses_.begin(), addresses_.begin() + first, addresses_.end());
  }
  attempts_.reserve(addresses_.size());
}

LaneConnector::~LaneConnector() {
  for (Attempt& attempt : attempts_) Drop(attempt);
}

bool LaneConnector::failed() const {
  return !welcomed() && attempts_.size() == addresses_.size() &&
         std::ranges::none_of(attempts_, [](const Attempt& attempt) { return attempt.fd.valid(); });
}

void LaneConnector::Step(TimePoint now) {
  for (Attempt& attempt : attempts_) {
    if (attempt.fd.valid() && attempt.greeted && now >= attempt.give_up)
      GiveUp(attempt, "no welcome within its time limit");
  }
  const auto active = [&] {
    return std::ranges::any_of(attempts_, [](const Attempt& a) { return a.fd.valid(); });
  };
  while (!welcomed() && attempts_.size() < addresses_.size() && (now >= next_start_ || !active())) Start(now);
  PlanNextStep();
}

void LaneConnector::Start(TimePoint now) {
  Attempt& attempt = attempts_.emplace_back();
  attempt.to = addresses_[attempts_.size() - 1];
  next_start_ = now + kStagger;
  auto fd = StartConnect(attempt.to, terms_.traffic_class);
  if (!fd.ok()) return GiveUp(attempt, fd.status().message());
  attempt.fd = std::move(fd).value();
  TuneTcp(attempt.fd.get(), terms_.lease);
  const Status added = poller_.Add(attempt.fd.get(), EPOLLOUT, key_ + attempts_.size() - 1);
  if (!added.ok()) GiveUp(attempt, added.message());
}

void LaneConnector::OnReady(size_t number, TimePoint now) {
  if (number >= attempts_.size() || !attempts_[number].fd.valid()) return;
  Attempt& attempt = attempts_[number];
  attempt.greeted ? Listen(attempt) : Greet(attempt, now);
  Step(now);
}

void LaneConnector::Greet(Attempt& attempt, TimePoint now) {
  if (const Status status = ConnectOutcome(attempt.fd.get(), attempt.to); !status.ok()) {
    return GiveUp(attempt, status.message());
  }
  const auto hello = EncodeGreeting(hello_);
  // A new socket takes 32 bytes whole.
  if (send(attempt.fd.get(), hello.data(), hello.size(), MSG_NOSIGNAL | MSG_DONTWAIT) != kGreetingSize) {
    return GiveUp(attempt, StrCat("the greeting cannot be sent: ", ErrnoText(errno)));
  }
  attempt.greeted = true;
  attempt.give_up = now + kWelcomeLimit;
  const auto number = static_cast<uint64_t>(&attempt - attempts_.data());
  const Status changed = poller_.Modify(attempt.fd.get(), EPOLLIN, key_ + number);
  if (!changed.ok()) GiveUp(attempt, changed.message());
}

void LaneConnector::Listen(Attempt& attempt) {
  // Exactly the welcome: frames may stand behind it.
  const ssize_t got =
      recv(attempt.fd.get(), &attempt.bytes[attempt.got], kGreetingSize - attempt.got, MSG_DONTWAIT);
  if (got < 0 && (errno == EAGAIN || errno == EINTR)) return;
  if (got <= 0) return GiveUp(attempt, "the process that listens there does not know this link");
  attempt.got += static_cast<size_t>(got);
  if (attempt.got < kGreetingSize) return;
  const auto greeting = ParseGreeting(attempt.bytes);
  if (!greeting || greeting->kind != Greeting::Kind::kWelcome || greeting->lane != hello_.lane ||
      greeting->generation != hello_.generation || greeting->cookie != terms_.ours) {
    return GiveUp(attempt, "the process that listens there is not the peer");
  }
  poller_.Remove(attempt.fd.get());
  welcomed_ = std::move(attempt.fd);
  for (Attempt& other : attempts_) Drop(other);
}

UniqueFd LaneConnector::TakeStarted() {
  Greeting start = hello_;
  start.kind = Greeting::Kind::kStart;
  const auto bytes = EncodeGreeting(start);
  // The socket is empty: it takes 32 bytes whole. If the peer has gone, the lane will tell.
  [[maybe_unused]] const ssize_t sent =
      send(welcomed_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
  return std::move(welcomed_);
}

void LaneConnector::GiveUp(Attempt& attempt, std::string_view why) {
  Drop(attempt);
  report_ += StrCat(report_.empty() ? "" : "; ", attempt.to.ToString(), ": ", why);
}

void LaneConnector::Drop(Attempt& attempt) const {
  if (attempt.fd.valid()) poller_.Remove(attempt.fd.get());
  attempt.fd.reset();
}

void LaneConnector::PlanNextStep() {
  next_step_ = TimePoint::max();
  if (welcomed()) return;
  if (attempts_.size() < addresses_.size()) next_step_ = next_start_;
  for (const Attempt& attempt : attempts_) {
    if (attempt.fd.valid() && attempt.greeted) next_step_ = std::min(next_step_, attempt.give_up);
  }
}

}  // namespace weightcast::transport::tcp
