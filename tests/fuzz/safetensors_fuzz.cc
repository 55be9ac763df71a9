// Feeds hostile bytes to the readers of safetensors headers and of index files. What is accepted
// must keep the promises of Header, and must come back the same when it is written and read again.

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <span>
#include <string>
#include <vector>

#include "checkpoint/header.h"

namespace {

using weightcast::TensorInfo;
using weightcast::checkpoint::Header;

void Require(bool condition) {
  if (!condition) std::abort();
}

std::vector<TensorInfo> InfosOf(const Header& header) {
  std::vector<TensorInfo> infos;
  for (const auto& tensor : header.tensors) infos.push_back(tensor.info);
  return infos;
}

void CheckPromises(const Header& header) {
  int64_t end = 0;
  for (const auto& tensor : header.tensors) {
    Require(tensor.begin == end && tensor.end >= tensor.begin);
    Require(tensor.end - tensor.begin ==
            weightcast::BytesOf(tensor.info.dtype, weightcast::ElementsOf(tensor.info.shape)));
    end = tensor.end;
  }
  Require(header.data_bytes == end);
}

void CheckRoundTrip(const Header& header) {
  const auto infos = InfosOf(header);
  const auto made = weightcast::checkpoint::MakeHeader(infos, header.metadata);
  Require(made.ok());
  Require(InfosOf(*made) == infos && made->metadata == header.metadata);
  Require(made->data_bytes == header.data_bytes && made->json.size() % 8 == 0);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string text(reinterpret_cast<const char*>(data), size);
  (void)weightcast::checkpoint::ParseIndexText(text);
  (void)weightcast::checkpoint::Shown(text);

  const auto bytes = std::as_bytes(std::span(data, size));
  const auto length = weightcast::checkpoint::ParseHeaderLength(bytes, static_cast<int64_t>(size));
  if (length.ok()) Require(*length >= 0 && *length + 8 <= static_cast<int64_t>(size));

  // The whole input as a header, so that the fuzzer need not find the length first.
  const auto header = weightcast::checkpoint::ParseHeader(text, std::nullopt);
  if (!header.ok()) return 0;
  Require(header->json == text);
  CheckPromises(*header);
  Require(weightcast::checkpoint::ParseHeader(text, header->data_bytes).ok());
  Require(!weightcast::checkpoint::ParseHeader(text, header->data_bytes + 1).ok());
  CheckRoundTrip(*header);
  return 0;
}
