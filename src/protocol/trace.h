#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "protocol/messages.h"

/// What the controller remembers of messages, behind `weightcast info --trace`.
namespace weightcast::protocol {

/// Messages in one answer.
inline constexpr size_t kMaxTraced = 512;
inline constexpr size_t kMaxTracedBytes = 1024;

/// Observer: answered by a Trace. From here on it gets no ClusterView.
struct AskTrace {
  uint64_t from = 0;  ///< The place of the first message that it wants.
};
constexpr auto Fields(Is<AskTrace> auto& m, auto&& visit) { return visit(F("from", m.from)); }

struct TracedMessage {
  uint64_t microseconds = 0;  ///< Since 1970, by the controller's clock.
  std::string model;
  WorkerName worker;
  bool received = false;  ///< From the worker; otherwise it was sent to it.
  uint64_t number = 0;    ///< As in the envelope.
  uint64_t bytes = 0;     ///< Of the encoded message; of one that was sent in pieces, theirs.
  std::string name;
  std::string fields;  ///< BriefOf; empty for a message that was cut into pieces when it was sent.
};
constexpr auto Fields(Is<TracedMessage> auto& m, auto&& visit) {
  return visit(F("microseconds", m.microseconds), F("model", m.model, Name{}), F("worker", m.worker),
               F("received", m.received), F("number", m.number), F("bytes", m.bytes),
               F("name", m.name, Name{}), F("fields", m.fields, Name{kMaxTracedBytes}));
}

/// Observer: what was said since it asked from, without Heartbeats.
struct Trace {
  uint64_t first = 0;  ///< The place of the first; above what was asked for, those between are forgotten.
  std::vector<TracedMessage> messages;
};
constexpr auto Fields(Is<Trace> auto& m, auto&& visit) {
  return visit(F("first", m.first), F("messages", m.messages, List{kMaxTraced}));
}

/// The members of a message in words that an observer may read: without random numbers, which open memory,
/// and with the size of bytes in place of bytes. At most kMaxTracedBytes, printable.
std::string BriefOf(const WorkerMessage& message);
std::string BriefOf(const ControllerMessage& message);

}  // namespace weightcast::protocol
