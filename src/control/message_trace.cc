#include "control/message_trace.h"

#include <algorithm>
#include <utility>

#include "base/wall_clock.h"
#include "protocol/codec.h"

namespace weightcast::control {
namespace {

uint64_t MicrosecondsNow() { return static_cast<uint64_t>(UnixMicroseconds()); }

size_t KeptBytes(const SharedPacket& packet) { return packet == nullptr ? 0 : packet->bytes(); }

protocol::TracedMessage InWords(protocol::TracedMessage message, const SharedPacket& sent) {
  if (sent == nullptr) return message;
  const auto decoded = protocol::DecodeControllerMessage(sent->parts.front());
  if (decoded.ok()) message.fields = protocol::BriefOf(*decoded);
  return message;
}

}  // namespace

void MessageTrace::AddReceived(const Peer& from, uint64_t number, size_t bytes,
                               const protocol::WorkerMessage& message) {
  Add({.message = {.microseconds = MicrosecondsNow(),
                   .model = from.model,
                   .worker = from.worker,
                   .received = true,
                   .number = number,
                   .bytes = bytes,
                   .name = std::string(protocol::NameOf(message)),
                   .fields = protocol::BriefOf(message)},
       .sent = nullptr});
}

void MessageTrace::AddSent(const Peer& to, uint64_t number, SharedPacket packet) {
  size_t bytes = 0;
  for (const std::string& part : packet->parts) bytes += part.size();
  Entry entry{.message = {.microseconds = MicrosecondsNow(),
                          .model = to.model,
                          .worker = to.worker,
                          .number = number,
                          .bytes = bytes,
                          .name = std::string(packet->name),
                          .fields = {}},
              .sent = nullptr};
  if (!packet->pieces) entry.sent = std::move(packet);
  Add(std::move(entry));
}

void MessageTrace::Add(Entry entry) {
  kept_ += KeptBytes(entry.sent);
  entries_.push_back(std::move(entry));
  while (entries_.size() > kMost || kept_ > kMostBytes) {
    kept_ -= KeptBytes(entries_.front().sent);
    entries_.pop_front();
    ++first_;
  }
}

protocol::Trace MessageTrace::From(uint64_t place) const {
  protocol::Trace trace{.first = std::clamp(place, first_, end()), .messages = {}};
  for (size_t i = trace.first - first_; i < entries_.size() && trace.messages.size() < protocol::kMaxTraced;
       ++i)
    trace.messages.push_back(InWords(entries_[i].message, entries_[i].sent));
  return trace;
}

}  // namespace weightcast::control
