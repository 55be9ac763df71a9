// One of each message, as the frames of a stream and, beside them, in JSON: what another reader of the wire
// is held against. `samples`: a line for each; `page`: docs/messages.md.
#include "unit/protocol/samples.h"

#include <cstdio>
#include <iterator>
#include <string>
#include <string_view>

#include "base/strings.h"
#include "control/envelope.h"
#include "control/packet.h"
#include "stream/frame.h"
#include "wire/describe.h"

namespace weightcast::wire {
namespace {

using namespace protocol;  // NOLINT(google-build-using-namespace)

/// Members in JSON; texts byte by byte, as code points up to 255.
class Members {
 public:
  static std::string Of(bool value) { return value ? "true" : "false"; }
  template <typename T>
    requires std::is_integral_v<T>
  static std::string Of(T value) {
    return std::to_string(value);
  }
  template <typename T>
    requires std::is_enum_v<T>
  static std::string Of(T value) {
    return std::to_string(static_cast<unsigned>(value));
  }
  static std::string Of(double value) { return StrCat(value); }
  static std::string Of(std::string_view text) {
    std::string out = "\"";
    for (const char& c : text) out += StrCat("\\u00", ToHex({&c, 1}));
    return out + "\"";
  }
  static std::string Of(const std::string& text) { return Of(std::string_view(text)); }
  static std::string Of(const Status& status) {
    return StrCat("{\"code\": ", Of(status.code()), ", \"message\": ", Of(status.message()), "}");
  }
  template <typename T>
  static std::string Of(const std::vector<T>& list) {
    std::string out;
    for (const T& element : list) out += StrCat(out.empty() ? "" : ", ", Of(element));
    return StrCat("[", out, "]");
  }
  template <HasFields T>
  static std::string Of(const T& message) {
    std::string out;
    Fields(message, [&](const auto&... fields) {
      ((out += StrCat(out.empty() ? "" : ", ", "\"", fields.name, "\": ", Of(fields.value))), ...);
    });
    return StrCat("{", out, "}");
  }
};

uint64_t number = 0;

void Print(const control::SharedPacket& packet, const std::string& members, const std::string& brief) {
  ++number;
  std::string frames;
  for (size_t part = 0; part < packet->parts.size(); ++part)
    stream::AppendFrame(
        frames, stream::FrameKind::kData,
        control::Enclose(
            {.number = number, .acknowledged = number + 1, .session = ~number, .kind = packet->kind(part)},
            packet->parts[part]));
  std::printf("{\"name\": \"%s\", \"number\": %ju, \"frames\": \"%s\", \"members\": %s, \"brief\": %s}\n",
              std::string(packet->name).c_str(), static_cast<uintmax_t>(number), ToHex(frames).c_str(),
              members.c_str(), Members::Of(brief).c_str());
}

/// Traces show what workers and the controller say, not what observers do.
std::string BriefOf(const ObserverMessage&) { return ""; }
std::string BriefOf(const ObserverReply&) { return ""; }

template <typename Message>
void PrintVariant(const Message& message) {
  const std::string members = std::visit([](const auto& what) { return Members::Of(what); }, message);
  Print(*control::MakePacket(message), members, BriefOf(message));
}

void PrintSamples() {
  for (const WorkerMessage& message : WorkerMessages()) PrintVariant(message);
  for (const ControllerMessage& message : ControllerMessages()) PrintVariant(message);
  for (const ObserverReply& message : ObserverReplies()) PrintVariant(message);
  for (const ObserverMessage& message : ObserverMessages()) PrintVariant(message);
  // One that travels in pieces, of bytes that do not compress.
  Plan plan{.epoch = 3, .table = {}, .table_file = {}, .peers = {}};
  uint64_t random = 1;
  for (size_t i = 0; i < size_t{3} << 19; ++i) {
    random = random * 6364136223846793005ULL + 1442695040888963407ULL;
    plan.table += static_cast<char>(random >> 56);
  }
  PrintVariant(ControllerMessage(plan));
}

}  // namespace
}  // namespace weightcast::wire

int main(int argc, char** argv) {
  const std::string_view what = argc == 2 ? argv[1] : "";
  if (what == "samples") {
    weightcast::wire::PrintSamples();
  } else if (what == "page") {
    std::fputs(weightcast::wire::MessagesPage().c_str(), stdout);
  } else {
    std::fputs("usage: wire_samples samples|page\n", stderr);
    return 2;
  }
  return 0;
}
