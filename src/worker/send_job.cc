#include "worker/send_job.h"

#include <algorithm>
#include <utility>

#include "worker/device_memory.h"
#include "worker/shards.h"
#include "worker/stage_item.h"

namespace weightcast::worker {
namespace {

/// So many transfers of sources in device memory go in one write.
constexpr uint32_t kTogether = 8;

}  // namespace

void SendJob::TellClock() {
  const auto made = plan->memory->reader != nullptr ? Kind::kRead : Kind::kStage;
  const auto idle = making > 0 ? made : Kind::kTurn;
  clock.Enter(running > making ? Kind::kWrite : idle);
}

std::vector<protocol::Span> SendJob::Spans(uint64_t chunk) const {
  std::vector<protocol::Span> spans;
  for (const Kind kind : SendClock::kKinds) {
    protocol::Span span{.kind = kind, .peer = to().destination, .part = part, .seconds = clock.seconds(kind)};
    if (kind == Kind::kWrite) {
      span.bytes = bytes;
      span.pieces = pieces;
      span.chunk = chunk;
      span.lanes = to().connection.lanes();
      span.path = to().connection.Describe().substr(0, protocol::kMaxConnectionBytes);
    }
    if (span.seconds > 0 || span.bytes > 0) spans.push_back(std::move(span));
  }
  return spans;
}

uint32_t SendJob::NextTogether() const {
  uint32_t count = 1;
  if (digests != nullptr || !of_device || plan->IsStaged(target, next)) return count;
  const uint32_t most = std::min(kTogether, transfers.end - next);
  while (count < most && !plan->IsStaged(target, next + count)) ++count;
  return count;
}

Status SendJob::Digest(uint32_t transfer, const StagingSpace& space) {
  uint64_t staged = 0;
  return digests->Add(transfer - transfers.first, *plan->memory->devices, [&, this](const Item& item) {
    const auto& route = plan->table.routes[item.route];
    const Shard& shard = plan->ShardOf(item);
    if (!plan->IsStaged(route))
      return ItemBytes{.in = ItemBytes::In::kSource, .data = DataOf(shard), .device = DeviceOf(shard)};
    const uint64_t at = StagedAt(space, staged);
    staged = at + StagedBytes(*plan, item);
    return ItemBytes{.in = ItemBytes::In::kAlone, .data = space.data + at, .device = space.device()};
  });
}

}  // namespace weightcast::worker
