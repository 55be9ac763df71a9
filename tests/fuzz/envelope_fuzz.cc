// What a worker sends within its stream: an envelope is refused, or is what was enclosed; and the parts of
// messages never add up to more than was sent.
#include <cstdint>
#include <cstdlib>
#include <string>

#include "control/envelope.h"

using weightcast::control::Assembler;
using weightcast::control::Enclose;
using weightcast::control::OpenEnvelope;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string bytes(reinterpret_cast<const char*>(data), size);
  Assembler assembler;
  // Frames of several lengths, one after another.
  for (size_t at = 0, length = 1; at < size; at += length, length = length % 97 + 13) {
    const std::string body = bytes.substr(at, length);
    auto opened = OpenEnvelope(body);
    if (!opened.ok()) continue;
    if (Enclose(opened->envelope, opened->part) != body) std::abort();
    const auto message = assembler.Add(opened->envelope.kind, std::move(opened->part));
    if (!message.ok()) break;
    if (!*message) continue;
    size_t total = 0;
    for (const std::string& part : (*message)->parts) total += part.size();
    if (total > size) std::abort();
  }
  return 0;
}
