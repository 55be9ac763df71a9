#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "checkpoint/safetensors.h"
#include "weightcast/status.h"
#include "weightcast/tensor.h"

namespace weightcast::checkpoint {

/// All tensors of a model on disk, in one safetensors file or several. Const and thread safe once
/// open; what SafetensorsFile says of files that change holds for each file.
class Checkpoint {
 public:
  /// `path` is one of
  /// - a .safetensors file,
  /// - a folder with model.safetensors, or with model.safetensors.index.json and the files that it
  ///   names (in this folder: a name with a '/' is refused), or with exactly one .safetensors file.
  /// Errors: kInvalidArgument, kPermission, kCorrupt: with the path and the reason.
  static Result<Checkpoint> Open(const std::filesystem::path& path);

  /// In the order of the data in the files, files by name.
  [[nodiscard]] const std::vector<TensorInfo>& tensors() const { return tensors_; }
  /// The position of a tensor in tensors().
  [[nodiscard]] std::optional<size_t> Find(std::string_view name) const;
  [[nodiscard]] int64_t data_bytes() const { return data_bytes_; }
  [[nodiscard]] const std::vector<SafetensorsFile>& files() const { return files_; }
  /// Of a checkpoint of one file: with it, a copy can be written that equals the file byte for
  /// byte. nullptr for one of several files.
  [[nodiscard]] const Header* single_header() const;

  /// Copies part of the row-major bytes of tensors()[tensor] by read(2); see SafetensorsFile::Read.
  Status Read(size_t tensor, uint64_t offset, std::span<std::byte> out) const;
  /// Copies the row-major bytes of a box of a tensor by read(2).
  /// Errors: kInvalidArgument or kOutOfBounds when box, tensor and `out` do not fit; else as Read.
  Status ReadBox(size_t tensor, const Box& box, std::span<std::byte> out) const;
  [[nodiscard]] Status CheckUnchanged() const;

 private:
  struct Place {
    size_t file = 0;
    size_t index = 0;  ///< In that file's header.
  };
  Checkpoint() = default;
  static Result<Checkpoint> OpenIndex(const std::filesystem::path& folder,
                                      const std::filesystem::path& index);
  static Result<Checkpoint> OpenSingle(const std::filesystem::path& path);
  Status AddFile(const std::filesystem::path& path);

  std::vector<SafetensorsFile> files_;
  std::vector<TensorInfo> tensors_;
  std::vector<Place> places_;
  std::unordered_map<std::string, size_t> by_name_;
  int64_t data_bytes_ = 0;
};

}  // namespace weightcast::checkpoint
