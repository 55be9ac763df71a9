#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <ctime>
#include <filesystem>
#include <memory>
#include <span>

#include "base/fd.h"
#include "checkpoint/header.h"
#include "weightcast/status.h"

namespace weightcast::checkpoint {

namespace internal {
struct Unmap {
  size_t bytes = 0;
  void operator()(const std::byte* mapping) const;
};
}  // namespace internal

/// A safetensors file, mapped into memory. Const and thread safe once open.
///
/// The file must keep its size while it is open: a page of the mapping that a writer has cut off
/// kills the process that touches it (SIGBUS). Writers that replace a file by rename, as
/// weightcast and the reference writer do, are harmless. Where that cannot be relied upon, use
/// Read(), which gives an error instead; before a use of bytes(), CheckUnchanged() finds a file
/// that has been changed so far.
class SafetensorsFile {
 public:
  /// Maps the file and checks its header against its size.
  /// Errors: kInvalidArgument (no such file), kPermission, kCorrupt with the path and the reason.
  static Result<SafetensorsFile> Open(const std::filesystem::path& path);

  [[nodiscard]] const std::filesystem::path& path() const { return path_; }
  [[nodiscard]] const Header& header() const { return *header_; }
  /// All data, tensor after tensor.
  [[nodiscard]] std::span<const std::byte> data() const;
  /// Bytes of header().tensors[tensor], in the mapping: valid as long as this object lives, even
  /// when it is moved. Alignment is whatever the file gives, at times 1.
  [[nodiscard]] std::span<const std::byte> bytes(size_t tensor) const;

  /// Copies bytes [offset, offset + out.size()) of a tensor by read(2).
  /// Errors: kOutOfBounds; kCorrupt when the file has been shortened.
  Status Read(size_t tensor, uint64_t offset, std::span<std::byte> out) const;

  /// kCorrupt when size or time of modification are no longer those at Open.
  [[nodiscard]] Status CheckUnchanged() const;

 private:
  SafetensorsFile() = default;

  std::filesystem::path path_;
  UniqueFd fd_;
  std::unique_ptr<const Header> header_;
  std::unique_ptr<const std::byte, internal::Unmap> mapping_;
  int64_t file_bytes_ = 0;
  timespec modified_{};
};

}  // namespace weightcast::checkpoint
