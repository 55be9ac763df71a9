#include "wire/codec.h"

#include <array>

#include "wire/control.pb.h"
#include "wire/convert.h"
#include "wire/scan.h"

namespace weightcast::wire {
namespace {

/// Enough for kMaxShards shards, each with its tensor and name.
constexpr size_t kMaxElements = 4 * kMaxShards;

constexpr std::array<std::string_view, std::variant_size_v<WorkerMessage>> kWorkerNames = {
    "Hello",   "Register",  "LandingMap", "Prepared", "Published",  "Granted",
    "Ready",   "Committed", "Serving",    "Aborted",  "Failed",     "Suspended",
    "Steered", "Cancel",    "Heartbeat",  "Goodbye",  "AskOffered", "SentDigests"};
constexpr std::array<std::string_view, std::variant_size_v<ControllerMessage>> kControllerNames = {
    "Welcome", "Refused",    "Plan",      "PeerLanding", "Superseded",   "GrantRequest", "Start",
    "Commit",  "Serve",      "Stop",      "Abort",       "Release",      "Done",         "Lost",
    "Steer",   "Controlled", "Heartbeat", "Offered",     "SourceDigests"};
static_assert(!kWorkerNames.back().empty() && !kControllerNames.back().empty());

template <typename Proto, typename Message>
std::string EncodeAs(const Message& message) {
  Proto proto;
  Put(message, proto);
  return proto.SerializeAsString();
}

template <typename Proto, typename Message>
Result<Message> DecodeAs(std::string_view bytes) {
  if (bytes.size() > kMaxMessageBytes)
    return Status(Code::kProtocol, StrCat("a message of ", bytes.size(), " bytes; at most ", kMaxMessageBytes,
                                          " are allowed"));
  WC_RETURN_IF_ERROR(CheckElements(*Proto::descriptor(), bytes, kMaxElements));
  Proto proto;
  Check check(Proto::descriptor()->name());
  Message message;
  if (check.That(proto.ParseFromArray(bytes.data(), static_cast<int>(bytes.size())), "it is malformed"))
    Get(proto, message, check);
  if (!check.status().ok()) return check.status();
  return message;
}

}  // namespace

std::string Encode(const WorkerMessage& message) { return EncodeAs<pb::WorkerMessage>(message); }
std::string Encode(const ControllerMessage& message) { return EncodeAs<pb::ControllerMessage>(message); }
std::string Encode(const ClusterView& view) { return EncodeAs<pb::ClusterView>(view); }

Result<WorkerMessage> DecodeWorkerMessage(std::string_view bytes) {
  return DecodeAs<pb::WorkerMessage, WorkerMessage>(bytes);
}
Result<ControllerMessage> DecodeControllerMessage(std::string_view bytes) {
  return DecodeAs<pb::ControllerMessage, ControllerMessage>(bytes);
}
Result<ClusterView> DecodeClusterView(std::string_view bytes) {
  return DecodeAs<pb::ClusterView, ClusterView>(bytes);
}

std::string_view NameOf(const WorkerMessage& message) { return kWorkerNames[message.index()]; }
std::string_view NameOf(const ControllerMessage& message) { return kControllerNames[message.index()]; }

}  // namespace weightcast::wire
