#pragma once

#include "control/machine_state.h"
#include "field_hash.h"

namespace weightcast::control {

class StateHash : public protocol::FieldHash<StateHash> {
 public:
  using FieldHash::Add;
  void Add(const Worker& w) {
    (*this)(w.session, w.group, w.rank, w.incarnation, w.connected, w.registered, w.landed, w.planned,
            w.prepared, w.landing, w.state, w.version, w.fencing, w.told, w.told_version, w.newest, w.parts,
            w.shares, w.holds, w.offered, w.hold, w.waiting);
  }
  /// A group, with what each rule keeps of it.
  void AddGroup(const Group& g, const MachineState& s) {
    const GroupPlan& p = s.plan.groups.Of(g.id);
    const EngineFailures& f = s.opening.failures.Of(g.id);
    const LastCommand& o = s.commands.last.Of(g.id);
    (*this)(g.id, g.name, g.world_size, g.members, p.in_plan, p.planned, p.in_full_plan,
            s.membership.join_timers.Of(g.id), s.deadlines.grant_timers.Of(g.id), g.fence_overdue,
            p.failed_prepares, p.failed_epoch, p.left_out, f.tries, f.tried, f.at_fault, g.last_error, g.loss,
            g.controlled, g.control, o.order, o.command, o.version, o.done, o.failed, o.overdue);
  }
  void Add(const Control& c) { (*this)(c.session, c.incarnation, c.connected); }
  void Add(const PlanState& p) {
    (*this)(p.epoch, p.phase, p.stale, p.delay, p.ever, p.sources, p.from_engines, p.partial, p.destinations);
  }
  void Add(const Receiver& r) {
    (*this)(r.session, r.group, r.rank, r.destination, r.id, r.step, r.started, r.grants, r.bytes, r.seconds,
            r.routes);
  }
  void Add(const Route& r) { (*this)(r.sender, r.bytes, r.seconds); }
  void AddOpen(const MachineState& s) {
    (*this)(s.updates.open.has_value());
    if (!s.updates.open) return;
    const UpdateState& u = *s.updates.open;
    (*this)(u.id, u.version, u.fresh, u.started, u.released, u.aborted, s.engines.targets.size());
    for (const Target& t : s.engines.targets)
      (*this)(t.group, t.step, t.part, t.reason, s.deadlines.overdue.Of(t.group), t.late, t.rank);
    const RepairState& r = s.repair;
    (*this)(s.ranks.receivers, u.trainers, r.unable, r.avoided, r.holders, r.epoch, r.repairs, r.loss,
            u.absent);
  }
  void Add(const Withdrawn& w) { (*this)(w.number, w.reason); }
  void Add(const RunMember& m) { (*this)(m.rank, m.incarnation); }
};

/// Equal states have equal fingerprints; others very probably different ones.
inline uint64_t Fingerprint(const MachineState& s) {
  StateHash writer;
  writer(s.roster.workers(), s.roster.groups().size());
  for (const Group& group : s.roster.groups()) writer.AddGroup(group, s);
  writer(s.roster.next_group(), s.plan);
  writer.AddOpen(s);
  writer(s.updates.sequence, s.updates.attempt, s.runs.run, s.runs.before, s.runs.seen, s.runs.members,
         s.publications.catch_up_timer, s.opening.fence_timer, s.publications.withdrawn, s.updates.committed,
         s.last_error, s.membership.engine_loss);
  return writer.Hash();
}

}  // namespace weightcast::control
