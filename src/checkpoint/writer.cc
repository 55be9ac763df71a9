#include "checkpoint/writer.h"

#include <fcntl.h>

#include <cerrno>
#include <cstdio>
#include <cstring>

#include "base/random.h"
#include "base/strings.h"
#include "checkpoint/files.h"

namespace weightcast::checkpoint {
namespace {

// Reserving tells at once whether the disk has room, and keeps the file in one piece. Not every
// file system can; then a full disk shows while writing.
Status Reserve(int fd, int64_t bytes, const std::filesystem::path& path) {
  if (fallocate(fd, 0, 0, bytes) == 0) return Status::Ok();
  if (errno == ENOSPC || errno == EDQUOT || errno == EFBIG)
    return FileError(StrCat("reserve ", HumanBytes(static_cast<double>(bytes)), " for"), path, errno);
  return Status::Ok();
}

}  // namespace

Result<SafetensorsWriter> SafetensorsWriter::Create(const std::filesystem::path& path, const Header& header,
                                                    WriteOptions options) {
  SafetensorsWriter writer(path, header.data_bytes, options);
  WC_RETURN_IF_ERROR(writer.OpenTemporary(header.file_bytes()));
  const uint64_t length = header.json.size();
  std::byte first[kHeaderLengthBytes];
  std::memcpy(first, &length, sizeof first);
  WC_RETURN_IF_ERROR(WriteAll(writer.file_.get(), first, path));
  WC_RETURN_IF_ERROR(WriteAll(writer.file_.get(), std::as_bytes(std::span(header.json)), path));
  return writer;
}

Status SafetensorsWriter::OpenTemporary(int64_t file_bytes) {
  const auto parent = path_.has_parent_path() ? path_.parent_path() : std::filesystem::path(".");
  if (!path_.has_filename())
    return Error(Code::kInvalidArgument, "'", path_.native(), "' is not the name of a file; give one");
  WC_ASSIGN_OR_RETURN(folder_, OpenFolder(parent));
  auto name = StrCat(".", path_.filename().native(), ".", RandomId(), ".tmp");
  file_ = UniqueFd(openat(folder_.get(), name.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666));
  if (!file_.valid()) return FileError("write", path_, errno);
  temporary_ = std::move(name);
  return Reserve(file_.get(), file_bytes, path_);
}

SafetensorsWriter::~SafetensorsWriter() {
  if (folder_.valid() && !temporary_.empty()) unlinkat(folder_.get(), temporary_.c_str(), 0);
}

Status SafetensorsWriter::Append(std::span<const std::byte> bytes) {
  if (bytes.size() > static_cast<uint64_t>(left_))
    return Error(Code::kOutOfBounds, path_.native(), ": ", bytes.size(),
                 " bytes more were given, but its header leaves room for ", left_,
                 " only; please report this as a bug");
  left_ -= static_cast<int64_t>(bytes.size());
  return WriteAll(file_.get(), bytes, path_);
}

Status SafetensorsWriter::Finish() {
  if (left_ != 0)
    return Error(Code::kInvalidArgument, path_.native(), ": ", left_,
                 " bytes of its data are missing; please report this as a bug");
  if (options_.sync) WC_RETURN_IF_ERROR(SyncFile(file_.get(), path_));
  // On network file systems close is where a full disk shows.
  if (::close(file_.release()) != 0) return FileError("write", path_, errno);
  const std::string name = path_.filename();
  if (renameat(folder_.get(), temporary_.c_str(), folder_.get(), name.c_str()) != 0)
    return FileError("rename the temporary file to", path_, errno);
  temporary_.clear();
  return options_.sync ? SyncFile(folder_.get(), path_.parent_path()) : Status::Ok();
}

Status WriteSafetensors(const std::filesystem::path& path, const Header& header,
                        std::span<const std::span<const std::byte>> data, WriteOptions options) {
  if (data.size() != header.tensors.size())
    return Error(Code::kInvalidArgument, path.native(), ": data of ", data.size(),
                 " tensors for a header of ", header.tensors.size(), "; please report this as a bug");
  for (size_t i = 0; i < data.size(); ++i) {
    const StoredTensor& tensor = header.tensors[i];
    if (data[i].size() != static_cast<uint64_t>(tensor.end - tensor.begin))
      return Error(Code::kInvalidArgument, path.native(), ": tensor ", Shown(tensor.info.name), " has ",
                   tensor.end - tensor.begin, " bytes, but ", data[i].size(),
                   " were given; please report this as a bug");
  }
  WC_ASSIGN_OR_RETURN(SafetensorsWriter writer, SafetensorsWriter::Create(path, header, options));
  for (const auto& bytes : data) WC_RETURN_IF_ERROR(writer.Append(bytes));
  return writer.Finish();
}

}  // namespace weightcast::checkpoint
