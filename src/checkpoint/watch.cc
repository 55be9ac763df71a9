#include "checkpoint/watch.h"

#include <poll.h>
#include <sys/inotify.h>
#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <vector>

#include "base/strings.h"
#include "checkpoint/files.h"

namespace weightcast::checkpoint {
namespace {

namespace fs = std::filesystem;

bool IsDigit(char c) { return c >= '0' && c <= '9'; }

// Takes the number at the beginning of `text`, without leading zeros.
std::string_view TakeNumber(std::string_view& text) {
  const size_t end = std::min(text.find_first_not_of("0123456789"), text.size());
  std::string_view number = text.substr(0, end);
  text.remove_prefix(end);
  number.remove_prefix(std::min(number.find_first_not_of('0'), number.size()));
  return number;
}

// "step-9" before "step-10"; "007" and "7" differ only where nothing else does.
bool NaturalLess(const std::string& left, const std::string& right) {
  std::string_view a = left;
  std::string_view b = right;
  while (!a.empty() && !b.empty()) {
    if (IsDigit(a.front()) && IsDigit(b.front())) {
      const auto x = TakeNumber(a);
      const auto y = TakeNumber(b);
      if (x.size() != y.size()) return x.size() < y.size();
      if (x != y) return x < y;
      continue;
    }
    if (a.front() != b.front()) return a.front() < b.front();
    a.remove_prefix(1);
    b.remove_prefix(1);
  }
  return a.empty() != b.empty() ? a.empty() : left < right;
}

Status InotifyError(const fs::path& folder, int error) {
  const char* limit = error == EMFILE   ? "fs.inotify.max_user_instances"
                      : error == ENOSPC ? "fs.inotify.max_user_watches"
                                        : nullptr;
  if (limit == nullptr) return FileError("watch", folder, error);
  return Error(Code::kExhausted, "cannot watch ", folder.native(), ": ", ErrnoText(error), "; raise ", limit,
               " with sysctl");
}

}  // namespace

FolderWatcher::FolderWatcher(fs::path folder, UniqueFd inotify, WakeFd wake)
    : folder_(std::move(folder)), inotify_(std::move(inotify)), wake_(std::move(wake)) {}

Result<FolderWatcher> FolderWatcher::Open(const fs::path& folder) {
  UniqueFd inotify(inotify_init1(IN_CLOEXEC | IN_NONBLOCK));
  if (!inotify.valid()) return InotifyError(folder, errno);
  constexpr uint32_t kEvents =
      IN_MOVED_TO | IN_MOVED_FROM | IN_DELETE | IN_DELETE_SELF | IN_MOVE_SELF | IN_ONLYDIR;
  if (inotify_add_watch(inotify.get(), folder.c_str(), kEvents) < 0) return InotifyError(folder, errno);
  WC_ASSIGN_OR_RETURN(WakeFd wake, WakeFd::Create());
  FolderWatcher watcher(folder, std::move(inotify), std::move(wake));
  // After the watch began: what comes meanwhile is seen twice rather than never, and Add() knows it.
  WC_RETURN_IF_ERROR(watcher.Scan());
  return watcher;
}

Status FolderWatcher::Scan() {
  std::vector<std::string> names;
  std::error_code error;
  for (fs::directory_iterator at(folder_, error), end; !error && at != end; at.increment(error))
    names.push_back(at->path().filename());
  if (error) return FileError("list", folder_, error.value());
  std::sort(names.begin(), names.end(), NaturalLess);
  for (const auto& name : names) Add(name);
  return Status::Ok();
}

void FolderWatcher::Add(const std::string& name) {
  if (name.empty() || name.front() == '.') return;
  struct stat status{};
  if (stat((folder_ / name).c_str(), &status) != 0 || !S_ISDIR(status.st_mode)) return;
  const Identity identity{status.st_dev, status.st_ino};
  const auto [known, is_new] = seen_.try_emplace(name, identity);
  if (!is_new && known->second == identity) return;
  known->second = identity;
  // One that waits already will be opened as it then is.
  if (std::find(pending_.begin(), pending_.end(), name) == pending_.end()) pending_.push_back(name);
}

Result<std::optional<FolderWatcher::Arrival>> FolderWatcher::Next(std::optional<Duration> timeout) {
  std::optional<TimePoint> deadline;
  if (timeout) deadline = Clock::now() + std::min<Duration>(*timeout, std::chrono::hours(24 * 365));
  while (true) {
    WC_ASSIGN_OR_RETURN(const bool events, WaitForEvents(deadline));
    if (events && broken_.ok()) broken_ = ReadEvents();
    WC_RETURN_IF_ERROR(broken_);
    if (!pending_.empty()) {
      std::string name = std::move(pending_.front());
      pending_.pop_front();
      fs::path path = folder_ / name;
      auto checkpoint = Checkpoint::Open(path);
      return std::optional<Arrival>({std::move(name), std::move(path), std::move(checkpoint)});
    }
    if (!events && deadline && Clock::now() >= *deadline) return std::optional<Arrival>();
  }
}

// False: time is up, or there is something to do already.
Result<bool> FolderWatcher::WaitForEvents(std::optional<TimePoint> deadline) const {
  std::array<pollfd, 2> fds = {pollfd{.fd = inotify_.get(), .events = POLLIN, .revents = 0},
                               pollfd{.fd = wake_.fd(), .events = POLLIN, .revents = 0}};
  int milliseconds = -1;
  if (!pending_.empty() || !broken_.ok()) {
    milliseconds = 0;
  } else if (deadline) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(*deadline - Clock::now()).count();
    milliseconds = static_cast<int>(std::clamp<int64_t>(left, 0, 1'000'000));
  }
  if (poll(fds.data(), fds.size(), milliseconds) < 0 && errno != EINTR)
    return Error(Code::kInternal, "cannot wait for changes of ", folder_.native(), ": ", ErrnoText(errno),
                 "; please report this as a bug");
  if (fds[1].revents != 0)
    return Error(Code::kCancelled, "watching ", folder_.native(),
                 " was interrupted by a signal or a stop request; start this command again to go on");
  return fds[0].revents != 0;
}

Status FolderWatcher::ReadEvents() {
  alignas(inotify_event) std::array<char, 16384> buffer;
  while (true) {
    const ssize_t got = read(inotify_.get(), buffer.data(), buffer.size());
    if (got < 0 && errno == EINTR) continue;
    if (got < 0 && errno == EAGAIN) return Status::Ok();
    if (got <= 0) return FileError("watch", folder_, errno);
    for (const char* at = buffer.data(); at < buffer.data() + got;) {
      inotify_event event;
      std::memcpy(&event, at, sizeof event);
      const char* name = at + sizeof event;
      at = name + event.len;
      WC_RETURN_IF_ERROR(Apply(event.mask, {name, strnlen(name, event.len)}));
    }
  }
}

Status FolderWatcher::Apply(uint32_t mask, std::string_view name) {
  if ((mask & (IN_DELETE_SELF | IN_MOVE_SELF | IN_UNMOUNT | IN_IGNORED)) != 0)
    return Error(Code::kUnavailable, "the watched folder ", folder_.native(),
                 " was removed or moved; make it again and start this command again");
  if ((mask & IN_Q_OVERFLOW) != 0) return Scan();
  if ((mask & (IN_MOVED_FROM | IN_DELETE)) != 0) seen_.erase(std::string(name));
  if ((mask & IN_MOVED_TO) != 0) Add(std::string(name));
  return Status::Ok();
}

}  // namespace weightcast::checkpoint
