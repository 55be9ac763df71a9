#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <filesystem>

#include "base/fd.h"
#include "base/random.h"
#include "base/strings.h"
#include "control/plan_job.h"

namespace weightcast::control {
namespace {

namespace fs = std::filesystem;

constexpr uint32_t kEpochsKept = 2;
constexpr auto kKept = std::chrono::hours(1);

/// A name as one component of a path: no slash, no leading dot.
std::string SafeName(std::string_view name) {
  std::string safe;
  for (const char c : name) {
    const bool plain = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                       c == '-' || c == '_' || (c == '.' && !safe.empty());
    safe += plain ? std::string(1, c) : StrCat("%", ToHex({&c, 1}));
  }
  return safe;
}

std::string ModelFolder(const PlanJob& job) { return StrCat(SafeName(job.job), "/", SafeName(job.model)); }
std::string TermName(const PlanJob& job) { return StrCat("term-", job.term.number, "-", job.term.id); }
std::string TermFolder(const PlanJob& job) { return StrCat(ModelFolder(job), "/", TermName(job)); }

/// When something was last written to a folder of tables. By the clock of the folder's host, as all of them.
fs::file_time_type LastWritten(const fs::path& folder) {
  std::error_code error;
  fs::file_time_type last = fs::last_write_time(folder, error);
  for (fs::directory_iterator at(folder, error), end; !error && at != end; at.increment(error)) {
    std::error_code gone;
    last = std::max(last, fs::last_write_time(at->path(), gone));
  }
  return last;
}

Status WriteWhole(const std::string& path, std::string_view bytes) {
  const UniqueFd file(::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644));
  const auto failed = [&] {
    return Status(errno == ENOSPC || errno == EDQUOT ? Code::kExhausted : Code::kUnavailable,
                  StrCat("cannot write the routing table ", path, ": ", ErrnoText(errno),
                         "; let the controller write there and make room, or leave setting tables empty"));
  };
  if (!file.valid()) return failed();
  while (!bytes.empty()) {
    const ssize_t put = ::write(file.get(), bytes.data(), bytes.size());
    if (put < 0 && errno == EINTR) continue;
    if (put < 0) return failed();
    bytes.remove_prefix(static_cast<size_t>(put));
  }
  return ::fsync(file.get()) == 0 ? Status::Ok() : failed();
}

}  // namespace

Result<std::string> WriteTable(const PlanJob& job, protocol::Role role, size_t number,
                               std::string_view table) {
  const std::string folder = StrCat(TermFolder(job), "/epoch-", job.epoch);
  std::error_code error;
  fs::create_directories(job.tables + "/" + folder, error);
  if (error)
    return Error(Code::kUnavailable, "cannot make ", job.tables, "/", folder, ": ", error.message(),
                 "; let the controller write there and make room, or leave setting tables empty");
  const std::string file =
      StrCat(folder, "/", role == protocol::Role::kTrainer ? "trainer-" : "inference-", number, ".table");
  const std::string path = StrCat(job.tables, "/", file);
  const std::string temporary = StrCat(path, ".", RandomId(), ".new");
  Status status = WriteWhole(temporary, table);
  if (status.ok() && ::rename(temporary.c_str(), path.c_str()) != 0)
    status = Error(Code::kUnavailable, "cannot rename ", temporary, " to ", path, ": ", ErrnoText(errno),
                   "; let the controller write there and make room, or leave setting tables empty");
  if (!status.ok()) {
    ::unlink(temporary.c_str());
    return status;
  }
  return file;
}

void RemoveOldTables(const PlanJob& job) {
  // Folders of our own naming only, whatever else lies there.
  std::error_code error;
  const auto number_of = [](const fs::path& path, std::string_view prefix) {
    const std::string name = path.filename().string();
    return name.starts_with(prefix) ? ParseNumber<uint64_t>(std::string_view(name).substr(prefix.size()))
                                    : std::nullopt;
  };
  const fs::path model = fs::path(job.tables) / ModelFolder(job);
  const fs::path own = model / TermName(job);
  fs::create_directories(own / StrCat("epoch-", job.epoch), error);
  const fs::file_time_type now = fs::last_write_time(own, error);
  for (fs::directory_iterator at(model, error), end; !error && at != end; at.increment(error)) {
    const bool of_another = at->path() != own && at->path().filename().string().starts_with("term-");
    std::error_code ignored;  // What cannot be removed does no harm.
    if (of_another && LastWritten(at->path()) + kKept < now) fs::remove_all(at->path(), ignored);
  }
  error.clear();
  for (fs::directory_iterator at(own, error), end; !error && at != end; at.increment(error)) {
    const auto epoch = number_of(at->path(), "epoch-");
    std::error_code ignored;
    if (epoch && *epoch + kEpochsKept <= job.epoch) fs::remove_all(at->path(), ignored);
  }
}

}  // namespace weightcast::control
