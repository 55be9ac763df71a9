// Frames of a stream: cut the same in whatever pieces they come, within their limit, or refused; and the
// reason of a close is one printable line.
#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>
#include <vector>

#include "base/strings.h"
#include "stream/frame.h"

using namespace weightcast;
using namespace weightcast::stream;

namespace {

struct Cut {
  std::vector<std::string> frames;
  bool refused = false;
  friend bool operator==(const Cut&, const Cut&) = default;
};

Cut CutIn(std::string_view bytes, size_t piece) {
  Cut cut;
  FrameDecoder decoder;
  for (size_t at = 0; at < bytes.size() && !cut.refused; at += piece) {
    decoder.Add(bytes.substr(at, piece));
    while (decoder.HasFrame() && !cut.refused) {
      const auto frame = decoder.Next();
      if (frame.ok() && !*frame) std::abort();  // HasFrame said otherwise.
      cut.refused = !frame.ok();
      if (!frame.ok()) break;
      if ((*frame)->body.size() > kMostFrameBytes) std::abort();
      cut.frames.emplace_back();
      AppendFrame(cut.frames.back(), (*frame)->kind, (*frame)->body);
    }
  }
  return cut;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  const Cut whole = CutIn(bytes, std::max<size_t>(size, 1));
  std::string all;
  for (const std::string& frame : whole.frames) all += frame;
  if (!bytes.starts_with(all)) std::abort();
  for (const size_t piece : {size_t{1}, size_t{7}})
    if (CutIn(bytes, piece) != whole) std::abort();
  const Status reason = DecodeReason(bytes);
  if (reason.ok() || !IsUtf8(reason.message()) || !IsPrintable(reason.message())) std::abort();
  if (reason.message().size() > kMostReasonBytes) std::abort();
  return 0;
}
