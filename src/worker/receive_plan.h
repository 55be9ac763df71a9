#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "plan/table_format.h"
#include "protocol/messages.h"
#include "weightcast/endpoint.h"
#include "weightcast/status.h"
#include "worker/batches.h"
#include "worker/landing.h"

namespace weightcast::worker {

/// All that an inference rank needs to receive updates of one epoch. Immutable.
struct ReceivePlan {
  plan::RankTable table;
  std::vector<Batches> batches;  ///< As table.peers.
  struct Source {
    uint32_t source = 0;
    Incarnation incarnation = 0;
    std::string name;
    std::vector<std::vector<GrantRange>> ranges = {};  ///< What it may write, of each part.
  };
  std::vector<Source> sources;  ///< As table.peers.
  std::shared_ptr<const LandingMemory> memory;
  std::vector<size_t> shards;  ///< Per destination_shards: index into the memory's.
};

/// In how many chunks transfers [first, first + count) of a source come, when it cuts them to `chunk` bytes
/// (Connection::peer_chunk). `source`: index into ReceivePlan::sources.
uint64_t ChunksOf(const ReceivePlan& plan, size_t source, uint32_t first, uint32_t count, uint64_t chunk);

/// Reads the table and finds its shards. Errors: LoadTable's; kProtocol when it fills what is not registered.
Result<std::shared_ptr<const ReceivePlan>> MakeReceivePlan(const protocol::Plan& plan,
                                                           const std::string& tables,
                                                           std::shared_ptr<const LandingMemory> memory);

}  // namespace weightcast::worker
