// How a caller's pieces become a transfer: checked, translated and counted, on the caller's thread.

#include <array>
#include <utility>

#include "base/strings.h"
#include "endpoint/connection.h"
#include "endpoint/core.h"
#include "endpoint/descriptor.h"
#include "endpoint/slices.h"

namespace weightcast {

using transport::OpKind;

namespace {

Status CheckAccess(OpKind kind, Access access, bool granted) {
  if (access == Access::kReadWrite) return Status::Ok();
  if (kind == OpKind::kRead) {
    if (access == Access::kRead) return Status::Ok();
    return {Code::kPermission,
            "the peer's region is not open to reads; let the peer register it with access read or readwrite"};
  }
  if (access == Access::kGranted) {
    if (granted) return Status::Ok();
    return {Code::kPermission,
            "the peer's region is written under a grant only, and none was given; let the peer open one, and "
            "write under it"};
  }
  return {
      Code::kPermission,
      "the peer's region is not open to writes; let the peer register it with access readwrite or granted"};
}

/// A transfer in the making. What it has counted is given back when it does not come to be.
class TransferBuilder {
 public:
  TransferBuilder(endpoint::Regions& regions, endpoint::Imports& imports, endpoint::TransferRef made)
      : transfer(std::move(made)), regions_(regions), imports_(imports) {}
  TransferBuilder(const TransferBuilder&) = delete;
  TransferBuilder& operator=(const TransferBuilder&) = delete;
  ~TransferBuilder() {
    if (transfer == nullptr) return;
    for (auto* local : transfer->locals) regions_.Done(*local);
    for (const uint32_t remote : transfer->remotes) imports_.Done(remote);
  }

  /// The next piece of a transfer on this connection.
  Status Add(const Piece& piece, const Connection::State& connection);

  endpoint::TransferRef transfer;
  bool all_to_device = true;

 private:
  static constexpr uint32_t kRemembered = 8;

  /// Each is found, and counted, once; more often only where many take turns.
  Result<const endpoint::RegisteredMemory*> Local(const LocalSlice& slice) {
    const uint32_t id = SliceAccess::IndexOf(slice);
    const uint64_t serial = SliceAccess::SerialOf(slice);
    const endpoint::RegisteredMemory*& last = locals_[id % kRemembered];
    if (last != nullptr && last->serial == serial) return last;
    auto& place = transfer->locals.emplace_back();  // First: what is counted is never without one.
    place = serial == 0 ? nullptr : regions_.Use(id);
    if (place != nullptr && place->serial == serial) return last = place;
    if (place != nullptr) regions_.Done(*place);
    transfer->locals.pop_back();
    return Status(
        Code::kInvalidArgument,
        "its local region is closed, or was registered with another endpoint; register its memory here");
  }
  Result<const endpoint::RemoteImport*> Remote(const RemoteSlice& slice) {
    const uint32_t index = SliceAccess::IndexOf(slice);
    const uint64_t serial = SliceAccess::SerialOf(slice);
    const endpoint::RemoteImport*& last = remotes_[index % kRemembered];
    if (last != nullptr && last->serial == serial) return last;
    transfer->remotes.push_back(index);
    const auto* const import = serial == 0 ? nullptr : imports_.Use(index);
    if (import != nullptr && import->serial == serial) return last = import;
    if (import != nullptr) imports_.Done(index);
    transfer->remotes.pop_back();
    return Status(
        Code::kInvalidArgument,
        "its remote region was released, or was imported on another connection; import it on this one");
  }

