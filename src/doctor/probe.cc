#include "doctor/probe.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <exception>
#include <fstream>

#include "base/advice.h"
#include "base/fd.h"
#include "base/process.h"
#include "base/socket.h"
#include "base/strings.h"

namespace weightcast::doctor {
namespace {

/// Far more than the facts of a large machine.
constexpr size_t kMostBytes = size_t{16} << 20;
/// The first byte of what a child sends: what it has found, or the text of an exception, follows.
constexpr char kFound = '+';
constexpr char kThrew = '!';

struct Child {
  pid_t pid = -1;
  UniqueFd pipe;
  std::string text;
};

/// Never returns. Whoever reads our standard output must not wait for a child that is stuck.
[[noreturn]] void RunChild(const Probe& probe, int out) {
  setpgid(0, 0);
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  const int null = open("/dev/null", O_RDWR);
  for (int fd = 0; null >= 0 && fd < 3; ++fd) dup2(null, fd);
  std::string text;
  try {
    text = kFound + probe.run();
  } catch (const std::exception& error) {
    text = kThrew + std::string(error.what());
  } catch (...) {
    _exit(1);
  }
  for (size_t sent = 0; sent < text.size();) {
    const ssize_t wrote = write(out, text.data() + sent, text.size() - sent);
    if (wrote < 0 && errno == EINTR) continue;
    if (wrote <= 0) _exit(1);
    sent += static_cast<size_t>(wrote);
  }
  _exit(0);
}

Result<Child> Start(const Probe& probe) {
  std::array<int, 2> ends{};
  if (pipe2(ends.data(), O_CLOEXEC) != 0)
    return Error(Code::kExhausted, "cannot make a pipe: ", ErrnoAndAdvice(errno));
  Child child{.pid = -1, .pipe = UniqueFd(ends[0]), .text = {}};
  const UniqueFd out(ends[1]);
  child.pid = fork();
  if (child.pid < 0) return Error(Code::kExhausted, "cannot start a process: ", ErrnoAndAdvice(errno));
  if (child.pid == 0) RunChild(probe, out.get());
  setpgid(child.pid, child.pid);  // Whoever of the two is first.
  return child;
}

/// A child that waits for a processor is no driver that hangs: a busy machine gets more time.
constexpr int kPatience = 4;

bool IsRunnable(pid_t pid) {
  std::ifstream file(StrCat("/proc/", pid, "/stat"));
  std::string line;
  std::getline(file, line);
  const size_t name_end = line.rfind(") ");
  return name_end != std::string::npos && line.size() > name_end + 2 && line[name_end + 2] == 'R';
}

/// Reads until the child closes its end. False at the deadline, or for a child that talks without end.
bool ReadAll(Child& child, TimePoint deadline, Duration limit) {
  std::array<char, 65536> part{};
  int left = kPatience;
  while (child.text.size() < kMostBytes) {
    if (!WaitFor(child.pipe.get(), POLLIN, deadline)) {
      if (--left <= 0 || !IsRunnable(child.pid)) return false;
      deadline = Clock::now() + limit;
      continue;
    }
    const ssize_t got = read(child.pipe.get(), part.data(), part.size());
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return got == 0;
    child.text.append(part.data(), static_cast<size_t>(got));
  }
  return false;
}

/// False where the child does not end in time: a driver may block in the exit of its process, too.
bool Reap(pid_t pid, TimePoint deadline, int& status) {
  if (const auto handle = OpenPidFd(pid); handle.ok()) WaitFor(handle->get(), POLLIN, deadline);
  return waitpid(pid, &status, WNOHANG) == pid;
}

Result<std::string> Finish(Child& child, TimePoint deadline, Duration limit) {
  static constexpr Duration kToEnd = std::chrono::milliseconds(100);
  const bool whole = ReadAll(child, deadline, limit);
  if (!whole) kill(-child.pid, SIGKILL);
  int status = 0;
  const bool ended = Reap(child.pid, std::max(deadline, Clock::now() + kToEnd), status);
  if (!whole) return Error(Code::kTimedOut, "gave no answer within ", Seconds(limit), " s");
  if (ended && WIFSIGNALED(status)) return Error(Code::kInternal, "was ended by signal ", WTERMSIG(status));
  if (ended && WEXITSTATUS(status) != 0)
    return Error(Code::kInternal, "ended with exit status ", WEXITSTATUS(status));
  if (child.text.empty()) return Status(Code::kInternal, "ended without an answer");
  std::string text = child.text.substr(1);
  if (child.text.front() == kThrew) return Error(Code::kInternal, "failed: ", text, kReportBug);
  return text;
}

}  // namespace

std::vector<Result<std::string>> RunProbes(const std::vector<Probe>& probes) {
  std::vector<Result<Child>> children;
  children.reserve(probes.size());
  const TimePoint begin = Clock::now();
  for (const Probe& probe : probes) children.push_back(Start(probe));
  std::vector<Result<std::string>> results;
  results.reserve(probes.size());
  for (size_t i = 0; i < probes.size(); ++i) {
    results.push_back(children[i].ok() ? Finish(*children[i], begin + probes[i].limit, probes[i].limit)
                                       : children[i].status());
  }
  return results;
}

}  // namespace weightcast::doctor
