#include "worker/table_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>

#include "base/fd.h"
#include "base/strings.h"

namespace weightcast::worker {
namespace {

Result<std::string> ReadWhole(const std::string& path) {
  // Not blocking: opening a FIFO would wait for its writer, and with it everything that waits for the plan.
  const UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOFOLLOW));
  struct stat info{};
  if (!fd.valid() || ::fstat(fd.get(), &info) != 0) {
    return Error(Code::kUnavailable, "cannot read the routing table ", path, ": ", ErrnoText(errno),
                 "; setting tables must name a folder that controller and workers share");
  }
  if (!S_ISREG(info.st_mode) || static_cast<uint64_t>(info.st_size) > plan::kMaxTableBytes)
    return Error(Code::kCorrupt, path, " is not a routing table: it must be a regular file of at most ",
                 plan::kMaxTableBytes, " bytes, and has ", info.st_size,
                 "; remove it, or name a folder of its own in setting tables");
  std::string bytes(static_cast<size_t>(info.st_size), '\0');
  for (size_t done = 0; done < bytes.size();) {
    const ssize_t got = ::read(fd.get(), bytes.data() + done, bytes.size() - done);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0)
      return Error(Code::kUnavailable, "cannot read the routing table ", path, ": ", ErrnoText(errno),
                   "; name a folder of another file system in setting tables");
    if (got == 0)
      return Error(Code::kCorrupt, "the routing table ", path, " ends after ", done,
                   " bytes; make room in its folder, and start this worker again");
    done += static_cast<size_t>(got);
  }
  return bytes;
}

/// Only below the folder: what the path of another file names may be a device, or a file that never ends.
Status CheckPath(const std::string& file, const std::string& tables) {
  if (tables.empty())
    return Error(Code::kInvalidArgument, "the controller hands out the routing table in the file ", file,
                 "; give every worker the setting tables of the controller");
  for (const auto& part : std::filesystem::path(file))
    if (part == ".." || part == "/")
      return Error(Code::kProtocol, "the controller names the routing table ", file,
                   ", which is not in the folder ", tables,
                   "; give controller and workers the same setting tables");
  return Status::Ok();
}

}  // namespace

Result<plan::RankTable> LoadTable(const protocol::Plan& plan, const std::string& tables,
                                  plan::RankTable::Role role) {
  std::string path;
  std::string from_file;
  if (!plan.table_file.empty()) {
    WC_RETURN_IF_ERROR(CheckPath(plan.table_file, tables));
    path = StrCat(tables, "/", plan.table_file);
    WC_ASSIGN_OR_RETURN(from_file, ReadWhole(path));
  }
  const auto where = path.empty() ? std::string("the routing table") : StrCat("the routing table ", path);
  auto table = plan::DecodeRankTable(path.empty() ? plan.table : from_file);
  if (!table.ok()) {
    const Status& why = table.status();
    const std::string_view again =
        why.code() == Code::kCorrupt ? "; start this worker again to get a new one" : "";
    return Error(why.code(), path, path.empty() ? "" : ": ", why.message(), again);
  }
  if (table->role != role || table->epoch != plan.epoch) {
    return Error(
        Code::kInvalidArgument, where, " is of plan ", table->epoch, " for ",
        table->role == plan::RankTable::Role::kTrainer ? "a trainer" : "an inference rank", ", not of plan ",
        plan.epoch, " for ", role == plan::RankTable::Role::kTrainer ? "a trainer" : "an inference rank",
        path.empty() ? "; use the same weightcast on all hosts"
                     : "; delete the files of earlier runs there, or name another folder in setting tables");
  }
  for (const int peer : table->peers) {
    if (static_cast<size_t>(peer) < plan.peers.size() &&
        plan.peers[static_cast<size_t>(peer)].incarnation != 0)
      continue;
    return Error(Code::kProtocol, where, " names rank ", peer,
                 ", which the plan does not list; use the same weightcast on all hosts");
  }
  return table;
}

}  // namespace weightcast::worker
