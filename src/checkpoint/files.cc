#include "checkpoint/files.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>

#include "base/strings.h"
#include "checkpoint/json.h"

namespace weightcast::checkpoint {
namespace {

struct Meaning {
  Code code;
  std::string_view advice;
};

Meaning MeaningOf(int error) {
  switch (error) {
    case ENOSPC:
    case EDQUOT:
      return {Code::kExhausted, "; free some space there or choose another folder"};
    case EFBIG:
      return {Code::kExhausted, "; raise the limit of a file's size (ulimit -f) or choose another folder"};
    case ENOMEM:
      return {Code::kExhausted, "; give this process more memory"};
    case EMFILE:
    case ENFILE:
      return {Code::kExhausted, "; raise the limit of open files (ulimit -n)"};
    case EACCES:
    case EPERM:
      return {Code::kPermission, "; give this user access to it"};
    case EROFS:
      return {Code::kPermission, "; choose a folder that can be written"};
    case EXDEV:
      return {Code::kUnavailable, "; keep the folder on one file system"};
    case EIO:
    case ESTALE:
      return {Code::kUnavailable, "; check the disk, or the server of that file system (dmesg)"};
    case ENOENT:
    case ENOTDIR:
    case EISDIR:
    case ELOOP:
    case EINVAL:
    case ENAMETOOLONG:
      return {Code::kInvalidArgument, "; correct the path, or make what it names"};
    default:
      return {Code::kUnavailable, "; check that file system (dmesg)"};
  }
}

Result<struct stat> StatOf(int fd, const std::filesystem::path& path) {
  struct stat status{};
  if (fstat(fd, &status) != 0) return FileError("look at", path, errno);
  return status;
}

}  // namespace

Status FileError(std::string_view doing, const std::filesystem::path& path, int error) {
  const Meaning meaning = MeaningOf(error);
  return Error(meaning.code, "cannot ", doing, " ", path.native(), ": ", ErrnoText(error), meaning.advice);
}

Result<UniqueFd> OpenRegularFile(const std::filesystem::path& path) {
  UniqueFd fd(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY));
  if (!fd.valid()) return FileError("open", path, errno);
  WC_ASSIGN_OR_RETURN(const struct stat status, StatOf(fd.get(), path));
  if (!S_ISREG(status.st_mode))
    return Error(Code::kInvalidArgument, path.native(), " is not a regular file; give the path of one");
  return fd;
}

Result<UniqueFd> OpenFolder(const std::filesystem::path& path) {
  UniqueFd fd(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_DIRECTORY));
  if (!fd.valid()) return FileError("open folder", path, errno);
  return fd;
}

Result<std::string> ReadTextFile(const std::filesystem::path& path, size_t limit) {
  WC_ASSIGN_OR_RETURN(const UniqueFd fd, OpenRegularFile(path));
  WC_ASSIGN_OR_RETURN(const struct stat status, StatOf(fd.get(), path));
  if (static_cast<uint64_t>(status.st_size) > limit)
    return Error(Code::kCorrupt, path.native(), " has ", status.st_size,
                 " bytes, and the largest allowed size is ", limit,
                 "; give the right file, or write it again");
  std::string text(static_cast<size_t>(status.st_size), '\0');
  WC_RETURN_IF_ERROR(ReadAt(fd.get(), 0, std::as_writable_bytes(std::span(text)), path));
  return text;
}

Status ReadAt(int fd, uint64_t offset, std::span<std::byte> out, const std::filesystem::path& path) {
  while (!out.empty()) {
    const ssize_t got = pread(fd, out.data(), out.size(), static_cast<off_t>(offset));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return FileError("read", path, errno);
    if (got == 0)
      return Error(Code::kCorrupt, path.native(), " ends at byte ", offset,
                   ": it was shortened while in use; write each version into a new folder "
                   "and rename it into place");
    out = out.subspan(static_cast<size_t>(got));
    offset += static_cast<uint64_t>(got);
  }
  return Status::Ok();
}

Status WriteAll(int fd, std::span<const std::byte> bytes, const std::filesystem::path& path) {
  while (!bytes.empty()) {
    const ssize_t put = write(fd, bytes.data(), bytes.size());
    if (put < 0 && errno == EINTR) continue;
    if (put < 0) return FileError("write", path, errno);
    bytes = bytes.subspan(static_cast<size_t>(put));
  }
  return Status::Ok();
}

Status SyncFile(int fd, const std::filesystem::path& path) {
  if (fsync(fd) == 0) return Status::Ok();
  return FileError("flush to disk", path, errno);
}

Status MakeFolders(const std::filesystem::path& path, bool sync) {
  if (path.empty() || mkdir(path.c_str(), 0777) == 0 || errno == EEXIST) {
    // A new entry is safe only when the folder that holds it is flushed.
  } else if (errno == ENOENT && path.has_parent_path() && path.parent_path() != path) {
    WC_RETURN_IF_ERROR(MakeFolders(path.parent_path(), sync));
    if (mkdir(path.c_str(), 0777) != 0 && errno != EEXIST) return FileError("make folder", path, errno);
  } else {
    return FileError("make folder", path, errno);
  }
  if (!sync || path.empty()) return Status::Ok();
  const auto parent = path.has_parent_path() ? path.parent_path() : std::filesystem::path(".");
  WC_ASSIGN_OR_RETURN(const UniqueFd fd, OpenFolder(parent));
  return SyncFile(fd.get(), parent);
}

Status CheckPlainName(std::string_view what, std::string_view name) {
  const auto refuse = [&](std::string_view why) {
    return Error(Code::kInvalidArgument, what, " ", Shown(name), " ", why,
                 "; use 1 to 100 bytes, without '/' and control characters, and without a '.' at the front");
  };
  if (name.empty()) return refuse("is empty");
  if (name.size() > 100) return refuse("is longer than 100 bytes");
  if (name.front() == '.') return refuse("begins with '.'");
  const auto bad = [](char c) { return c == '/' || static_cast<unsigned char>(c) < 0x20 || c == 0x7F; };
  if (std::any_of(name.begin(), name.end(), bad)) return refuse("holds a '/' or a control character");
  return Status::Ok();
}

}  // namespace weightcast::checkpoint
