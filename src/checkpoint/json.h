#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "weightcast/status.h"
#include "weightcast/tensor.h"

namespace weightcast::checkpoint {

/// String keys and values in the order in which they are written.
using Metadata = std::vector<std::pair<std::string, std::string>>;

/// One tensor of a file.
struct StoredTensor {
  TensorInfo info;
  int64_t begin = 0;  ///< Bytes from the beginning of the data.
  int64_t end = 0;
};

/// What a safetensors header says, in its own order; nothing is checked but the form.
struct HeaderText {
  std::vector<StoredTensor> tensors;
  Metadata metadata;
};

/// Takes a safetensors header apart. Memory is bounded by a small multiple of the text.
/// Errors: kCorrupt with the reason and, for what is no JSON, the place.
Result<HeaderText> ParseHeaderText(std::string_view json);

/// The weight_map of a model.safetensors.index.json: (tensor, file name) pairs in its order.
/// Other members are skipped. Errors: kCorrupt.
Result<Metadata> ParseIndexText(std::string_view json);

/// The other way round, escaped as the reference writer does it. Errors: kInvalidArgument when a name or the
/// metadata is not UTF-8.
Result<std::string> WriteHeaderText(const HeaderText& text);

/// A name from outside, fit for a message: quoted, escaped and cut at about 100 bytes.
std::string Shown(std::string_view name);

}  // namespace weightcast::checkpoint
