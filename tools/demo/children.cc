#include "tools/demo/children.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <map>

#include "base/advice.h"
#include "base/process.h"
#include "base/socket.h"
#include "base/strings.h"
#include "weightcast/clock.h"

namespace weightcast::tools {
namespace {

std::vector<char*> Pointers(std::vector<std::string>& texts) {
  std::vector<char*> pointers;
  pointers.reserve(texts.size() + 1);
  for (std::string& text : texts) pointers.push_back(text.data());
  pointers.push_back(nullptr);
  return pointers;
}

std::vector<std::string> Environment(const std::vector<std::pair<std::string, std::string>>& added) {
  std::map<std::string, std::string, std::less<>> all;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string_view line = *entry;
    const size_t equals = std::min(line.find('='), line.size());
    all[std::string(line.substr(0, equals))] = line.substr(std::min(equals + 1, line.size()));
  }
  for (const auto& [name, value] : added) all[name] = value;
  std::vector<std::string> lines;
  lines.reserve(all.size());
  for (const auto& [name, value] : all) lines.push_back(StrCat(name, "=", value));
  return lines;
}

/// In the child, between fork and exec: only calls that are safe there.
[[noreturn]] void BecomeWorker(pid_t parent, int socket, int log, char* const* arguments,
                               char* const* environment) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  // Ctrl-C at the terminal is for the parent, which then ends its children in order.
  setpgid(0, 0);
  if (getppid() != parent) _exit(127);  // It has died already.
  const int nothing = open("/dev/null", O_RDONLY);
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, nullptr);
  if (dup2(nothing, STDIN_FILENO) >= 0 && dup2(log, STDOUT_FILENO) >= 0 && dup2(log, STDERR_FILENO) >= 0 &&
      dup2(socket, kParentDescriptor) >= 0) {
    execve("/proc/self/exe", arguments, environment);
  }
  _exit(127);
}

/// The same descriptor with a number above those that the child is given.
Result<UniqueFd> AboveGiven(UniqueFd fd) {
  UniqueFd moved(fcntl(fd.get(), F_DUPFD_CLOEXEC, kParentDescriptor + 1));
  if (!moved.valid()) return Error(Code::kExhausted, "cannot copy a descriptor: ", ErrnoAndAdvice(errno));
  return moved;
}

}  // namespace

Result<Child> Child::Start(Options options) {
  int pair[2];
  if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) != 0)
    return Error(Code::kExhausted, "cannot make a pair of sockets: ", ErrnoAndAdvice(errno));
  Child child(std::move(options));
  child.socket_ = UniqueFd(pair[0]);
  WC_ASSIGN_OR_RETURN(const UniqueFd theirs, AboveGiven(UniqueFd(pair[1])));
  UniqueFd file(open(child.log().c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600));
  if (!file.valid())
    return Error(Code::kExhausted, "cannot write ", child.log().string(), ": ", ErrnoText(errno),
                 "; set TMPDIR to a folder with room where this user may write");
  WC_ASSIGN_OR_RETURN(const UniqueFd log, AboveGiven(std::move(file)));
  std::vector<std::string> arguments{"weightcast"};
  arguments.insert(arguments.end(), child.options_.arguments.begin(), child.options_.arguments.end());
  std::vector<std::string> environment = Environment(child.options_.environment);
  const std::vector<char*> argument_list = Pointers(arguments);
  const std::vector<char*> environment_list = Pointers(environment);
  const pid_t parent = getpid();
  const pid_t pid = fork();
  if (pid < 0) return Error(Code::kExhausted, "cannot start a process: ", ErrnoAndAdvice(errno));
  if (pid == 0) BecomeWorker(parent, theirs.get(), log.get(), argument_list.data(), environment_list.data());
  child.pid_ = Pid(pid);
  return child;
}

Child::~Child() {
  if (pid_.get() < 0 || Ended()) return;
  kill(pid_.get(), SIGKILL);
  waitpid(pid_.get(), nullptr, 0);
}

void Child::Signal(int signal) const {
  if (pid_.get() > 0 && !ended_) kill(pid_.get(), signal);
}

bool Child::Ended() {
  if (ended_ || pid_.get() < 0) return true;
  int status = 0;
  const pid_t got = waitpid(pid_.get(), &status, WNOHANG);
  if (got == 0 || (got < 0 && errno == EINTR)) return false;
  ended_ = true;
  if (got > 0 && WIFSIGNALED(status)) {
    how_ = StrCat("was killed by signal ", WTERMSIG(status), " (", strsignal(WTERMSIG(status)), ")");
  } else {
    how_ = StrCat("ended with exit code ", WEXITSTATUS(status));
    succeeded_ = got > 0 && WEXITSTATUS(status) == 0;
  }
  return true;
}

bool Child::WaitEnded(double seconds) {
  if (Ended()) return true;
  // A pidfd becomes readable when its process ends.
  if (auto pidfd = OpenPidFd(pid()); pidfd.ok())
    WaitFor(pidfd->get(), POLLIN, Clock::now() + FromSeconds(seconds));
  return Ended();
}

void EndChildren(std::vector<Child>& children, double grace_seconds) {
  for (Child& child : children)
    if (!child.Ended()) child.Signal(SIGTERM);
  const TimePoint deadline = Clock::now() + FromSeconds(grace_seconds);
  for (Child& child : children)
    if (!child.WaitEnded(Seconds(deadline - Clock::now()))) child.Signal(SIGKILL);
}

}  // namespace weightcast::tools