  endpoint::Regions& regions_;
  endpoint::Imports& imports_;
  std::array<const endpoint::RegisteredMemory*, kRemembered> locals_{};
  std::array<const endpoint::RemoteImport*, kRemembered> remotes_{};
};

/// Device memory is registered with few transports; of host memory that all have taken nothing is asked.
Status CheckDevice(const endpoint::RegisteredMemory& local, const Connection::State& connection) {
  if (local.memory.kind == MemoryKind::kHost) return Status::Ok();
  const std::string name = connection.view().transport_name();
  for (const endpoint::RegionKey& key : local.keys)
    if (key.transport == name) return Status::Ok();
  return {Code::kUnavailable,
          StrCat("its local region is memory of device ", local.memory.ordinal, ", which ", name, " to ",
                 connection.label(), " does not move; use host memory")};
}

Status TransferBuilder::Add(const Piece& piece, const Connection::State& connection) {
  WC_ASSIGN_OR_RETURN(const auto* local, Local(piece.local));
  WC_ASSIGN_OR_RETURN(const auto* remote, Remote(piece.remote));
  const uint64_t length = piece.local.length();
  if (piece.remote.length() != length) {
    return {Code::kInvalidArgument, StrCat("its local slice has ", length, " bytes, its remote slice ",
                                           piece.remote.length(), "; give two of equal length")};
  }
  WC_RETURN_IF_ERROR(CheckAccess(transfer->kind, remote->access, transfer->options.grant.id != 0));
  const PlacedPiece placed{.local_region = local->name.id,
                           .remote_region = static_cast<uint32_t>(remote->handle),
                           .local_offset = SliceAccess::OffsetOf(piece.local),
                           .remote_offset = remote->offset + SliceAccess::OffsetOf(piece.remote),
                           .length = length};
  // As they are given: the peer counts and checks the chunks of the same pieces.
  transfer->pieces.push_back(placed);
  transfer->bytes += length;
  WC_RETURN_IF_ERROR(CheckDevice(*local, connection));
  transfer->device |= local->memory.kind == MemoryKind::kDevice || remote->kind == MemoryKind::kDevice;
  all_to_device &= remote->kind == MemoryKind::kDevice;
  return Status::Ok();
}

}  // namespace

Result<endpoint::TransferRef> Connection::State::Begin(OpKind kind, std::span<const Piece> pieces,
                                                       TransferOptions options) {
  WC_RETURN_IF_ERROR(CheckUsable());
  if (options.after != nullptr && kind == OpKind::kRead)
    return Status(
        Code::kInvalidArgument,
        "this read was given a stream, for which only a write can wait; wait for the stream before the read");
  if (options.signal && (kind == OpKind::kRead || options.grant.id == 0)) {
    return Status(
        Code::kInvalidArgument,
        "a signal was asked for, which only a write under a grant can set; open a grant, or set no signal");
  }
  const uint64_t past = uint64_t{options.signal.value_or(0)} + options.signals;
  if (options.signals < 1 || options.signals > endpoint::SignalRange::kMostTogether ||
      past > endpoint::SignalRange::kMostTransfers) {
    return Status(
        Code::kInvalidArgument,
        StrCat("the write counts as ", options.signals, " transfers from number ", options.signal.value_or(0),
               " on; it may count as 1 to ", endpoint::SignalRange::kMostTogether, ", with numbers below ",
               endpoint::SignalRange::kMostTransfers));
  }
  TransferBuilder build(core_->regions(), imports_, core_->transfers().Take());
  Transfer::State& transfer = *build.transfer;
  transfer.core = core_;
  transfer.connection = shared_from_this();
  transfer.kind = kind;
  transfer.options = std::move(options);
  transfer.pieces.reserve(pieces.size());
  for (size_t i = 0; i < pieces.size(); ++i) {
    if (Status status = build.Add(pieces[i], *this); !status.ok()) {
      return Status(status.code(), StrCat(kind == OpKind::kRead ? "read from " : "write to ", label_,
                                          ", piece ", i, ": ", status.message()));
    }
  }
  if (transfer.device && transfer.options.checksum) {
    return Status(Code::kInvalidArgument,
                  "this transfer of device memory asks for checksums, which only host memory has; begin it "
                  "without them");
  }
  const uint64_t chunk = core_->settings().chunk;
  transfer.chunk_bytes = transfer.device && build.all_to_device ? DeviceChunk(chunk) : chunk;
  const uint64_t chunks = CountChunks(transfer.pieces, transfer.chunk_bytes);
  if (chunks > kMaxChunks) {
    return Status(Code::kInvalidArgument, StrCat("a transfer of ", chunks, " chunks, more than ", kMaxChunks,
                                                 "; split it, or raise the setting chunk"));
  }
  transfer.chunks = static_cast<uint32_t>(chunks);
  endpoint::TransferRef begun = std::exchange(build.transfer, {});
  const bool waited_for = begun->options.on_end == nullptr;
  const bool now = begun->bytes <= (begun->device ? at_once_device_ : at_once_);
  const auto start = [&] {
    Start(begun, /*visit=*/true);
    return sender_.in_flight() || core_->links().pumping();
  };
  if (!now || !core_->progress().TryVisit(start)) {
    core_->progress().Submit(TaskPtr(endpoint::TransferRef(begun).Release()), now);
  }
  if (!waited_for) core_->progress().WatchAgain();
  return begun;
}

void Connection::State::Start(const endpoint::TransferRef& transfer, bool visit) {
  sender_.Add(transfer);
  if (ended_) return sender_.EndAll(end_reason_);
  if (sender_.Pump() && visit) core_->links().Reap(*transport_);
  sender_.WatchDeadline(*transfer);
  if (sender_.wants_pump()) core_->links().WantPump(shared_from_this());
}

Result<RemoteRegion> Connection::State::Import(std::string_view descriptor) {
  WC_RETURN_IF_ERROR(CheckUsable());
  WC_ASSIGN_OR_RETURN(const auto region, endpoint::ParseDescriptor(descriptor));
  if (region.name.owner != peer().incarnation) {
    return Status(Code::kInvalidArgument, StrCat("the region belongs to incarnation ", region.name.owner,
                                                 ", not to ", label_, ", incarnation ", peer().incarnation,
                                                 "; if that process has restarted, import its new region"));
  }
  const std::string name = view_.transport_name();
  for (const endpoint::RegionKey& key : region.keys) {
    if (key.transport != name) continue;
    const auto handle = core_->links().Import(*transport_, link_, region.name, region.registered, key.key);
    if (!handle.ok())
      return Status(handle.status().code(),
                    StrCat("cannot import a region of ", label_, ": ", handle.status().message()));
    return imports_.Add({.handle = *handle,
                         .offset = region.offset,
                         .length = region.length,
                         .access = region.access,
                         .kind = region.kind});
  }
  if (region.kind == MemoryKind::kDevice) {
    return Status(Code::kUnavailable,
                  StrCat("the region is device memory of ", label_, ", which ", name,
                         " does not move; let the peer use host memory, or allow it another transport"));
  }
  return Status(Code::kUnavailable, StrCat(label_, " has not registered this region with ", name,
                                           "; allow the same transports on both sides (setting transport)"));
}

}  // namespace weightcast
