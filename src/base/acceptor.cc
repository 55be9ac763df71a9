#include "base/acceptor.h"

#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <utility>

#include "base/advice.h"
#include "base/log.h"
#include "base/process.h"
#include "base/random.h"
#include "base/socket.h"
#include "base/strings.h"
#include "base/thread.h"

namespace weightcast {
namespace {

constexpr uint64_t kEndKey = 0;
constexpr uint64_t kFirstListenerKey = 1;
constexpr uint64_t kFirstHeldKey = 1 << 16;
constexpr size_t kMostAtOnce = 64;
constexpr size_t kMostDrained = size_t{64} << 10;
constexpr auto kRest = std::chrono::milliseconds(10);

UniqueFd OpenSpare() { return UniqueFd(::eventfd(0, EFD_CLOEXEC)); }

}  // namespace

Result<std::unique_ptr<Acceptor>> Acceptor::Start(Options options) {
  auto acceptor = std::unique_ptr<Acceptor>(new Acceptor(std::move(options)));
  WC_RETURN_IF_ERROR(acceptor->Begin());
  return acceptor;
}

Status Acceptor::Begin() {
  options_.most = std::clamp<size_t>(options_.most, 1, std::max<size_t>(DescriptorLimit() / 4, 1));
  next_id_ = kFirstHeldKey;
  buffer_.resize(kMostBytes + 1);
  WC_ASSIGN_OR_RETURN(poller_, Poller::Create());
  WC_ASSIGN_OR_RETURN(end_, WakeFd::Create());
  spare_ = OpenSpare();
  if (!spare_.valid()) return Error(Code::kExhausted, "cannot make an eventfd: ", ErrnoAndAdvice(errno));
  WC_RETURN_IF_ERROR(poller_.Add(end_.fd(), EPOLLIN, kEndKey));
  for (UniqueFd& listener : options_.listeners) listeners_.emplace_back(std::move(listener));
  for (size_t i = 0; i < listeners_.size(); ++i) {
    AcceptOnceHeard(listeners_[i].get());
    WC_RETURN_IF_ERROR(poller_.Add(listeners_[i].get(), EPOLLIN, kFirstListenerKey + i));
  }
  WC_ASSIGN_OR_RETURN(thread_, StartThread(options_.thread_name, [this] { Run(); }));
  return Status::Ok();
}

Acceptor::~Acceptor() {
  if (!thread_.joinable()) return;
  if (::getpid() != process_) {  // A forked child has no such thread.
    thread_.detach();
    return;
  }
  end_.Wake();
  thread_.join();
}

void Acceptor::Run() {
  std::array<epoll_event, 64> events{};
  while (true) {
    std::optional<Duration> timeout;
    if (!held_.empty())
      timeout = std::max(Duration::zero(), Duration(held_.begin()->second.until - Clock::now()));
    const int count = poller_.Wait(events, timeout);
    for (int i = 0; i < count; ++i) {
      const uint64_t key = events[static_cast<size_t>(i)].data.u64;
      if (key == kEndKey) return;
      if (key >= kFirstHeldKey) {
        Serve(key, events[static_cast<size_t>(i)].events);
      } else {
        AcceptSome(listeners_[key - kFirstListenerKey].get());
      }
    }
    EndExpired();
  }
}

void Acceptor::AcceptSome(int listener) {
  // A part of those that may be held: each is looked at once before it may have to make room.
  for (size_t i = 0; i < std::min(kMostAtOnce, options_.most / 4 + 1); ++i) {
    auto fd = Accept(listener);
    if (!fd.ok()) return OutOfDescriptors(listener, fd.status());
    if (!fd->valid()) return;
    Hold(std::move(*fd));
  }
}

void Acceptor::OutOfDescriptors(int listener, const Status& why) {
  WC_LOG_LIMITED(kWarning, "thread ", options_.thread_name, " ", why.message(), "; this process may have ",
                 DescriptorLimit(), " open files");
  if (!held_.empty()) return EndOne();  // The next turn accepts in its place.
  // What is pending keeps the listener readable: accept it with the spare descriptor and close it.
  spare_.reset();
  const bool accepted = Accept(listener).ok();
  spare_ = OpenSpare();
  if (!accepted || !spare_.valid()) std::this_thread::sleep_for(kRest);
}

void Acceptor::Hold(UniqueFd fd) {
  const uint64_t id = next_id_++;
  if (!poller_.Add(fd.get(), EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET, id).ok()) return;
  held_[id] = {.fd = std::move(fd), .until = Clock::now() + options_.patience, .out = {}};
  Serve(id, EPOLLIN);  // An honest request is here already: its connection is not among the silent.
  while (held_.size() > options_.most) EndOne();
}

/// The oldest that has sent nothing; else the oldest that has its answer; else any.
void Acceptor::EndOne() {
  const auto silent = std::ranges::find_if(held_, [](const auto& one) { return one.second.seen == 0; });
  if (silent != held_.end()) return End(silent);
  const auto answered = std::find_if(held_.begin(), held_.end(), [](const auto& one) {
    return one.second.ending && one.second.out.empty();
  });
  if (answered != held_.end()) return End(answered);
  End(std::next(held_.begin(), static_cast<ptrdiff_t>(RandomId() % held_.size())));
}

void Acceptor::End(HeldMap::iterator at) {
  poller_.Remove(at->second.fd.get());
  held_.erase(at);
}

void Acceptor::EndExpired() {
  const TimePoint now = Clock::now();
  while (!held_.empty() && held_.begin()->second.until <= now) End(held_.begin());
}

void Acceptor::Serve(uint64_t id, uint32_t events) {
  const auto at = held_.find(id);
  if (at == held_.end()) return;  // Ended earlier in this turn.
  Held& held = at->second;
  bool take = false;
  const bool closing = (events & (EPOLLRDHUP | EPOLLHUP | EPOLLERR)) != 0;
  if (!(held.ending || Look(held, closing, take)) || !(!held.ending || Drain(held)) || !Flush(held))
    return End(at);
  if (!take) return;
  UniqueFd fd = std::move(held.fd);
  poller_.Remove(fd.get());
  held_.erase(at);
  options_.take(std::move(fd));
}

bool Acceptor::Look(Held& held, bool closing, bool& take) {
  const ssize_t got = ::recv(held.fd.get(), buffer_.data(), buffer_.size(), MSG_PEEK | MSG_DONTWAIT);
  if (got < 0) return !closing && (errno == EAGAIN || errno == EINTR);
  const auto size = static_cast<size_t>(got);
  if (size == 0 || size > kMostBytes) return false;
  if (size == held.seen) return !closing;
  Answer answer = options_.look({.bytes = std::string_view(buffer_).substr(0, size),
                                 .before = std::exchange(held.seen, size),
                                 .fd = held.fd.get()});
  held.out += answer.send;
  held.ending = answer.then == Answer::Then::kEnd;
  take = answer.then == Answer::Then::kTake;
  return answer.then != Answer::Then::kWait || !closing;
}

/// Reads what nobody wants: closing a socket that holds unread bytes would destroy the answer on its way.
bool Acceptor::Drain(Held& held) {
  std::array<char, 4096> bytes;
  while (held.drained <= kMostDrained && !held.end_of_input) {
    const ssize_t got = ::recv(held.fd.get(), bytes.data(), bytes.size(), MSG_DONTWAIT);
    if (got < 0) return errno == EAGAIN || errno == EINTR;
    held.end_of_input = got == 0;
    held.drained += static_cast<size_t>(got);
  }
  return held.drained <= kMostDrained;
}

bool Acceptor::Flush(Held& held) {
  while (!held.out.empty()) {
    const ssize_t sent = ::send(held.fd.get(), held.out.data(), held.out.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent < 0) return errno == EAGAIN || errno == EINTR;
    held.out.erase(0, static_cast<size_t>(sent));
  }
  if (!held.ending) return true;
  return !held.end_of_input && ::shutdown(held.fd.get(), SHUT_WR) == 0;
}

}  // namespace weightcast
