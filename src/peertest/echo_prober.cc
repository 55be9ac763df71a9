#include "peertest/echo_prober.h"

#include <poll.h>

#include <algorithm>
#include <cerrno>
#include <thread>

#include "base/strings.h"
#include "peertest/path_mtu.h"
#include "peertest/summary.h"

namespace weightcast::peertest {
namespace {

constexpr int64_t kLeastIpv4 = 576;
constexpr int64_t kLeastIpv6 = 1280;
constexpr int64_t kUsual = 1500;
constexpr int64_t kStep = 1;
constexpr int kTries = 3;
constexpr auto kWait = std::chrono::milliseconds(150);
constexpr size_t kSmall = 64;  ///< Bytes of UDP.
constexpr auto kBetween = std::chrono::microseconds(1500);
constexpr auto kLate = std::chrono::milliseconds(400);  ///< After the last: what is not back then is lost.

}  // namespace

Result<std::unique_ptr<EchoProber>> EchoProber::Open(const SocketAddress& at, const SocketAddress& to,
                                                     PortRange ports, const std::string& key) {
  std::unique_ptr<EchoProber> made(new EchoProber());
  WC_ASSIGN_OR_RETURN(made->key_, ParseEchoKey(key));
  WC_ASSIGN_OR_RETURN(made->fd_, OpenEcho(at, ports));
  if (connect(made->fd_.get(), to.raw(), to.length()) != 0)
    return Error(Code::kUnavailable, "cannot send UDP to ", to.ToString(), ": ", ErrnoText(errno),
                 "; check this host's routes with ip route");
  made->overhead_ = EchoOverhead(to.family());
  return made;
}

bool EchoProber::AwaitAnswer(uint32_t number, TimePoint deadline) {
  while (WaitFor(fd_.get(), POLLIN, deadline)) {
    int error = 0;
    const auto received = ReceiveEcho(fd_.get(), buffer_, &error);
    if (error == EMSGSIZE) told_ = true;
    if (error != 0) return false;
    const auto header = received ? ReadEcho(received->bytes, key_) : std::nullopt;
    if (header && header->number == number) return true;
  }
  return false;
}

bool EchoProber::Passes(int64_t out, int64_t back) {
  const auto payload = [this](int64_t size) {
    const size_t bytes = static_cast<size_t>(size) > overhead_ ? static_cast<size_t>(size) - overhead_ : 0;
    return std::clamp(bytes, kEchoHeader, kMostEcho);
  };
  for (int attempt = 0; attempt < kTries; ++attempt) {
    const EchoHeader header{
        .key = key_, .number = ++number_, .reply_bytes = static_cast<uint32_t>(payload(back))};
    WriteEcho(header, buffer_);
    const int error = SendEcho(fd_.get(), std::span<const char>(buffer_).first(payload(out)), 0, nullptr);
    if (error == EMSGSIZE) told_ = true;
    const TimePoint deadline = Clock::now() + kWait;
    if (error == 0 && AwaitAnswer(header.number, deadline)) return true;
    if (error != 0) std::this_thread::sleep_until(deadline);
  }
  return false;
}

PathMtu EchoProber::FindPathMtu(int64_t here, int64_t there, const std::function<bool()>& interrupted) {
  const int64_t least = overhead_ > EchoOverhead(AF_INET) ? kLeastIpv6 : kLeastIpv4;
  const auto most = [&](int64_t mtu) {
    const auto largest = static_cast<int64_t>(kMostEcho + overhead_);
    return std::clamp(mtu == kUnknown ? kUsual : mtu, least, largest);
  };
  PathMtu found;
  found.out = LargestThatPasses(least, most(here), kStep,
                                [&](int64_t size) { return !interrupted() && Passes(size, least); });
  if (found.out == 0) {
    found.error =
        told_ ? "even the smallest packets are said to be too large" : "UDP packets do not come back";
    return found;
  }
  found.back = LargestThatPasses(least, most(there), kStep,
                                 [&](int64_t size) { return !interrupted() && Passes(least, size); });
  found.announced = told_;
  return found;
}

void EchoProber::TakeAnswers(std::vector<Flight>& flights, uint32_t first) {
  for (;;) {
    int error = 0;
    const auto received = ReceiveEcho(fd_.get(), buffer_, &error);
    const TimePoint now = Clock::now();
    if (!received && error == 0) return;
    const auto header = received ? ReadEcho(received->bytes, key_) : std::nullopt;
    if (!header) continue;
    const uint32_t index = header->number - first;
    if (index < flights.size() && flights[index].seconds < 0)
      flights[index].seconds = weightcast::Seconds(now - flights[index].sent);
  }
}

std::pair<Latency, Latency> EchoProber::Compare(uint8_t traffic_class, double seconds,
                                                const std::function<bool()>& interrupted) {
  std::vector<Flight> flights;
  const uint32_t first = number_ + 1;
  std::vector<char> packet(kSmall);
  const TimePoint end = In(seconds);
  for (TimePoint next = Clock::now(); next < end && !interrupted(); next += kBetween) {
    while (WaitFor(fd_.get(), POLLIN, next)) TakeAnswers(flights, first);
    const uint8_t chosen = flights.size() % 2 == 0 ? 0 : traffic_class;
    WriteEcho({.key = key_, .number = ++number_, .reply_bytes = kSmall}, packet);
    flights.push_back({.sent = Clock::now()});
    (void)SendEcho(fd_.get(), packet, chosen, nullptr);  // What does not go out is lost.
  }
  const TimePoint late = Clock::now() + kLate;
  const auto missing = [&] {
    return std::ranges::any_of(flights, [](const Flight& one) { return one.seconds < 0; });
  };
  while (missing() && WaitFor(fd_.get(), POLLIN, late)) TakeAnswers(flights, first);
  std::vector<double> times[2];
  int64_t lost[2] = {0, 0};
  for (size_t i = 0; i < flights.size(); ++i) {
    if (flights[i].seconds < 0) {
      ++lost[i % 2];
    } else {
      times[i % 2].push_back(flights[i].seconds);
    }
  }
  return {Summarise(times[0], lost[0]), Summarise(times[1], lost[1])};
}

}  // namespace weightcast::peertest
