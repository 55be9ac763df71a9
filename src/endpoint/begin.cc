// How a caller's pieces become a transfer: checked, translated and counted, on the caller's thread.

#include <unordered_map>

#include "base/strings.h"
#include "endpoint/connection.h"
#include "endpoint/core.h"
#include "endpoint/descriptor.h"

namespace weightcast {

using transport::OpKind;

namespace {

/// A transfer up to this long is worth doing on the caller's own thread, without waking another.
constexpr uint64_t kShort = 64 << 10;

bool Inside(uint64_t offset, uint64_t length, uint64_t size) {
  return length <= size && offset <= size - length;
}

Status Outside(const char* side, uint64_t offset, uint64_t length, uint64_t size) {
  return {Code::kOutOfBounds,
          StrCat("bytes ", offset, " to ", offset + length, " of a ", side, " region of ", size)};
}

Status CheckAccess(OpKind kind, Access access, bool granted) {
  if (access == Access::kReadWrite) return Status::Ok();
  if (kind == OpKind::kRead) {
    if (access == Access::kRead) return Status::Ok();
    return {Code::kPermission,
            "the peer's region is not open to reads; register it with kRead or kReadWrite"};
  }
  if (access == Access::kGranted) {
    if (granted) return Status::Ok();
    return {Code::kPermission, "the peer's region is written under a grant only; none was given"};
  }
  return {Code::kPermission,
          "the peer's region is not open to writes; register it with kGranted or kReadWrite"};
}

}  // namespace

/// A transfer in the making. What it has counted on registrations is given back when it does not come to be.
struct Connection::State::Build {
  explicit Build(endpoint::Core& owner) : core(owner), transfer(std::make_shared<Transfer::State>()) {}
  Build(const Build&) = delete;
  Build& operator=(const Build&) = delete;
  ~Build() {
    if (transfer == nullptr || transfer->locals.empty()) return;
    core.progress().Submit(endpoint::MakeTask([&owner = core, locals = std::move(transfer->locals)] {
                             for (const auto& local : locals) owner.regions().TransferFenced(*local);
                           }),
                           /*now=*/true);
  }

  Result<const endpoint::Registration*> Local(uint32_t id) {
    if (last_local != nullptr && last_local->name.id == id) return last_local;
    auto [found, fresh] = locals.try_emplace(id, nullptr);
    if (fresh) {
      auto registration = core.regions().Use(id);
      if (registration == nullptr) return Status(Code::kInvalidArgument, StrCat("no local region ", id));
      found->second = registration.get();
      transfer->locals.push_back(std::move(registration));
    }
    return last_local = found->second;
  }
  Result<const endpoint::RemoteImport*> Remote(const endpoint::Imports& imports, uint32_t index) {
    if (last_remote != nullptr && last_index == index) return last_remote;
    auto [found, fresh] = remotes.try_emplace(index, nullptr);
    if (fresh) {
      auto import = imports.Find(index);
      if (import == nullptr) return Status(Code::kInvalidArgument, StrCat("no imported region ", index));
      found->second = import.get();
      transfer->remotes.push_back(std::move(import));
    }
    last_index = index;
    return last_remote = found->second;
  }

  endpoint::Core& core;
  std::shared_ptr<Transfer::State> transfer;
  std::unordered_map<uint32_t, const endpoint::Registration*> locals;
  std::unordered_map<uint32_t, const endpoint::RemoteImport*> remotes;
  const endpoint::Registration* last_local = nullptr;
  const endpoint::RemoteImport* last_remote = nullptr;
  uint32_t last_index = 0;
};

Status Connection::State::AddPiece(Build& build, const Piece& piece) const {
  WC_ASSIGN_OR_RETURN(const auto* local, build.Local(piece.local_region));
  WC_ASSIGN_OR_RETURN(const auto* remote, build.Remote(imports_, piece.remote_region));
  Transfer::State& transfer = *build.transfer;
  if (!Inside(piece.local_offset, piece.length, local->memory.length)) {
    return Outside("local", piece.local_offset, piece.length, local->memory.length);
  }
  if (!Inside(piece.remote_offset, piece.length, remote->length)) {
    return Outside("remote", piece.remote_offset, piece.length, remote->length);
  }
  WC_RETURN_IF_ERROR(CheckAccess(transfer.kind, remote->access, transfer.options.grant.id != 0));
  Piece translated = piece;
  translated.remote_region = static_cast<uint32_t>(remote->handle);
  translated.remote_offset += remote->offset;
  transfer.pieces.push_back(translated);
  transfer.bytes += piece.length;
  return Status::Ok();
}

Result<std::shared_ptr<Transfer::State>> Connection::State::Begin(OpKind kind, std::span<const Piece> pieces,
                                                                  TransferOptions options) {
  WC_RETURN_IF_ERROR(CheckUsable());
  if (options.signal && (kind == OpKind::kRead || options.grant.id == 0)) {
    return Status(Code::kInvalidArgument, "only a write under a grant can set a signal");
  }
  Build build(*core_);
  Transfer::State& transfer = *build.transfer;
  transfer.core = core_;
  transfer.connection = std::const_pointer_cast<State>(shared_from_this());
  transfer.kind = kind;
  transfer.options = std::move(options);
  transfer.pieces.reserve(pieces.size());
  for (size_t i = 0; i < pieces.size(); ++i) {
    if (Status status = AddPiece(build, pieces[i]); !status.ok()) {
      return Status(status.code(), StrCat("piece ", i, ": ", status.message()));
    }
  }
  const uint64_t chunks = CountChunks(transfer.pieces, core_->settings().chunk);
  if (chunks > kMaxChunks) {
    return Status(Code::kInvalidArgument, StrCat("a transfer of ", chunks, " chunks, more than ", kMaxChunks,
                                                 "; split it, or raise the setting chunk"));
  }
  transfer.chunks = static_cast<uint32_t>(chunks);
  auto begun = std::exchange(build.transfer, nullptr);
  core_->progress().Submit(endpoint::MakeTask([self = shared_from_this(), begun] {
                             self->sender_.Add(begun);
                             if (self->ended_) return self->sender_.EndAll(self->end_reason_);
                             self->core_->WantPump(self);
                           }),
                           /*now=*/begun->bytes <= kShort);
  return begun;
}

Result<uint32_t> Connection::State::Import(std::string_view descriptor) {
  WC_RETURN_IF_ERROR(CheckUsable());
  WC_ASSIGN_OR_RETURN(const auto region, endpoint::ParseDescriptor(descriptor));
  if (region.name.owner != peer().incarnation) {
    return Status(Code::kInvalidArgument,
                  StrCat("the region belongs to incarnation ", region.name.owner, ", not to ", label_,
                         ", incarnation ", peer().incarnation, "; has that process restarted?"));
  }
  const std::string name = transport_name();
  for (const endpoint::RegionKey& key : region.keys) {
    if (key.transport != name) continue;
    WC_ASSIGN_OR_RETURN(const auto handle,
                        core_->ImportAt(*transport_, link_, region.name, region.registered, key.key));
    auto import = std::make_shared<endpoint::RemoteImport>(
        handle,
        [core = core_, link = link_](transport::RemoteRegion gone) { core->ReleaseImport(link, gone); });
    import->offset = region.offset;
    import->length = region.length;
    import->access = region.access;
    return imports_.Add(std::move(import));
  }
  return Status(Code::kUnavailable, StrCat(label_, " has not registered this region with ", name));
}

}  // namespace weightcast
