#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/strings.h"
#include "control/plan_job.h"
#include "plan/table_format.h"
#include "protocol/identity.h"

namespace weightcast::control {
namespace {

/// Turns a plan into what each member is told.
class HandoutMaker {
 public:
  HandoutMaker(const PlanJob& job, const PlannedTable& planned, PlanOutput& output)
      : job_(job),
        table_(planned.table),
        output_(output),
        encoder_(planned.trainers, planned.inference, planned.table) {
    for (const auto& engine : job.engines)
      for (const PlanMember& member : engine) destinations_.push_back(&member);
  }

  Status Run() {
    FindPeers();
    if (!job_.tables.empty()) RemoveOldTables(job_);
    for (size_t rank = 0; rank < job_.sources.size(); ++rank) {
      auto& packets = output_.handouts.emplace_back(job_.sources[rank].session).packets;
      WC_ASSIGN_OR_RETURN(packets.emplace_back(), PlanFor(protocol::Role::kTrainer, rank, targets_[rank]));
      for (const int target : targets_[rank]) {
        WC_ASSIGN_OR_RETURN(packets.emplace_back(), LandingOf(static_cast<size_t>(target)));
      }
    }
    for (size_t number = 0; number < destinations_.size(); ++number) {
      auto& packets = output_.handouts.emplace_back(destinations_[number]->session).packets;
      WC_ASSIGN_OR_RETURN(packets.emplace_back(),
                          PlanFor(protocol::Role::kInference, number, sources_[number]));
    }
    return Status::Ok();
  }

 private:
  void FindPeers() {
    targets_.resize(job_.sources.size());
    sources_.resize(destinations_.size());
    landings_.resize(destinations_.size());
    for (size_t rank = 0; rank < job_.sources.size(); ++rank) {
      const auto [first, last] = table_.OfSource(static_cast<int>(rank));
      for (int64_t route = first; route < last; ++route) {
        const int target = table_.View(route).dst_rank;
        targets_[rank].insert(target);
        sources_[static_cast<size_t>(target)].insert(static_cast<int>(rank));
      }
    }
  }

  Result<SharedPacket> PlanFor(protocol::Role role, size_t number, const std::set<int>& peers) {
    const bool trainer = role == protocol::Role::kTrainer;
    using Role = plan::RankTable::Role;
    protocol::Plan message;
    message.epoch = job_.epoch;
    message.run = job_.run;
    message.gives = trainer && job_.from_engines;
    WC_ASSIGN_OR_RETURN(message.table, encoder_.Encode(trainer ? Role::kTrainer : Role::kInference,
                                                       static_cast<int>(number), job_.epoch));
    if (!job_.tables.empty()) {
      auto file = WriteTable(job_, role, number, message.table);
      if (file.ok()) {
        message.table_file = std::move(*file);
        message.table.clear();
      } else {
        output_.warning = StrCat(file.status().message(), "; until then tables go by network");
      }
    }
    const size_t others = trainer ? destinations_.size() : job_.sources.size();
    for (size_t peer = 0; peer < others; ++peer) {
      const PlanMember& other = trainer ? *destinations_[peer] : job_.sources[peer];
      protocol::Member& told = message.peers.emplace_back();
      told.name = other.member.name;
      if (!peers.contains(static_cast<int>(peer))) continue;
      told = other.member;
      if (trainer) told.key = KeyFor(job_.sources[number].member, other);
    }
    return MakePacket(protocol::ControllerMessage(std::move(message)));
  }

  /// Sources connect to destinations.
  [[nodiscard]] std::string KeyFor(const protocol::Member& source, const PlanMember& destination) const {
    return protocol::PairKey(destination.secret,
                             protocol::IdentityOf(job_.job, source.name, source.incarnation));
  }

  /// One packet for all trainers that write to this destination.
  Result<SharedPacket> LandingOf(size_t number) {
    SharedPacket& made = landings_[number];
    if (made == nullptr) {
      protocol::PeerLanding message{.destination = static_cast<uint32_t>(number),
                                    .map = *destinations_[number]->landing};
      message.map.epoch = job_.epoch;
      WC_ASSIGN_OR_RETURN(made, MakePacket(protocol::ControllerMessage(std::move(message))));
    }
    return made;
  }

  const PlanJob& job_;
  const plan::RoutingTable& table_;
  PlanOutput& output_;
  const plan::TableEncoder encoder_;
  std::vector<const PlanMember*> destinations_;
  std::vector<std::set<int>> targets_;  ///< Per trainer.
  std::vector<std::set<int>> sources_;  ///< Per destination.
  std::vector<SharedPacket> landings_;
};

}  // namespace

Status MakeHandouts(const PlanJob& job, const PlannedTable& planned, PlanOutput& output) {
  return HandoutMaker(job, planned, output).Run();
}

}  // namespace weightcast::control
