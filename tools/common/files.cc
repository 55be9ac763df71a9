#include "tools/common/files.h"

#include <fcntl.h>
#include <linux/magic.h>
#include <sys/statvfs.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <cstdlib>
#include <limits>
#include <span>

#include "base/fd.h"
#include "base/random.h"
#include "base/strings.h"
#include "checkpoint/files.h"

namespace weightcast::tools {

Status WriteFileAtomically(const std::filesystem::path& path, std::string_view bytes) {
  std::filesystem::path temporary = path;
  temporary += StrCat(".", RandomId(), ".partial");
  const UniqueFd file(open(temporary.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644));
  if (!file.valid()) return checkpoint::FileError("write", path, errno);
  Status status = checkpoint::WriteAll(file.get(), std::as_bytes(std::span(bytes)), path);
  if (status.ok() && rename(temporary.c_str(), path.c_str()) != 0)
    status = checkpoint::FileError("write", path, errno);
  if (!status.ok()) unlink(temporary.c_str());
  return status;
}

Result<std::filesystem::path> MakeTemporaryFolder() {
  const char* base = std::getenv("TMPDIR");
  std::string name = StrCat(base != nullptr && *base != '\0' ? base : "/tmp", "/weightcast-XXXXXX");
  if (mkdtemp(name.data()) == nullptr) return checkpoint::FileError("make the folder", name, errno);
  return std::filesystem::path(name);
}

bool LiesInMemory(const std::filesystem::path& folder) {
  struct statfs info{};
  if (statfs(folder.c_str(), &info) != 0) return false;
  return info.f_type == TMPFS_MAGIC || info.f_type == RAMFS_MAGIC;
}

uint64_t FreeDisk(const std::filesystem::path& folder) {
  struct statvfs info{};
  if (statvfs(folder.c_str(), &info) != 0) return std::numeric_limits<uint64_t>::max();
  return uint64_t{info.f_bavail} * info.f_frsize;
}

}  // namespace weightcast::tools
