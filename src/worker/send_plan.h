#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "plan/table_format.h"
#include "protocol/messages.h"
#include "weightcast/endpoint.h"
#include "weightcast/rules.h"
#include "weightcast/settings.h"
#include "weightcast/status.h"
#include "weightcast/worker.h"
#include "worker/batches.h"
#include "worker/gather.h"
#include "worker/region_set.h"
#include "worker/route_segments.h"
#include "worker/staging.h"

namespace weightcast::worker {

class DeviceMemories;
class LandingMemory;

/// What a source has registered: shards and their registrations. Immutable.
struct SourceMemory {
  std::shared_ptr<const LandingMemory> landing;  ///< Of an inference rank: where the bytes are.
  std::vector<Shard> shards;                     ///< The user's, then scales that are computed from them.
  std::vector<size_t> computed_from{};           ///< Of each of the scales, the shard.
  std::shared_ptr<DeviceMemories> devices;       ///< Of shards that lie on any.
  std::shared_ptr<ShardReader> reader;  ///< Set: gives the bytes of all shards; nothing is registered.
  std::string rules;                    ///< JSON, of ToJson; empty: none.
  RegionSet regions;                    ///< Places as the user's shards; only dense ones are registered.
  std::vector<bool> dense;              ///< As `shards`.
  std::unordered_map<uint64_t, size_t> by_key;  ///< ShardKey → index of the shard.

  /// Without the scales.
  [[nodiscard]] std::span<const Shard> given() const {
    return std::span(shards).first(shards.size() - computed_from.size());
  }
  /// The user's shard that the bytes of a shard are computed from: itself, but of scales.
  [[nodiscard]] size_t OriginOf(size_t shard) const {
    const size_t count = given().size();
    return shard < count ? shard : computed_from[shard - count];
  }
};
/// Registers what is dense, nothing with a `reader`; refuses shards that no plan can use. Errors name the
/// tensor.
Result<std::shared_ptr<const SourceMemory>> RegisterSources(Endpoint& endpoint, std::vector<Shard> shards,
                                                            const NameRules& rules,
                                                            std::shared_ptr<ShardReader> reader = nullptr,
                                                            const Settings& settings = Settings());
/// The bytes that have landed at an inference rank as sources for others.
Result<std::shared_ptr<const SourceMemory>> RegisterSources(Endpoint& endpoint,
                                                            std::shared_ptr<const LandingMemory> landing,
                                                            const Settings& settings = Settings());

/// Regions of a peer, given back at the end.
class ImportedRegions {
 public:
  explicit ImportedRegions(Connection connection) : connection_(std::move(connection)) {}
  ~ImportedRegions() {
    for (const RemoteRegion& region : regions_) connection_.Release(region);
  }
  ImportedRegions(const ImportedRegions&) = delete;
  ImportedRegions& operator=(const ImportedRegions&) = delete;
  Status Add(std::string_view descriptor) {
    WC_ASSIGN_OR_RETURN(const RemoteRegion region, connection_.Import(descriptor));
    regions_.push_back(region);
    return Status::Ok();
  }
  /// In the order of Add.
  [[nodiscard]] const std::vector<RemoteRegion>& regions() const { return regions_; }

 private:
  Connection connection_;
  std::vector<RemoteRegion> regions_;
};

/// One destination of a plan, connected.
struct SendTarget {
  uint32_t destination = 0;  ///< Its number in the table.
  std::string name;          ///< "engine rollout-1 rank 0"
  Connection connection;
  std::shared_ptr<ImportedRegions> imported;
};

/// All that a source needs to send an update of one epoch. Immutable; any number of threads may read it.
struct SendPlan {
  plan::RankTable table;
  std::vector<Batches> batches;     ///< As table.peers.
  std::vector<SendTarget> targets;  ///< As table.peers.
  std::shared_ptr<const SourceMemory> memory;
  std::vector<size_t> sources;      ///< Per source_shards: index into `memory->shards`.
  std::vector<RemoteSlice> places;  ///< Per destination_shards.
  std::vector<uint32_t> parts;      ///< Per destination_shards: the part of an update with which it comes.

  /// Index into `targets`; -1 if the table has no route to that destination.
  [[nodiscard]] int TargetOf(uint32_t destination) const;
  /// Index into `memory->shards`.
  [[nodiscard]] size_t SourceOf(const Item& item) const {
    return sources[table.routes[item.route].src_shard];
  }
  [[nodiscard]] const Shard& ShardOf(const Item& item) const { return memory->shards[SourceOf(item)]; }
  /// Whether the elements are cast, quantised, gathered or read before they go.
  [[nodiscard]] bool IsStaged(const plan::RankTable::Route& route) const;
  [[nodiscard]] bool IsStaged(size_t target, uint32_t transfer) const;
};

/// Fills `sources`. Errors: kProtocol, naming the tensor, when the table wants a shard that is not registered
/// here.
Status FindSources(SendPlan& plan);
/// Fills places and parts of one destination; `imported` are the regions that its map counts. Errors:
/// kProtocol, naming the tensor, when its map lacks a shard or puts it outside its region.
Status FindPlaces(SendPlan& plan, int destination, const protocol::LandingMap& map,
                  std::span<const RemoteRegion> imported);

/// Appends the pieces of one transfer. Staged elements are in `staging` when it returns (empty if nothing is
/// staged).
Status MakePieces(const SendPlan& plan, size_t target, uint32_t transfer, const StagingSpace& staging,
                  std::vector<Piece>& pieces);

}  // namespace weightcast::worker
