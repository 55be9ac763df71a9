#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "checkpoint/json.h"
#include "weightcast/status.h"
#include "weightcast/tensor.h"

namespace weightcast::checkpoint {

/// The header of a safetensors file: 8 bytes, little-endian: length of the JSON; the JSON, padded
/// with spaces to a multiple of 8; then the data of all tensors side by side.
/// (The format: github.com/huggingface/safetensors, safetensors/src/tensor.rs.)
inline constexpr size_t kHeaderLengthBytes = 8;
inline constexpr int64_t kMaxHeaderBytes = 100'000'000;

/// A checked header: whoever holds one knows that the tensors lie side by side from 0 to
/// data_bytes, that every size is dtype times shape, that names are unique and that every tensor
/// passes plan::CheckTensor. Made by ParseHeader and MakeHeader only.
struct Header {
  std::vector<StoredTensor> tensors;  ///< In the order of their data.
  Metadata metadata;                  ///< In the order of the JSON.
  std::string json;                   ///< As it stands in the file, padding included.
  int64_t data_bytes = 0;

  /// Of the whole file.
  [[nodiscard]] int64_t file_bytes() const {
    return static_cast<int64_t>(kHeaderLengthBytes + json.size()) + data_bytes;
  }
};

/// How long the JSON is, from the first bytes of a file of `file_bytes`. Hostile input is fine.
/// Errors: kCorrupt.
Result<int64_t> ParseHeaderLength(std::span<const std::byte> first, int64_t file_bytes);

/// Checks a header. `data_bytes`: how many bytes follow it; nullopt where only the header is at
/// hand (one that came by network). Hostile input is fine.
/// Errors: kCorrupt, with the reason and the tensor.
Result<Header> ParseHeader(std::string json, std::optional<int64_t> data_bytes);

/// The header of a file with these tensors in this order, byte for byte what the reference writer
/// makes of that order. Errors: kInvalidArgument.
Result<Header> MakeHeader(std::span<const TensorInfo> tensors, const Metadata& metadata);

/// The order in which the reference writer stores tensors: widest dtype first, then by name.
std::vector<TensorInfo> ReferenceOrder(std::vector<TensorInfo> tensors);

}  // namespace weightcast::checkpoint
