#include "endpoint/begin.h"

#include <array>
#include <utility>

#include "base/strings.h"
#include "endpoint/core.h"
#include "endpoint/transfers/slices.h"

namespace weightcast::endpoint {

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
  TransferBuilder(Registrations& regions, Imports& imports, TransferRef made)
      : transfer(std::move(made)), regions_(regions), imports_(imports) {}
  TransferBuilder(const TransferBuilder&) = delete;
  TransferBuilder& operator=(const TransferBuilder&) = delete;
  ~TransferBuilder() {
    if (transfer == nullptr) return;
    for (auto* local : transfer->locals) regions_.Done(*local);
    for (const uint32_t remote : transfer->remotes) imports_.Done(remote);
  }

  /// The next piece of a transfer on this connection.
  Status Add(const Piece& piece, const ConnectionView& connection);

  TransferRef transfer;
  bool all_to_device = true;

 private:
  static constexpr uint32_t kRemembered = 8;

  /// Each is found, and counted, once; more often only where many take turns.
  Result<const RegisteredMemory*> Local(const LocalSlice& slice) {
    const uint32_t id = SliceAccess::IndexOf(slice);
    const uint64_t serial = SliceAccess::SerialOf(slice);
    const RegisteredMemory*& last = locals_[id % kRemembered];
    if (last != nullptr && last->serial == serial) return last;
    auto& place = transfer->locals.emplace_back();  // First: what is counted is never without one.
    place = serial == 0 ? nullptr : regions_.Use(id);
    if (place != nullptr && place->serial == serial) return last = place;
    if (place != nullptr) regions_.Done(*place);
    transfer->locals.pop_back();
    return Status(Code::kInvalidArgument,
                  "the local region is closed, or was registered with another endpoint; register the memory "
                  "with this one");
  }
  Result<const RemoteImport*> Remote(const RemoteSlice& slice) {
    const uint32_t index = SliceAccess::IndexOf(slice);
    const uint64_t serial = SliceAccess::SerialOf(slice);
    const RemoteImport*& last = remotes_[index % kRemembered];
    if (last != nullptr && last->serial == serial) return last;
    transfer->remotes.push_back(index);
    const auto* const import = serial == 0 ? nullptr : imports_.Use(index);
    if (import != nullptr && import->serial == serial) return last = import;
    if (import != nullptr) imports_.Done(index);
    transfer->remotes.pop_back();
    return Status(
        Code::kInvalidArgument,
        "the peer's region was released, or was imported on another connection; import it on this one");
  }

  Registrations& regions_;
  Imports& imports_;
  std::array<const RegisteredMemory*, kRemembered> locals_{};
  std::array<const RemoteImport*, kRemembered> remotes_{};
};

/// Device memory is registered with few transports; of host memory that all have taken nothing is asked.
Status CheckDevice(const RegisteredMemory& local, const ConnectionView& connection) {
  if (local.memory.kind == MemoryKind::kHost) return Status::Ok();
  const std::string name = connection.transport_name();
  for (const RegionKey& key : local.keys)
    if (key.transport == name) return Status::Ok();
  return Error(Code::kUnavailable, "the local region is memory of device ", local.memory.ordinal,
               ", which transport ", name, " of this connection does not move; use host memory");
}

Status TransferBuilder::Add(const Piece& piece, const ConnectionView& connection) {
  WC_ASSIGN_OR_RETURN(const auto* local, Local(piece.local));
  WC_ASSIGN_OR_RETURN(const auto* remote, Remote(piece.remote));
  const uint64_t length = piece.local.length();
  if (piece.remote.length() != length) {
    return Error(Code::kInvalidArgument, "the local slice has ", length, " bytes, the peer's slice ",
                 piece.remote.length(), "; give two of equal length");
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

Result<TransferRef> BuildTransfer(const std::shared_ptr<Connection::State>& connection, OpKind kind,
                                  std::span<const Piece> pieces, TransferOptions options) {
  if (options.after != nullptr && kind == OpKind::kRead)
    return Status(
        Code::kInvalidArgument,
        "this read was given a stream, for which only a write can wait; wait for the stream before the read");
  if (options.signal && (kind == OpKind::kRead || options.grant.id == 0)) {
    return Status(Code::kInvalidArgument,
                  "only a write under a grant sets a signal; let the peer open one and write under it, or "
                  "set no signal");
  }
  const uint64_t past = uint64_t{options.signal.value_or(0)} + options.signals;
  if (options.signals < 1 || options.signals > SignalRange::kMostTogether ||
      past > SignalRange::kMostTransfers) {
    return Error(Code::kInvalidArgument, "the transfer has signals ", options.signals, " and signal ",
                 options.signal.value_or(0), "; signals may be 1 to ", SignalRange::kMostTogether,
                 ", and the sum of both at most ", SignalRange::kMostTransfers);
  }
  Core& core = *connection->core();
  TransferBuilder build(core.regions(), connection->imports(), core.transfers().Take());
  Transfer::State& transfer = *build.transfer;
  transfer.owner = connection->core();
  transfer.connection = connection;
  transfer.kind = kind;
  transfer.options = std::move(options);
  transfer.pieces.reserve(pieces.size());
  for (size_t i = 0; i < pieces.size(); ++i) {
    if (Status status = build.Add(pieces[i], connection->view()); !status.ok()) {
      return Error(status.code(), kind == OpKind::kRead ? "read from " : "write to ",
                   connection->view().peer().label, ", piece ", i, ": ", status.message());
    }
  }
  if (transfer.device && transfer.options.checksum) {
    return Status(Code::kInvalidArgument,
                  "this transfer of device memory asks for checksums, which only host memory has; begin it "
                  "without them");
  }
  const uint64_t chunk = core.settings().chunk;
  transfer.chunk_bytes = transfer.device && build.all_to_device ? DeviceChunk(chunk) : chunk;
  const uint64_t chunks = CountChunks(transfer.pieces, transfer.chunk_bytes);
  if (chunks > kMaxChunks) {
    return Error(Code::kInvalidArgument, "the transfer has ", chunks, " chunks, more than ", kMaxChunks,
                 "; split it, or raise setting chunk, which is ", chunk, " bytes");
  }
  transfer.chunks = static_cast<uint32_t>(chunks);
  return std::exchange(build.transfer, {});
}

void Core::Begin(const TransferRef& transfer) {
  const auto keep = transfer->connection;
  links_.Begin(*static_cast<Connection::State*>(keep.get()), transfer, /*visit=*/false);
}

}  // namespace weightcast::endpoint
