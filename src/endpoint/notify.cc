// Notices of a connection: from a caller's thread to the channel, and from the channel's queue to a caller.

#include "base/strings.h"
#include "endpoint/connection.h"
#include "endpoint/core.h"

namespace weightcast {

using endpoint::Message;
using endpoint::MessageType;

static_assert(Connection::kMaxNotice == endpoint::kMaxNotice);
// Notices alone never fill a channel whose peer is slow to read it.
static_assert(endpoint::Notices::kWindow <= endpoint::Channel::kMaxQueued / 2);

Status Connection::State::Notify(std::string_view bytes) {
  if (bytes.size() > kMaxNotice) {
    return {Code::kInvalidArgument, StrCat("a notice of ", bytes.size(), " bytes, more than ", kMaxNotice,
                                           "; send them by a write into a region of the peer")};
  }
  WC_RETURN_IF_ERROR(CheckUsable());
  if (!notices_.Reserve(bytes.size())) {
    return {Code::kExhausted,
            StrCat(label_, " has not taken the notices that were sent before; let it call take_notice")};
  }
  core_->progress().Submit(MakeTask([self = shared_from_this(), notice = std::string(bytes)] {
                             if (self->ended_) return;
                             self->notices_.OnSent(notice.size());
                             self->Send({MessageType::kNotice, notice});
                           }),
                           /*now=*/true);
  return Status::Ok();
}

Status Connection::State::Notify(std::string_view bytes, TimePoint deadline) {
  while (true) {
    const uint32_t before = notices_.credited().value();
    Status status = Notify(bytes);
    if (status.code() != Code::kExhausted) return status;
    if (Clock::now() >= deadline) return {Code::kTimedOut, status.message()};
    core_->progress().WaitFor(notices_.credited(), before + 1, deadline);
  }
}

Result<std::string> Connection::State::TakeNotice(TimePoint deadline) {
  if (core_->forked()) return core_->Usable();
  while (true) {
    const uint32_t before = notices_.arrived().value();
    Status end = status();  // Before the look: what came before the end is there.
    if (auto notice = notices_.Take()) {
      if (notices_.CreditDue()) SendCredit();
      return std::move(*notice);
    }
    if (!end.ok()) return end;
    if (Clock::now() >= deadline) {
      return Status(Code::kTimedOut,
                    StrCat("no notice has come within the timeout of this call from ", label_,
                           "; check that it runs and calls Notify, then wait again"));
    }
    core_->progress().WaitFor(notices_.arrived(), before + 1, deadline);
  }
}

void Connection::State::SendCredit() {
  core_->progress().Submit(MakeTask([self = shared_from_this()] {
                             // One credit grows beyond the one before, in the order in which they are sent.
                             self->Send({MessageType::kCredit, self->notices_.NextCredit()});
                           }),
                           /*now=*/true);
}

Status Connection::State::OnNotice(std::string bytes) {
  if (transport_ == nullptr) return {Code::kProtocol, "it sent a notice before a transport was chosen"};
  WC_ASSIGN_OR_RETURN(const bool first, notices_.OnNotice(std::move(bytes)));
  if (first) core_->connections().OnNotice(shared_from_this());
  return Status::Ok();
}

}  // namespace weightcast
