// Two endpoints: one registers memory, the other connects and writes into it. The data plane alone.
//
// Built outside of weightcast's tree against an installed weightcast, by CMakeLists.txt beside this file or
// with
//   g++ -std=c++20 one_sided_write.cc $(pkg-config --cflags --libs weightcast-endpoint) -o one_sided_write
//
// Both live in one process here. Between processes and hosts all stays the same, but the source must be told
// the target's address and the region's descriptor (bytes: send them as you like), and both need one token.
#include <weightcast/endpoint.h>
#include <weightcast/memory.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <future>
#include <vector>

namespace wc = weightcast;

void Must(const wc::Status& status) {
  if (status.ok()) return;
  std::fprintf(stderr, "%s\n", status.ToString().c_str());
  std::exit(1);
}
template <typename T>
T Must(wc::Result<T> result) {
  Must(result.status());
  return std::move(result).value();
}

wc::EndpointOptions OptionsOf(const char* role) {
  wc::EndpointOptions options;
  options.self.role = role;
  options.settings = Must(wc::Settings::FromEnvironment());
  options.settings.bind = "127.0.0.1";  // On loopback no token is needed.
  return options;
}

int main() {
  constexpr size_t kBytes = 64 << 20;
  const wc::TimePoint deadline = wc::Clock::now() + wc::FromSeconds(30);

  // The target opens a window for its peers. Memory from Allocate is the fastest on one host.
  const auto window_memory = Must(wc::Allocate(kBytes));
  std::promise<wc::Connection> came;
  wc::EndpointOptions options = OptionsOf("target");
  options.on_connection = [&](wc::Connection connection) { came.set_value(std::move(connection)); };
  const auto target = Must(wc::Endpoint::Create(std::move(options)));
  wc::Region window = Must(target->Register(window_memory->bytes(), wc::Access::kReadWrite));

  // The source writes from any memory it has registered.
  std::vector<std::byte> memory(kBytes);
  for (size_t i = 0; i < kBytes; ++i) memory[i] = static_cast<std::byte>(i * 7 + i / 4096);
  const auto source = Must(wc::Endpoint::Create(OptionsOf("source")));
  wc::Region region = Must(source->Register(memory, wc::Access::kLocal));
  wc::Connection connection = Must(source->Connect(target->Addresses(), target->self(), deadline));
  std::printf("%s\n", connection.Describe().c_str());

  const wc::RemoteRegion remote = Must(connection.Import(window.Descriptor()));
  const wc::Piece whole{region.Whole(), remote.Whole()};
  wc::Transfer transfer = Must(connection.Write({&whole, 1}, {}));
  Must(transfer.Wait(deadline));
  // A notice comes after the bytes that were written before it.
  Must(connection.Notify("written"));

  wc::Connection accepted = came.get_future().get();
  const std::string notice = Must(accepted.TakeNotice(deadline));
  const bool same = notice == "written" && std::ranges::equal(window_memory->bytes(), memory);
  std::printf("%zu MiB: %s\n", kBytes >> 20, same ? "bit-exact" : "WRONG BYTES");
  return same ? 0 : 1;
}
