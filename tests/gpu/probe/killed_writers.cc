// E10: how long after the death of a process the last byte of its copies lands.
#include <poll.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <memory>

#include "gpu/probe/experiments.h"
#include "gpu/probe/exporter.h"
#include "gpu/probe/report.h"

namespace probe {

using namespace weightcast::drivers;  // NOLINT

namespace {

constexpr uint64_t kSeedA = 0xA10;
constexpr uint64_t kSeedB = 0xB10000;
constexpr double kWatch = 2.5;  ///< Seconds after the death, at most.
constexpr double kQuiet = 0.4;  ///< So long without a change: nothing comes any more.
constexpr unsigned kLife = 10;  ///< Seconds that a forked child may live, at most.

uint64_t Bytes() { return Scaled(256, 4) * kMiB; }

struct Target {
  CUipcMemHandle handle{};
};
/// To the writer: the others are over.
struct WritersTurn {};
struct Ready {
  pid_t child = -1;  ///< Of the writer: it holds the driver's descriptors, too.
};

struct Late {
  double death_ms = 0;  ///< From the kill to the readable pidfd.
  double ms = 0;        ///< From there to the last change of the target.
  bool torn = false;    ///< In the end it holds some bytes of both patterns.
};

/// Looks for changes of the target until there have been none for a while.
void Watch(Device& device, CUdeviceptr target, Late& late) {
  const auto death = Clock::now();
  uint64_t last = device.Differences(target, Bytes(), kSeedA);
  for (double now = 0; now < kWatch && now < late.ms / 1e3 + kQuiet; now = SecondsSince(death)) {
    const uint64_t found = device.Differences(target, Bytes(), kSeedA);
    if (found != last) late.ms = 1e3 * SecondsSince(death);
    last = found;
  }
  late.torn = last != 0 && last != Bytes() / 8;
}

Late KillOne(Device& device, CUdeviceptr target, Peer& writer) {
  writer.channel().Send(WritersTurn{});
  const auto ready = writer.channel().Receive<Ready>();
  Sleep(0.02);
  const int process = static_cast<int>(syscall(SYS_pidfd_open, writer.pid(), 0));
  if (process < 0) Fail("no pidfd of the writer");
  const auto begin = Clock::now();
  kill(writer.pid(), SIGKILL);
  pollfd polled{process, POLLIN, 0};
  if (poll(&polled, 1, 5000) != 1) Fail("a killed process has not ended after 5 s");
  Late late{.death_ms = 1e3 * SecondsSince(begin)};
  Watch(device, target, late);
  close(process);
  writer.Kill();
  if (ready.child > 0) kill(ready.child, SIGKILL);
  return late;
}

}  // namespace

void RunWriter(const std::vector<std::string>& arguments) {
  const auto target = Parent().Receive<Target>();
  Device device(PeerDevice());
  const Current current(device);
  const CUdeviceptr mapped = OpenLegacy(target.handle);
  const CUdeviceptr sources[] = {Device::Allocate(Bytes()), Device::Allocate(Bytes())};
  device.Fill(sources[0], Bytes(), kSeedA);
  device.Fill(sources[1], Bytes(), kSeedB);
  (void)Parent().Receive<WritersTurn>();
  Ready ready;
  if (arguments.at(0) == "forks") {
    ready.child = fork();
    if (ready.child == 0) {
      alarm(kLife);
      for (;;) pause();
    }
  }
  const auto copy = [&](uint64_t i) {
    Check(Driver().MemcpyAsync(mapped, sources[i % 2], Bytes(), device.stream()), "cuMemcpyAsync");
  };
  copy(0);
  copy(1);
  device.Wait(device.stream());
  Parent().Send(ready);
  for (uint64_t i = 0;; ++i) copy(i);  // A full channel holds this up. Until it is killed.
}

void KilledWriters() {
  // All start up at once; then each has its turn.
  constexpr bool kForks[] = {false, false, false, true, true};
  std::vector<std::unique_ptr<Peer>> writers;
  for (const bool forks : kForks)
    writers.push_back(std::make_unique<Peer>(std::vector<std::string>{"writer", forks ? "forks" : "alone"}));
  Device device(0);
  const Current current(device);
  const CUdeviceptr target = Device::Allocate(Bytes());
  device.Fill(target, Bytes(), 0);
  Target sent;
  Check(Driver().IpcGetMemHandle(&sent.handle, target), "cuIpcGetMemHandle");
  for (const auto& writer : writers) writer->channel().Send(sent);
  double alone = 0;
  double forked = 0;
  double death = 0;
  int torn = 0;
  for (size_t i = 0; i < writers.size(); ++i) {
    const Late late = KillOne(device, target, *writers[i]);
    double& most = kForks[i] ? forked : alone;
    most = std::max(most, late.ms);
    death = std::max(death, late.death_ms);
    torn += late.torn ? 1 : 0;
  }
  Print({.experiment =
             "E10: the last byte of a killed writer lands after its pidfd by: alone; with a forked child",
         .predicted = "at most 100",
         .measured = Text({alone, forked}),
         .unit = "ms",
         .verdict = VerdictIf(alone <= 100 && forked <= 100),
         .note = (PeerDevice() == 0 ? "within device 0" : "device 1 writes to device 0") +
                 std::string("; 3 and 2 kills, the longest; from the kill to the pidfd at most ") +
                 Text(death) + " ms; " + std::to_string(torn) + " of 5 left the target torn",
         .figures = {{"alone_ms", alone}, {"forked_ms", forked}, {"death_ms", death}, {"torn", torn}}});
}

}  // namespace probe
