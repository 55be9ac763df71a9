#include "base/advice.h"
#include "base/strings.h"
#include "endpoint/begin.h"
#include "endpoint/core.h"
#include "endpoint/transfers/descriptor.h"

namespace weightcast {
namespace {

/// Begins it now, on this thread, if it is short and nobody drives.
Result<endpoint::TransferRef> BeginTransfer(const std::shared_ptr<Connection::State>& connection,
                                            transport::OpKind kind, std::span<const Piece> pieces,
                                            TransferOptions options) {
  Connection::State& state = *connection;  // `connection` may be gone once the transfer has ended.
  WC_RETURN_IF_ERROR(state.CheckUsable());
  WC_ASSIGN_OR_RETURN(auto begun, endpoint::BuildTransfer(connection, kind, pieces, std::move(options)));
  endpoint::Core& core = *state.core();
  const bool waited_for = begun->options.on_end == nullptr;
  const bool now = begun->bytes <= (begun->device ? state.link().at_once_device : state.link().at_once);
  const auto start = [&] {
    core.links().Begin(state, begun, /*visit=*/true);
    return state.sender().in_flight() || core.links().pumping();
  };
  if (!now || !core.progress().TryVisit(start)) {
    core.progress().Submit(TaskPtr(endpoint::TransferRef(begun).Release()), now);
  }
  if (!waited_for) core.progress().WatchAgain();
  return begun;
}

}  // namespace

const Identity& Connection::peer() const { return state_->view().peer().identity; }
uint64_t Connection::peer_chunk() const { return state_->view().peer().chunk; }
const std::string& Connection::address() const { return state_->view().peer().address; }
std::string Connection::Describe() const { return state_->view().Describe(); }
uint32_t Connection::lanes() const { return state_->view().lanes(); }
std::string Connection::transport_name() const { return state_->view().transport_name(); }
Status Connection::status() const { return state_->view().status(); }

void Connection::Close() {
  State& connection = *state_;
  if (connection.core()->forked()) return;
  const Status closed = Error(Code::kCancelled, ToString(connection.core()->self()),
                              " closed the connection; connect again to go on");  // The peer reads it, too.
  connection.view().SetEnd(closed);  // At once, so that nobody is given a connection that is about to end.
  endpoint::SubmitNow(connection.core()->progress(), [state = state_, closed] { state->End(closed); });
}

// A call that waits reads state_ once: meanwhile another thread, or a callback, may end the handle, and the
// endpoint holds the state.

// --- Regions of the peer -------------------------------------------------------------------------

Result<RemoteRegion> Connection::Import(std::string_view descriptor) {
  State& connection = *state_;
  WC_RETURN_IF_ERROR(connection.CheckUsable());
  const std::string& label = connection.view().peer().label;
  const auto refused = [&label](const Status& why) {
    return Error(why.code(), "cannot import a region of ", label, ": ", why.message());
  };
  const auto region = endpoint::ParseDescriptor(descriptor);
  if (!region.ok()) return refused(region.status());
  if (region->name.owner != peer().incarnation)
    return Error(Code::kInvalidArgument, "the region is of another process (incarnation ", region->name.owner,
                 ") than ", label, " (incarnation ", peer().incarnation,
                 "); connect to that process, or, if it has restarted, get a descriptor of its new region");
  const std::string name = connection.view().transport_name();
  for (const endpoint::RegionKey& key : region->keys) {
    if (key.transport != name) continue;
    const auto handle = connection.core()->links().Import(*connection.link().transport, connection.link().id,
                                                          region->name, region->registered, key.key);
    if (!handle.ok()) return refused(handle.status());
    return connection.imports().Add({.handle = *handle,
                                     .offset = region->offset,
                                     .length = region->length,
                                     .access = region->access,
                                     .kind = region->kind});
  }
  if (region->kind == MemoryKind::kDevice)
    return Error(Code::kUnavailable, "the region is device memory of ", label, ", which ", name,
                 " does not move; let the peer use host memory, or allow it another transport");
  return Error(Code::kUnavailable, label, " has not registered this region with ", name,
               "; allow the same transports on both sides (setting transport)");
}

void Connection::Release(const RemoteRegion& region) { state_->imports().Remove(region); }

// --- Transfers -----------------------------------------------------------------------------------

Result<Transfer> Connection::Write(std::span<const Piece> pieces, TransferOptions options) {
  WC_ASSIGN_OR_RETURN(auto begun,
                      BeginTransfer(state_, transport::OpKind::kWrite, pieces, std::move(options)));
  return Transfer(begun.Release());
}
Result<Transfer> Connection::Read(std::span<const Piece> pieces, TransferOptions options) {
  WC_ASSIGN_OR_RETURN(auto begun,
                      BeginTransfer(state_, transport::OpKind::kRead, pieces, std::move(options)));
  return Transfer(begun.Release());
}

// --- Grants --------------------------------------------------------------------------------------

Result<transport::GrantName> Connection::OpenGrant(GrantOptions options) {
  State& connection = *state_;
  WC_RETURN_IF_ERROR(connection.CheckUsable());
  transport::GrantReach reach;
  if (options.ranges) {
    WC_ASSIGN_OR_RETURN(reach, connection.core()->regions().ReachOf(*options.ranges));
    options.ranges.reset();
  }
  Result<transport::GrantName> result = ClosedHere("the endpoint");
  connection.core()->progress().Call([&] {
    if (connection.ended()) {
      result = connection.view().status();
      return;
    }
    result = connection.grants().Reserve(std::move(options));
    if (!result.ok()) return;
    if (Status opened =
            connection.link().transport->OpenGrant(connection.link().id, *result, std::move(reach));
        !opened.ok()) {
      connection.grants().Drop(*result);
      result = opened;
    }
  });
  if (result.ok() || !connection.view().status().ok()) return result;
  return Error(result.status().code(), "cannot open a grant for ", connection.view().peer().label, ": ",
               result.status().message());
}

Status Connection::WaitGrant(const transport::GrantName& grant, uint32_t transfers, TimePoint deadline) {
  State& connection = *state_;
  if (connection.core()->forked()) return connection.core()->Usable();
  const auto arrived = connection.grants().ArrivedOf(grant);
  if (arrived != nullptr && connection.core()->progress().WaitFor(arrived->waited, transfers, deadline) &&
      arrived->transfers.load(std::memory_order_acquire) >= transfers) {
    return Status::Ok();
  }
  WC_RETURN_IF_ERROR(connection.view().status());
  if (arrived == nullptr || arrived->waited.value() == endpoint::Grants::Arrived::kGone) {
    return Error(Code::kCancelled, "grant ", grant.slot, " for ", connection.view().peer().label,
                 " was revoked, or never opened; open a new one");
  }
  return Error(Code::kTimedOut, arrived->transfers.load(), " of ", transfers,
               " transfers have come within the timeout of this call under the grant for ",
               connection.view().peer().label, "; check that it runs and writes, then wait again");
}

void Connection::RevokeGrant(const transport::GrantName& grant, std::function<void()> fenced) {
  if (state_->core()->forked()) return;
  endpoint::SubmitNow(state_->core()->progress(), [state = state_, grant, fenced = std::move(fenced)] {
    const bool first = state->grants().Revoke(grant, fenced);
    // Once the link closes, that fences everything.
    if (first && !state->ended()) state->link().transport->Revoke(state->link().id, grant);
  });
}

GrantProgress Connection::ProgressOf(const transport::GrantName& grant) const {
  return state_->grants().ProgressOf(grant);
}

// --- Notices -------------------------------------------------------------------------------------

Status Connection::Notify(std::string_view bytes) {
  State& connection = *state_;
  if (bytes.size() > kMaxNotice) {
    return Error(Code::kInvalidArgument, "the notice has ", bytes.size(), " bytes, more than ", kMaxNotice,
                 "; send them by a write into a region of the peer");
  }
  WC_RETURN_IF_ERROR(connection.CheckUsable());
  if (!connection.notices().Reserve(bytes.size())) {
    return Error(Code::kExhausted, connection.view().peer().label,
                 " has not taken the notices that were sent before; let that process take them");
  }
  endpoint::SubmitNow(connection.core()->progress(), [state = state_, notice = std::string(bytes)] {
    if (state->ended()) return;
    state->notices().OnSent(notice.size());
    state->Send({endpoint::MessageType::kNotice, notice});
  });
  return Status::Ok();
}

Status Connection::Notify(std::string_view bytes, TimePoint deadline) {
  Connection kept(state_);
  State& connection = *kept.state_;
  while (true) {
    const uint32_t before = connection.notices().credited().value();
    Status status = kept.Notify(bytes);
    if (status.code() != Code::kExhausted) return status;
    if (Clock::now() >= deadline) return {Code::kTimedOut, status.message()};
    connection.core()->progress().WaitFor(connection.notices().credited(), before + 1, deadline);
  }
}

Result<std::string> Connection::TakeNotice(TimePoint deadline) {
  State& connection = *state_;
  if (connection.core()->forked()) return connection.core()->Usable();
  while (true) {
    const uint32_t before = connection.notices().arrived().value();
    Status end = connection.view().status();  // Before the look: what came before the end is there.
    if (auto notice = connection.notices().Take()) {
      if (connection.notices().CreditDue()) {
        endpoint::SubmitNow(connection.core()->progress(), [state = state_] {
          // One credit grows beyond the one before, in the order in which they are sent.
          state->Send({endpoint::MessageType::kCredit, state->notices().NextCredit()});
        });
      }
      return std::move(*notice);
    }
    if (!end.ok()) return end;
    if (Clock::now() >= deadline) {
      return Error(Code::kTimedOut, "no notice has come within the timeout of this call from ",
                   connection.view().peer().label, "; check that it runs and sends one, then wait again");
    }
    connection.core()->progress().WaitFor(connection.notices().arrived(), before + 1, deadline);
  }
}

}  // namespace weightcast
