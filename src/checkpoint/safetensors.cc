#include "checkpoint/safetensors.h"

#include <sys/mman.h>
#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <string>

#include "base/strings.h"
#include "checkpoint/files.h"

namespace weightcast::checkpoint {
namespace {

Status InFile(const std::filesystem::path& path, const Status& status) {
  return {status.code(), StrCat(path.native(), ": ", status.message())};
}

// The header goes through read(2): a file cut short under our eyes is an error here, not SIGBUS.
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

}  // namespace

void internal::Unmap::operator()(const std::byte* mapping) const {
  munmap(const_cast<std::byte*>(mapping), bytes);
}

Result<SafetensorsFile> SafetensorsFile::Open(const std::filesystem::path& path) {
  SafetensorsFile file;
  file.path_ = path;
  WC_ASSIGN_OR_RETURN(file.fd_, OpenRegularFile(path));
  struct stat status{};
  if (fstat(file.fd_.get(), &status) != 0) return FileError("look at", path, errno);
  file.file_bytes_ = status.st_size;
  file.modified_ = status.st_mtim;
  WC_ASSIGN_OR_RETURN(Header header, ReadHeader(file.fd_.get(), file.file_bytes_, path));
  file.header_ = std::make_unique<const Header>(std::move(header));

  const auto size = static_cast<size_t>(file.file_bytes_);
  void* mapping = mmap(nullptr, size, PROT_READ, MAP_SHARED, file.fd_.get(), 0);
  if (mapping == MAP_FAILED) return FileError("map", path, errno);
  file.mapping_ = {static_cast<const std::byte*>(mapping), internal::Unmap{size}};
  return file;
}

std::span<const std::byte> SafetensorsFile::data() const {
  return {mapping_.get() + kHeaderLengthBytes + header_->json.size(),
          static_cast<size_t>(header_->data_bytes)};
}

std::span<const std::byte> SafetensorsFile::bytes(size_t tensor) const {
  const StoredTensor& stored = header_->tensors[tensor];
  return data().subspan(static_cast<size_t>(stored.begin), static_cast<size_t>(stored.end - stored.begin));
}

Status SafetensorsFile::Read(size_t tensor, uint64_t offset, std::span<std::byte> out) const {
  const StoredTensor& stored = header_->tensors[tensor];
  const auto size = static_cast<uint64_t>(stored.end - stored.begin);
  if (offset > size || out.size() > size - offset)
    return {Code::kOutOfBounds, StrCat(path_.native(), ": tensor ", Shown(stored.info.name), " has ", size,
                                       " bytes, asked for ", out.size(), " from ", offset, " on")};
  const uint64_t begin = kHeaderLengthBytes + header_->json.size() + static_cast<uint64_t>(stored.begin);
  return ReadAt(fd_.get(), begin + offset, out, path_);
}

Status SafetensorsFile::CheckUnchanged() const {
  struct stat status{};
  if (fstat(fd_.get(), &status) != 0) return FileError("look at", path_, errno);
  if (status.st_size != file_bytes_)
    return {Code::kCorrupt, StrCat(path_.native(), " was changed while in use: it had ", file_bytes_,
                                   " bytes and has ", status.st_size)};
  if (status.st_mtim.tv_sec != modified_.tv_sec || status.st_mtim.tv_nsec != modified_.tv_nsec)
    return {Code::kCorrupt, StrCat(path_.native(), " was written to while in use")};
  return Status::Ok();
}

}  // namespace weightcast::checkpoint
