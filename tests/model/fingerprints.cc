#include "tests/model/fingerprints.h"

#include "base/bytes.h"
#include "base/hash.h"

namespace weightcast::model {
namespace {

/// Writes every field, vectors with their lengths.
class Writer {
 public:
  template <typename... Fields>
  void operator()(const Fields&... fields) {
    (Add(fields), ...);
  }
  [[nodiscard]] uint64_t Hash() const { return Hash64(std::string_view(out_.bytes())); }

 private:
  template <typename T>
    requires std::is_integral_v<T>
  void Add(T value) {
    out_.Put(value);
  }
  template <typename T>
    requires std::is_enum_v<T>
  void Add(T value) {
    out_.Put(static_cast<int>(value));
  }
  void Add(double value) { out_.PutRaw({reinterpret_cast<const char*>(&value), sizeof value}); }
  void Add(const std::string& text) { out_.PutString(text); }
  void Add(const Status& status) { (*this)(status.code(), status.message()); }
  void Add(const Version& version) { (*this)(version.run, version.number); }
  void Add(const wire::Term& term) { (*this)(term.number, term.id); }
  void Add(const wire::UpdateId& id) { (*this)(id.term, id.epoch, id.sequence, id.attempt); }
  void Add(const wire::GrantRequest& request) { (*this)(request.update, request.version); }
  void Add(const wire::WorkerName& name) { (*this)(name.role, name.engine, name.rank); }
  void Add(const wire::SourceBytes& bytes) { (*this)(bytes.source, bytes.bytes, bytes.seconds); }
  void Add(const worker::Publication& p) {
    (*this)(p.run, p.number, p.hold, p.release, p.free, p.done, p.outcome);
  }
  void Add(const worker::Sending& s) { (*this)(s.update, s.number, s.destination, s.quiet); }
  void Add(const worker::Giving& g) { (*this)(g.update, g.destination, g.quiet); }
  template <typename T>
  void Add(const std::optional<T>& value) {
    Add(value.has_value());
    if (value) Add(*value);
  }
  template <typename T>
  void Add(const std::vector<T>& values) {
    Add(values.size());
    for (const T& value : values) Add(value);
  }

  ByteWriter out_;
};

}  // namespace

uint64_t Fingerprint(const worker::InferenceState& s) {
  Writer writer;
  writer(s.self, s.verify, s.registered, s.landing, s.shares, s.suspended, s.asleep, s.ended, s.end, s.term,
         s.epoch, s.prepared, s.state, s.served, s.failed, s.user, s.call, s.cut_short, s.step, s.update,
         s.version, s.before, s.touched, s.commit, s.bytes, s.seconds, s.sources, s.abort, s.fenced,
         s.uncertain, s.undecided, s.abort_told, s.tell_aborted, s.abort_reason, s.next, s.closed,
         s.closed_lost, s.retried, s.pending_error, s.loss, s.loss_told, s.last_error, s.landed, s.lent,
         s.reclaiming);
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
