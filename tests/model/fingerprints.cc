#include "tests/model/fingerprints.h"

#include "tests/field_hash.h"

namespace weightcast::model {
namespace {

class Writer : public protocol::FieldHash<Writer> {
 public:
  using FieldHash::Add;
  void Add(const worker::Publication& p) {
    (*this)(p.run, p.number, p.hold, p.cancelled, p.release, p.free, p.done, p.outcome);
  }
  void Add(const worker::Sending& s) { (*this)(s.update, s.number, s.destination, s.part, s.quiet); }
};

/// Of a message: who may say it, which of those it is, and all its members.
template <typename Message>
uint64_t FingerprintOf(char sender, const Message& message) {
  Writer writer;
  writer(sender, message.index());
  std::visit([&](const auto& what) { writer(what); }, message);
  return writer.Hash();
}

}  // namespace

uint64_t Fingerprint(const protocol::WorkerMessage& message) { return FingerprintOf('w', message); }
uint64_t Fingerprint(const protocol::ControllerMessage& message) { return FingerprintOf('c', message); }

uint64_t Fingerprint(const worker::InferenceState& s) {
  Writer writer;
  writer(s.self, s.verify, s.registered, s.landing, s.shares, s.parts, s.suspended, s.asleep, s.ended, s.end,
         s.term, s.epoch, s.prepared, s.state, s.newest, s.served, s.failed, s.user, s.call, s.cut_short,
         s.step, s.update, s.version, s.part, s.handover, s.before, s.touched, s.commit, s.bytes, s.seconds,
         s.sources, s.abort, s.fenced, s.uncertain, s.undecided, s.abort_told, s.tell_aborted, s.abort_reason,
         s.next, s.closed, s.closed_lost, s.closed_silently, s.retried, s.pending_error, s.loss, s.loss_told,
         s.last_error, s.landed, s.lent, s.reclaiming);
  return writer.Hash();
}

uint64_t Fingerprint(const worker::PeerSourceState& s) {
  Writer writer;
  writer(s.ended, s.term, s.epoch, s.prepared, s.sendings);
  return writer.Hash();
}

uint64_t Fingerprint(const worker::TrainerState& s) {
  Writer writer;
  writer(s.ended, s.end, s.term, s.run, s.epoch, s.prepared, s.registered, s.last_number, s.publications,
         s.sendings, s.last_error);
  return writer.Hash();
}

}  // namespace weightcast::model
