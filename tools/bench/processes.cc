#include "tools/bench/processes.h"

#include <poll.h>
#include <sys/prctl.h>
#include <sys/wait.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <utility>

#include "base/advice.h"
#include "base/strings.h"
#include "tools/common/stop.h"

namespace weightcast::tools {
namespace {

constexpr size_t kMostOrder = 256 << 10;

}  // namespace

Result<pid_t> ForkWorker(const std::function<Status()>& work) {
  const pid_t parent = getpid();
  const pid_t pid = fork();
  if (pid < 0) return Error(Code::kExhausted, "cannot start a process: ", ErrnoAndAdvice(errno));
  if (pid > 0) return pid;
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) std::signal(signal, SIG_DFL);
  if (getppid() != parent) _exit(1);
  _exit(work().ok() ? 0 : 1);
}

Result<std::string> BenchParent::Next() const {
  return channel_.Receive(Clock::now() + std::chrono::hours(24), kMostOrder);
}

std::map<std::string, std::string> PatientSettings(const Context& context) {
  std::map<std::string, std::string> settings = context.overrides;
  for (const auto& [name, value] : {std::pair{"lease", "20"}, {"connect_timeout", "60"}, {"timeout", "300"}})
    if (context.settings.Get(name) == Settings().Get(name)) settings.emplace(name, value);
  return settings;
}

Status BenchProcesses::Start(const std::function<Status(const BenchParent&)>& work) {
  WC_ASSIGN_OR_RETURN(ChannelPair pair, MakeChannelPair());
  WC_ASSIGN_OR_RETURN(const pid_t pid, ForkWorker([&] {
                        pair.a.Close();
                        for (Process& other : processes_) other.channel.Close();
                        const Status status = work(BenchParent(pair.b));
                        if (!status.ok()) (void)pair.b.Answer(status, "");
                        return status;
                      }));
  processes_.push_back({pid, std::move(pair.a)});
  return Status::Ok();
}

Status BenchProcesses::Tell(size_t process, std::string_view bytes) const {
  return processes_[process].channel.Send(bytes);
}

Status BenchProcesses::TellAll(std::string_view bytes) const {
  for (size_t i = 0; i < processes_.size(); ++i) WC_RETURN_IF_ERROR(Tell(i, bytes));
  return Status::Ok();
}

Result<std::vector<std::string>> BenchProcesses::Gather(TimePoint deadline) const {
  std::vector<std::string> reports(processes_.size());
  std::vector<pollfd> polled;
  polled.reserve(processes_.size() + 1);
  for (const Process& process : processes_) polled.push_back({process.channel.fd(), POLLIN, 0});
  polled.push_back({StopDescriptor(), POLLIN, 0});
  for (size_t left = processes_.size(); left > 0;) {
    const double wait = std::max(0.0, Seconds(deadline - Clock::now()));
    const int ready = poll(polled.data(), polled.size(), static_cast<int>(wait * 1000) + 1);
    WC_RETURN_IF_ERROR(CheckStop());
    if (ready < 0) continue;
    if (ready == 0)
      return Error(Code::kTimedOut, left, " of ", processes_.size(),
                   " processes of the benchmark have not answered within its time "
                   "limit; run the benchmark where cores are idle");
    for (size_t i = 0; i < processes_.size(); ++i) {
      if (polled[i].revents == 0) continue;
      WC_ASSIGN_OR_RETURN(reports[i], processes_[i].channel.TakeAnswer(deadline));
      polled[i].fd = -1;  // One of each.
      --left;
    }
  }
  return reports;
}

void BenchProcesses::Kill() {
  for (const Process& process : processes_) kill(process.pid, SIGKILL);
  for (const Process& process : processes_) waitpid(process.pid, nullptr, 0);
  processes_.clear();
}

}  // namespace weightcast::tools
