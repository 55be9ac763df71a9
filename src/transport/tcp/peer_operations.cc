#include "transport/tcp/peer_operations.h"

namespace weightcast::transport::tcp {

Code PeerOperations::Judge(const Frame& frame, LocalRegion*& region) const {
  region = regions_.Find(frame.region, frame.generation);
  if (region == nullptr || !PeersWrite(region->access, !GrantTable::IsStanding(frame.grant)))
    return Code::kPermission;
  if (!InBounds(frame.offset, frame.length, region->length)) return Code::kOutOfBounds;
  if (!grants_.IsOpen(frame.grant)) return Code::kFenced;
  return grants_.Covers(frame.grant, frame.region, frame.generation, frame.offset, frame.length)
             ? Code::kOk
             : Code::kPermission;
}

std::string_view PeerOperations::OnWrite(const Frame& frame, Code code) {
  if (frame.first) refusals_.Begin(frame.grant);
  if (code != Code::kOk) refusals_.Note(frame.grant, code);
  if (frame.has_signal) {
    const Code signal = Deliver(frame.signal);
    if (code == Code::kOk) code = signal;  // Its bytes are in place all the same.
  }
  return Answer(frame, code);
}

std::string_view PeerOperations::OnSignal(const Frame& frame) {
  if (frame.first) refusals_.Begin(frame.signal.grant);
  return Answer(frame, Deliver(frame.signal));
}

Code PeerOperations::Deliver(const Signal& signal) {
  const Code refused = refusals_.End(signal.grant);
  const Code code = refused == Code::kOk && !grants_.IsOpen(signal.grant) ? Code::kFenced : refused;
  if (code == Code::kOk) events_.Push(SignalArrived{link_, signal});
  return code;
}

std::string_view PeerOperations::Answer(const Frame& frame, Code code) {
  if (code != Code::kOk) return replies_.Answer(frame.sequence, code) ? "" : kTooMany;
  replies_.Ack(frame.sequence);
  return "";
}

std::string_view PeerOperations::OnRead(const Frame& frame) {
  LocalRegion* const region = regions_.Find(frame.region, frame.generation);
  if (region == nullptr || !PeersRead(region->access)) return Answer(frame, Code::kPermission);
  if (!InBounds(frame.offset, frame.length, region->length)) return Answer(frame, Code::kOutOfBounds);
  return replies_.Serve(frame.sequence, *region, frame.offset, frame.length) ? "" : kTooMany;
}

}  // namespace weightcast::transport::tcp
