#include "tools/watch/program.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <cstdlib>

#include "base/advice.h"
#include "base/fd.h"
#include "base/process.h"
#include "base/strings.h"
#include "tools/common/stop.h"

namespace weightcast::tools {
namespace {

constexpr int kNotRun = 127;

struct Pipe {
  UniqueFd read;
  UniqueFd write;
};

Result<Pipe> MakePipe() {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0)
    return Error(Code::kExhausted, "cannot make a pipe: ", ErrnoAndAdvice(errno));
  return Pipe{.read = UniqueFd(ends[0]), .write = UniqueFd(ends[1])};
}

Status PassOn(int fd, std::string_view text) {
  while (!text.empty()) {
    const ssize_t written = write(fd, text.data(), text.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0)
      return Error(Code::kUnavailable, "cannot pass the program's output on: ", ErrnoText(errno),
                   "; let what reads weightcast's output run on, or write it to a file with room");
    text.remove_prefix(static_cast<size_t>(written));
  }
  return Status::Ok();
}

/// In the child: only calls that are safe there.
[[noreturn]] void Become(char* const* arguments, int output, int error) {
  for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGALRM, SIGPIPE}) {
    struct sigaction before{};
    if (sigaction(signal, nullptr, &before) == 0 && (before.sa_handler != SIG_IGN || signal == SIGPIPE))
      std::signal(signal, SIG_DFL);
  }
  if (dup2(output, STDOUT_FILENO) >= 0 && dup2(error, STDERR_FILENO) >= 0) execvp(arguments[0], arguments);
  for (const std::string_view text :
       {std::string_view("weightcast: cannot run "), std::string_view(arguments[0]),
        std::string_view(": check its name, its mode (chmod +x) and PATH\n")}) {
    [[maybe_unused]] const ssize_t written = write(STDERR_FILENO, text.data(), text.size());
  }
  _exit(kNotRun);
}

/// One direction of what the program prints.
struct Stream {
  UniqueFd from;
  int to = -1;
  int number = 0;
};

/// False: the program has closed it.
Result<bool> Forward(const Stream& stream, const Program::Options& options) {
  std::array<char, 65536> buffer;
  const ssize_t got = read(stream.from.get(), buffer.data(), buffer.size());
  if (got < 0) return errno == EINTR || errno == EAGAIN;
  if (got == 0) return false;
  const std::string_view text(buffer.data(), static_cast<size_t>(got));
  WC_RETURN_IF_ERROR(PassOn(stream.to, text));
  options.heard(stream.number, text);
  return true;
}

/// Who asked this process to end may not have asked the program: only a terminal asks both.
void PassStopOn(pid_t pid) {
  alarm(0);  // The program decides how long its end takes; a second signal still ends this process at once.
  if (StopSignal() != SIGINT || isatty(STDIN_FILENO) == 0) kill(pid, StopSignal());
}

Status ForwardAll(std::array<Stream, 2>& streams, pid_t pid, const Program::Options& options) {
  const auto ended = OpenPidFd(pid);
  if (!ended.ok())
    return Error(ended.status().code(), "the program that was started: ", ended.status().message());
  bool stopping = false;
  bool over = false;
  while (streams[0].from.valid() || streams[1].from.valid()) {
    std::array<pollfd, 4> waits{{{streams[0].from.get(), POLLIN, 0},
                                 {streams[1].from.get(), POLLIN, 0},
                                 {stopping ? -1 : StopDescriptor(), POLLIN, 0},
                                 {over ? -1 : ended->get(), POLLIN, 0}}};
    // What it has started may hold the pipes for ever: after its end, only what is in them already.
    const int count = poll(waits.data(), waits.size(), over ? 0 : -1);
    if (count < 0 && errno != EINTR)
      return Error(Code::kInternal, "cannot wait for the program's output: ", ErrnoText(errno), kReportBug);
    if (count <= 0) {
      if (over && count == 0) return Status::Ok();
      continue;
    }
    if (waits[2].revents != 0) {
      stopping = true;
      PassStopOn(pid);
    }
    over = over || waits[3].revents != 0;
    for (size_t i = 0; i < streams.size(); ++i) {
      if (waits[i].revents == 0) continue;
      WC_ASSIGN_OR_RETURN(const bool open, Forward(streams[i], options));
      if (!open) streams[i].from.reset();
    }
  }
  return Status::Ok();
}

int CodeOf(pid_t pid) {
  int status = 0;
  while (waitpid(pid, &status, 0) < 0 && errno == EINTR) {
  }
  return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
}

}  // namespace

Result<int> Program::Run(const Options& options) {
  std::vector<std::string> words = options.words;
  if (words.size() == 1) words = {"/bin/sh", "-c", words.front()};
  std::vector<char*> arguments;
  for (std::string& word : words) arguments.push_back(word.data());
  arguments.push_back(nullptr);
  WC_ASSIGN_OR_RETURN(Pipe output, MakePipe());
  WC_ASSIGN_OR_RETURN(Pipe error, MakePipe());
  // Python would keep its lines back, and marks would come late.
  setenv("PYTHONUNBUFFERED", "1", /*overwrite=*/0);
  const pid_t pid = fork();
  if (pid < 0) return Error(Code::kExhausted, "cannot start a process: ", ErrnoAndAdvice(errno));
  if (pid == 0) Become(arguments.data(), output.write.get(), error.write.get());
  output.write.reset();
  error.write.reset();
  std::array<Stream, 2> streams{
      {{std::move(output.read), options.output_to_error ? STDERR_FILENO : STDOUT_FILENO, 1},
       {std::move(error.read), STDERR_FILENO, 2}}};
  const Status status = ForwardAll(streams, pid, options);
  if (!status.ok()) kill(pid, SIGTERM);  // Nobody reads what it prints any more.
  for (Stream& stream : streams) stream.from.reset();
  const int code = CodeOf(pid);
  if (!status.ok()) return status;
  return code;
}

}  // namespace weightcast::tools
