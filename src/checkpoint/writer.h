#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>

#include "base/fd.h"
#include "checkpoint/header.h"
#include "weightcast/status.h"

namespace weightcast::checkpoint {

struct WriteOptions {
  /// Flush files and folders to disk before they get their name, so that a crash of the machine
  /// leaves whole files only. Without it a crash of the process still does.
  bool sync = true;
};

/// Writes one safetensors file, tensor after tensor, through a temporary in the same folder. The
/// file appears under its name, or replaces an older one, in the instant of Finish(); before that,
/// or when anything fails, there is no trace of it. Holds no data itself. One thread at a time.
///
/// A copy that equals its original byte for byte: pass the original's header (also one that came by
/// network and through ParseHeader: it carries the JSON as it was), and the data in its order.
class SafetensorsWriter {
 public:
  /// Makes the temporary, reserves its space on disk and writes the header. The folder must exist.
  /// Errors: kExhausted when the disk is full, kPermission, kInvalidArgument: with the path.
  static Result<SafetensorsWriter> Create(const std::filesystem::path& path, const Header& header,
                                          WriteOptions options = {});
  SafetensorsWriter(SafetensorsWriter&&) = default;
  SafetensorsWriter& operator=(SafetensorsWriter&&) = delete;
  /// Removes the temporary unless Finish() has succeeded.
  ~SafetensorsWriter();

  /// The next bytes of the data, in pieces of any size.
  /// Errors: kOutOfBounds when it is more than the header describes; kExhausted when the disk is full.
  Status Append(std::span<const std::byte> bytes);
  /// Flushes and puts the file in place. Errors: kInvalidArgument when data is missing; as Create.
  Status Finish();

 private:
  SafetensorsWriter(std::filesystem::path path, int64_t data_bytes, WriteOptions options)
      : path_(std::move(path)), left_(data_bytes), options_(options) {}
  Status OpenTemporary(int64_t file_bytes);

  std::filesystem::path path_;  ///< Of the file to be.
  int64_t left_;                ///< Bytes of data still to come.
  WriteOptions options_;
  UniqueFd folder_;
  UniqueFd file_;
  std::string temporary_;  ///< Name in the folder.
};

/// Writes a whole file: `data[i]` are the bytes of header.tensors[i].
/// Errors: as SafetensorsWriter; kInvalidArgument, naming the tensor, where a size does not fit.
Status WriteSafetensors(const std::filesystem::path& path, const Header& header,
                        std::span<const std::span<const std::byte>> data, WriteOptions options = {});

}  // namespace weightcast::checkpoint
