// How long many workers take to register with one controller, and what it costs both sides. Real streams over
// loopback: handshake, Hello, Welcome, Register. An inference rank asks what the trainers offer, and is
// answered once all have registered. Its engine has a second rank, which never comes: nothing is planned.
//
//     cmake -S . -B build/cost -G Ninja -DCMAKE_BUILD_TYPE=RelWithDebInfo -DWEIGHTCAST_INSTALL=OFF
//     cmake --build build/cost --target join_cost
//     build/cost/tests/join_cost [WORKERS] [LIMIT_SECONDS]
//
// Ends with 1 if not all have registered within the limit.
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <future>
#include <memory>
#include <semaphore>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "base/process.h"
#include "base/strings.h"
#include "control/client.h"
#include "protocol/identity.h"
#include "weightcast/clock.h"
#include "weightcast/worker.h"

namespace {

using namespace weightcast;

constexpr int kWorkersOfProcess = 1000;  ///< Each has two threads and some descriptors.

double Seconds(const timeval& time) {
  return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_usec) * 1e-6;
}
double Processor(const rusage& usage) { return Seconds(usage.ru_utime) + Seconds(usage.ru_stime); }

[[noreturn]] void Die(const std::string& what) {
  std::fprintf(stderr, "join_cost: %s\n", what.c_str());
  std::_Exit(1);
}

Settings SettingsFor(const std::string& address, const std::string& token_file) {
  return *Settings::From({{"controller", address},
                          {"token_file", token_file},
                          {"lease", "60"},
                          {"join_timeout", "600"},
                          {"log_level", "error"}});
}

[[noreturn]] void WaitClosed(int fd) {
  char byte = 0;
  while (::read(fd, &byte, 1) > 0) {
  }
  std::_Exit(0);
}

/// The controller: tells its address, serves until the other end of `until` is closed.
[[noreturn]] void Serve(const std::string& token_file, int tell, int until) {
  auto started =
      Controller::Start({.listen = "127.0.0.1:0",
                         .settings = {{"token_file", token_file}, {"lease", "60"}, {"log_level", "error"}}});
  if (!started.ok()) Die(started.status().ToString());
  const std::string address = (*started)->address() + "\n";
  if (::write(tell, address.data(), address.size()) < 0) Die("the address cannot be told");
  WaitClosed(until);
}

control::ClientOptions OptionsOf(const Settings& settings, protocol::WorkerName name, int world) {
  control::ClientOptions options;
  options.settings = settings;
  options.patient = true;
  options.hello.model = "policy";
  options.hello.name = std::move(name);
  options.hello.world_size = static_cast<uint32_t>(world);
  options.hello.secret = protocol::NewSecret();
  options.hello.incarnation = protocol::IncarnationOf(options.hello.secret);
  options.hello.addresses = {"127.0.0.1:1"};
  options.hello.host = "bench";
  options.on_state = [](control::LinkState state, const Status& why) {
    if (state == control::LinkState::kEnded) Die(why.ToString());
  };
  return options;
}

/// A worker that sends one message when it is welcomed.
class Worker {
 public:
  Worker(control::ClientOptions options, protocol::WorkerMessage first,
         std::function<void(const protocol::ControllerMessage&)> on_message)
      : first_(std::move(first)), on_message_(std::move(on_message)) {
    options.on_message = [this](const protocol::ControllerMessage& message) {
      started_.acquire();
      started_.release();
      if (std::holds_alternative<protocol::Welcome>(message)) client_->Send(first_);
      on_message_(message);
    };
    auto client = control::ControlClient::Start(std::move(options));
    if (!client.ok()) Die(client.status().ToString());
    client_ = std::move(*client);
    started_.release();
  }

 private:
  const protocol::WorkerMessage first_;
  const std::function<void(const protocol::ControllerMessage&)> on_message_;
  std::binary_semaphore started_{0};  ///< The first callback may come before `client_` is set.
  std::unique_ptr<control::ControlClient> client_;
};

/// Trainers first..last-1 of `world`. Stays until the other end of `until` is closed.
[[noreturn]] void Join(const Settings& settings, int first, int last, int world, int until) {
  const Shape shape = {256, 4};
  protocol::Register message;
  message.shards.push_back({.tensor = {.name = "w", .dtype = DType::kF32, .shape = shape},
                            .box = {.offset = {0, 0}, .size = shape},
                            .declared = false});
  std::vector<std::unique_ptr<Worker>> workers;
  for (int rank = first; rank < last; ++rank)
    workers.push_back(std::make_unique<Worker>(
        OptionsOf(settings, {protocol::Role::kTrainer, "", static_cast<uint32_t>(rank)}, world), message,
        [](const auto&) {}));
  WaitClosed(until);
}

struct Pipe {
  Pipe() {
    if (::pipe(ends) != 0) Die("no pipe");
  }
  void CloseWrite() { ::close(std::exchange(ends[1], -1)); }
  int ends[2] = {-1, -1};
};

std::string ReadLine(int fd) {
  std::string line;
  for (char byte = 0; ::read(fd, &byte, 1) == 1 && byte != '\n';) line += byte;
  return line;
}

double CostOf(pid_t child) {
  rusage usage{};
  int status = 0;
  if (::wait4(child, &status, 0, &usage) != child || status != 0) Die(StrCat("process ", child, " failed"));
  return Processor(usage);
}

}  // namespace

int main(int argc, char** argv) {
  const int workers = argc > 1 ? std::atoi(argv[1]) : 4096;
  const double limit = argc > 2 ? std::atof(argv[2]) : 600;
  if (workers < 1) Die("WORKERS must be at least 1");
  RaiseDescriptorLimit();
  std::string token_file = "/tmp/wc_join_token_XXXXXX";
  ::close(::mkstemp(token_file.data()));
  std::ofstream(token_file) << "4d7c1f90a2b865e3d1c07f6b98a3e254\n";

  Pipe address;
  Pipe end;
  const pid_t controller = ::fork();
  if (controller == 0) {
    end.CloseWrite();
    Serve(token_file, address.ends[1], end.ends[0]);
  }
  const Settings settings = SettingsFor(ReadLine(address.ends[0]), token_file);

  const TimePoint began = Clock::now();
  std::vector<pid_t> children;
  for (int first = 0; first < workers; first += kWorkersOfProcess) {
    const pid_t child = ::fork();
    if (child == 0) {
      end.CloseWrite();
      Join(settings, first, std::min(first + kWorkersOfProcess, workers), workers, end.ends[0]);
    }
    children.push_back(child);
  }
  std::promise<void> offered;
  const Worker rank(OptionsOf(settings, {protocol::Role::kInference, "e", 0}, 2), protocol::AskOffered{},
                    [&](const protocol::ControllerMessage& message) {
                      if (std::holds_alternative<protocol::Offered>(message)) offered.set_value();
                    });
  const bool all = offered.get_future().wait_until(began + FromSeconds(limit)) == std::future_status::ready;
  const double seconds = Seconds(Clock::now() - began);
  end.CloseWrite();
  double clients = 0;
  for (const pid_t child : children) clients += CostOf(child);
  const double server = CostOf(controller);
  ::unlink(token_file.c_str());
  std::printf("%d workers %s in %.2f s; processor time: controller %.2f s, workers %.2f s\n", workers,
              all ? "registered" : "have NOT all registered", seconds, server, clients);
  std::fflush(stdout);
  std::_Exit(all ? 0 : 1);
}
