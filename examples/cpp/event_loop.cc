// One thread and one epoll for everything: a hundred writes are driven through an endpoint's descriptor,
// beside a timer of the application's own. Callbacks run on this thread, so they need no locks.
#include <sys/epoll.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <vector>

#include "weightcast/weightcast.h"

namespace wc = weightcast;

template <typename T>
T Must(wc::Result<T> result) {
  if (result.ok()) return std::move(result).value();
  std::fprintf(stderr, "%s\n", result.status().ToString().c_str());
  std::exit(1);
}

wc::EndpointOptions OptionsOf(const char* role) {
  wc::EndpointOptions options;
  options.self.job = "example";
  options.self.role = role;
  options.settings.bind = "127.0.0.1";  // On loopback no token is needed.
  return options;
}

int main() {
  constexpr int kWrites = 100;
  std::vector<std::byte> memory(1 << 20, std::byte{42});
  std::vector<std::byte> window(memory.size());
  const auto target = Must(wc::Endpoint::Create(OptionsOf("target")));
  const wc::Region there = Must(target->Register(window, wc::Access::kReadWrite));

  wc::EndpointOptions options = OptionsOf("source");
  options.callbacks = wc::Callbacks::kInProgress;
  const auto source = Must(wc::Endpoint::Create(std::move(options)));
  const wc::Region here = Must(source->Register(memory, wc::Access::kLocal));
  wc::Connection connection = Must(source->Connect(target->Addresses(), target->self(), wc::In(30)));
  const wc::RemoteRegion remote = Must(connection.Import(there.Descriptor()));

  int written = 0;
  int ticks = 0;
  std::function<void()> write = [&] {
    const wc::Piece all{here.Whole(), remote.Whole()};
    Must(connection.Write({&all, 1}, {.on_end = [&](const wc::Status& status) {
                            if (status.ok() && ++written < kWrites) write();
                          }}));
  };
  write();

  const int timer = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC);
  const itimerspec every{.it_interval = {0, 1'000'000}, .it_value = {0, 1'000'000}};
  timerfd_settime(timer, 0, &every, nullptr);
  const int loop = epoll_create1(EPOLL_CLOEXEC);
  for (const int fd : {source->descriptor(), timer}) {
    epoll_event event{.events = EPOLLIN, .data = {.fd = fd}};
    epoll_ctl(loop, EPOLL_CTL_ADD, fd, &event);
  }
  while (written < kWrites) {
    epoll_event event{};
    if (epoll_wait(loop, &event, 1, 10'000) != 1) return 1;
    if (event.data.fd == timer) {
      uint64_t times = 0;
      ticks += ::read(timer, &times, sizeof times) > 0 ? 1 : 0;
    } else {
      source->Progress();
    }
  }
  ::close(loop);
  ::close(timer);
  const bool same = std::ranges::equal(memory, window);
  std::printf("%d writes, %d ticks of a timer: %s\n", written, ticks, same ? "bit-exact" : "WRONG BYTES");
  return same ? 0 : 1;
}
