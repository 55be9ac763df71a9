#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "control/members.h"
#include "control/packet.h"
#include "plan/fused_cut.h"
#include "plan/planner.h"
#include "protocol/messages.h"
#include "weightcast/status.h"

namespace weightcast::control {

/// A worker as a plan needs it. What it points to is immutable: a new registration is a new object.
struct PlanMember {
  SessionId session = 0;
  protocol::Member member;
  std::string secret = {};  ///< The worker's; makes the keys of those who may connect to it.
  std::shared_ptr<const protocol::Register> registration;
  std::shared_ptr<const protocol::LandingMap> landing;  ///< Inference.
};

struct PlanJob {
  std::string job;
  std::string model;
  protocol::Term term;
  uint32_t epoch = 0;
  protocol::Run run;
  plan::Strategy strategy = plan::Strategy::kBalanced;
  uint64_t memory = 0;  ///< Setting plan_memory.
  std::string tables;   ///< Shared folder, or empty.
  std::vector<PlanMember> sources = {};
  bool from_engines =
      false;  ///< The sources are ranks of engines: names are theirs, and they are told to give.
  std::shared_ptr<const plan::FusedTensors> fused;  ///< As trainers were planned last; nullptr: not yet.
  std::vector<std::vector<PlanMember>> engines = {};
};

/// What each member is to be told, in order; ready to be sent.
struct PlanOutput {
  uint32_t epoch = 0;
  Status status;
  std::vector<SessionId> concerned;  ///< When it failed: whose fault it is. Empty: all of them are too many.
  struct Handout {
    SessionId session = 0;
    std::vector<SharedPacket> packets;  ///< Plan, then a source's PeerLandings.
  };
  std::vector<Handout> handouts;
  std::shared_ptr<const plan::FusedTensors> fused;  ///< For the jobs that follow.
  std::string summary;                              ///< A line for the log.
  std::string warning;  ///< Tables could not be written to the folder and went by network.
};

/// Plans, verifies, encodes. Takes as long as it takes; any thread. Fails, too, where memory runs out.
PlanOutput RunPlan(const PlanJob& job);

/// A plan and the layouts that it joins.
struct PlannedTable {
  const plan::Layout& trainers;
  const plan::Layout& inference;
  const plan::RoutingTable& table;
};
/// Adds what each member is told of it. Errors: kExhausted, too large to be sent.
Status MakeHandouts(const PlanJob& job, const PlannedTable& planned, PlanOutput& output);

/// Writes one table atomically; returns its path relative to `folder`:
/// "<job>/<model>/term-<number>-<id>/epoch-<n>/trainer-<rank>.table" or ".../inference-<number>.table".
Result<std::string> WriteTable(const PlanJob& job, protocol::Role role, size_t number,
                               std::string_view table);
/// Removes this controller's tables of epochs before the last one. Those of others, who may have the same
/// names and still run, only when nothing was written to them for an hour: nobody reads them any more.
void RemoveOldTables(const PlanJob& job);

}  // namespace weightcast::control
