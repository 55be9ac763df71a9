#include "tests/model/fingerprints.h"

#include "wire/field_hash.h"

namespace weightcast::model {
namespace {

class Writer : public wire::FieldHash<Writer> {
 public:
  using FieldHash::Add;
  void Add(const wire::GrantRequest& request) { (*this)(request.update, request.version, request.part); }
  void Add(const wire::SourceBytes& bytes) { (*this)(bytes.source, bytes.bytes, bytes.seconds); }
  void Add(const worker::Publication& p) {
    (*this)(p.run, p.number, p.hold, p.cancelled, p.release, p.free, p.done, p.outcome);
  }
  void Add(const worker::Sending& s) { (*this)(s.update, s.number, s.destination, s.part, s.quiet); }
  void Add(const worker::Giving& g) { (*this)(g.update, g.destination, g.part, g.quiet); }
};

}  // namespace

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

uint64_t Fingerprint(const worker::GiverState& s) {
  Writer writer;
  writer(s.ended, s.term, s.epoch, s.prepared, s.givings);
  return writer.Hash();
}

uint64_t Fingerprint(const worker::TrainerState& s) {
  Writer writer;
  writer(s.ended, s.end, s.term, s.run, s.epoch, s.prepared, s.registered, s.last_number, s.publications,
         s.sendings, s.last_error);
  return writer.Hash();
}

}  // namespace weightcast::model
