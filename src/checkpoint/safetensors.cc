#include "checkpoint/safetensors.h"

#include <time.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <string>
#include <thread>

#include "base/advice.h"
#include "base/strings.h"
#include "checkpoint/files.h"

namespace weightcast::checkpoint {
namespace {

Status InFile(const std::filesystem::path& path, const Status& status) {
  return Error(status.code(), path.native(), ": ", status.message(),
               "; the file is damaged or was written wrongly: write it again");
}

Result<Header> ReadHeader(int fd, int64_t file_bytes, const std::filesystem::path& path) {
  std::array<std::byte, kHeaderLengthBytes> first{};
  const auto present = std::min<uint64_t>(first.size(), static_cast<uint64_t>(file_bytes));
  WC_RETURN_IF_ERROR(ReadAt(fd, 0, std::span(first).first(present), path));
  const auto length = ParseHeaderLength(std::span(first).first(present), file_bytes);
  if (!length.ok()) return InFile(path, length.status());

  std::string json(static_cast<size_t>(*length), '\0');
  WC_RETURN_IF_ERROR(ReadAt(fd, kHeaderLengthBytes, std::as_writable_bytes(std::span(json)), path));
  auto header = ParseHeader(std::move(json), file_bytes - static_cast<int64_t>(kHeaderLengthBytes) - *length);
  if (!header.ok()) return InFile(path, header.status());
  return header;
}

bool Same(const timespec& a, const timespec& b) { return a.tv_sec == b.tv_sec && a.tv_nsec == b.tv_nsec; }

/// What a file looks like once the clock of its times has moved on: a write in the same tick as the last one
/// would leave the same time.
Result<struct stat> SettledStat(int fd, const std::filesystem::path& path) {
  constexpr auto kTick = std::chrono::milliseconds(20);
  struct stat status{};
  for (int i = 0; i < 10; ++i) {
    if (fstat(fd, &status) != 0) return FileError("look at", path, errno);
    const auto since = [](const timespec& time) {
      return std::chrono::system_clock::now().time_since_epoch() - std::chrono::seconds(time.tv_sec) -
             std::chrono::nanoseconds(time.tv_nsec);
    };
    const auto age = std::min(since(status.st_mtim), since(status.st_ctim));
    if (age > kTick || age < -kTick) break;  // Far in the future: another host's clock.
    std::this_thread::sleep_for(kTick);
  }
  return status;
}

}  // namespace

Result<SafetensorsFile> SafetensorsFile::Open(const std::filesystem::path& path) {
  SafetensorsFile file;
  file.path_ = path;
  WC_ASSIGN_OR_RETURN(file.fd_, OpenRegularFile(path));
  WC_ASSIGN_OR_RETURN(file.opened_, SettledStat(file.fd_.get(), path));
  WC_ASSIGN_OR_RETURN(Header header, ReadHeader(file.fd_.get(), file.opened_.st_size, path));
  file.header_ = std::make_unique<const Header>(std::move(header));
  return file;
}

Status SafetensorsFile::Read(size_t tensor, uint64_t offset, std::span<std::byte> out) const {
  const StoredTensor& stored = header_->tensors[tensor];
  const auto size = static_cast<uint64_t>(stored.end - stored.begin);
  if (offset > size || out.size() > size - offset)
    return Error(Code::kOutOfBounds, path_.native(), ": tensor ", Shown(stored.info.name), " has ", size,
                 " bytes, but ", out.size(), " from byte ", offset, " on were asked for", kReportBug);
  const uint64_t begin = kHeaderLengthBytes + header_->json.size() + static_cast<uint64_t>(stored.begin);
  Status status = ReadAt(fd_.get(), begin + offset, out, path_);
  if (!status.ok()) WC_RETURN_IF_ERROR(CheckUnchanged());  // Says what to do.
  return status;
}

Status SafetensorsFile::CheckUnchanged() const {
  struct stat now{};
  if (fstat(fd_.get(), &now) != 0) return FileError("look at", path_, errno);
  const auto changed = [this](const std::string& what) {
    return Error(Code::kCorrupt, path_.native(), " was changed in place while in use: ", what,
                 "; write each version into a new folder and rename it into place");
  };
  if (now.st_size != opened_.st_size)
    return changed(StrCat("it had ", opened_.st_size, " bytes and has ", now.st_size));
  if (!Same(now.st_mtim, opened_.st_mtim)) return changed("it was written to");
  // A rename over it, or its removal, also renews the time of change; the bytes stay.
  if (now.st_nlink == opened_.st_nlink && !Same(now.st_ctim, opened_.st_ctim))
    return changed("its times, mode or name have changed");
  return Status::Ok();
}

}  // namespace weightcast::checkpoint
