#pragma once

#include <list>
#include <memory>
#include <vector>

#include "endpoint/chunks.h"
#include "endpoint/flag.h"
#include "endpoint/regions.h"
#include "endpoint/timers.h"
#include "weightcast/transfer.h"

namespace weightcast {

namespace endpoint {
class Core;
class RemoteImport;

/// A chunk that a lane took and did not deliver.
struct Resend {
  uint32_t chunk = 0;
  uint32_t attempts = 0;
  ChunkCursor begin;
};
}  // namespace endpoint

/// One transfer. What stands first is fixed before it is handed over; the rest belongs to the holder of
/// progress, but for `phase` and, once phase is 1, `outcome`.
class Transfer::State {
 public:
  static constexpr uint32_t kEnded = 1;
  static constexpr uint32_t kFenced = 2;

  std::shared_ptr<endpoint::Core> core;
  std::shared_ptr<void> connection;  ///< Held until fenced.
  transport::OpKind kind = transport::OpKind::kWrite;
  TransferOptions options;
  /// remote_region is the transport's handle, remote_offset is into its registration.
  std::vector<Piece> pieces;
  std::vector<std::shared_ptr<endpoint::Registration>> locals;  ///< Each used once or more.
  std::vector<std::shared_ptr<endpoint::RemoteImport>> remotes;
  uint64_t bytes = 0;
  uint32_t chunks = 1;

  endpoint::Flag phase;
  Status outcome;

  ChunkCursor next;          ///< Where the next chunk to be cut begins.
  uint32_t next_chunk = 0;   ///< Its number.
  uint32_t done = 0;         ///< Chunks delivered.
  uint32_t outstanding = 0;  ///< Chunks at the transport.
  std::vector<endpoint::Resend> resend;
  endpoint::TimerId timer;
  bool waiting = false;  ///< In the sender's list of those that have chunks to send.
  std::list<std::shared_ptr<State>>::iterator place;
};

}  // namespace weightcast
