#include "control/machine_state.h"
#include "protocol/field_hash.h"

namespace weightcast::control {
namespace {

class Writer : public protocol::FieldHash<Writer> {
 public:
  using FieldHash::Add;
  void Add(const Worker& w) {
    (*this)(w.session, w.group, w.rank, w.incarnation, w.connected, w.registered, w.landed, w.planned,
            w.prepared, w.landing, w.state, w.version, w.fencing, w.told, w.told_version, w.newest, w.parts,
            w.shares, w.holds, w.offered, w.hold, w.waiting);
  }
  void Add(const Group& g) {
    (*this)(g.id, g.name, g.world_size, g.members, g.in_plan, g.planned, g.in_full_plan, g.join_timer,
            g.grant_timer, g.fence_overdue, g.failed_prepares, g.failed_epoch, g.left_out, g.tries, g.tried,
            g.at_fault, g.last_error, g.loss, g.controlled, g.steering);
  }
  void Add(const Steering& c) {
    (*this)(c.session, c.incarnation, c.connected, c.order, c.move, c.version, c.done, c.failed, c.overdue);
  }
  void Add(const PlanState& p) {
    (*this)(p.epoch, p.phase, p.stale, p.delay, p.ever, p.sources, p.from_engines, p.partial, p.destinations);
  }
  void Add(const Receiver& r) {
    (*this)(r.session, r.group, r.rank, r.destination, r.id, r.step, r.started, r.grants, r.bytes, r.seconds,
            r.routes);
  }
  void Add(const Route& r) { (*this)(r.sender, r.bytes, r.seconds); }
  void Add(const Target& t) { (*this)(t.group, t.step, t.part, t.reason, t.overdue, t.late, t.rank); }
  void Add(const UpdateState& u) {
    (*this)(u.id, u.version, u.fresh, u.started, u.released, u.aborted, u.targets, u.receivers, u.trainers,
            u.unable, u.avoided, u.holders, u.repair_epoch, u.repairs, u.loss, u.absent);
  }
  void Add(const Withdrawn& w) { (*this)(w.number, w.reason); }
  void Add(const RunMember& m) { (*this)(m.rank, m.incarnation); }
};

}  // namespace

uint64_t Fingerprint(const MachineState& s) {
  Writer writer;
  writer(s.roster.workers(), s.roster.groups(), s.roster.next_group(), s.plan, s.update, s.sequence,
         s.attempt, s.run, s.run_before, s.run_seen, s.run_members, s.catch_up_timer, s.fence_timer,
         s.withdrawn, s.committed, s.last_error, s.engine_loss);
  return writer.Hash();
}

}  // namespace weightcast::control
