#include <unistd.h>

#include <utility>

#include "transport/shm/link.h"

/// Device memory: what a link does for it beside the senders of bytes. docs/gpu.md, "Over shm".
namespace weightcast::transport::shm {

bool Link::StepDevices() {
  if (context_->devices() == nullptr && sources_.empty()) return false;
  bool any = engines_.Advance();
  if (sender_) sender_->EndPushes();
  any |= sources_.Step();
  if (over()) {
    any |= sender_ && sender_->Settle();
    if (sources_.empty() && channel_.valid() && !std::exchange(all_dropped_told_, true)) {
      (void)channel_.Send(Encode(Dropped{.region = {}, .all = true}));
      if (bye_seen_ && offers_.empty()) CloseChannel();
    }
    return any;
  }
  Status status = engines_.failure();
  if (status.ok()) status = offers_.failure();
  if (status.ok() && staging_) status = staging_->failure();
  if (!status.ok()) {
    Down({Code::kInternal, status.message()});
    return true;
  }
  const auto sent = offers_.Step();
  if (!sent.ok()) {
    Down(sent.status());
    return true;
  }
  return any || *sent;
}

Link::Fence Link::MakeFence(uint32_t region) const {
  Fence fence = MakeFence();
  // Nobody pushes to what was never offered to him, and who is gone has it no more but for late copies.
  if (offers_.Holds(region) || pushes_until_) fence.pushes = inbox_.DeviceFence();
  return fence;
}

Status Link::OnSourceMessage(MessageKind kind, Channel::Incoming message) {
  if (kind == MessageKind::kWantSource) {
    WC_ASSIGN_OR_RETURN(const WantSource request, DecodeWantSource(message.bytes));
    return offers_.OnWant(request);
  }
  if (kind == MessageKind::kSourceOffer) {
    WC_ASSIGN_OR_RETURN(const SourceOffer offer, DecodeSourceOffer(message.bytes));
    return sources_.OnOffer(offer);
  }
  if (kind == MessageKind::kSourceHandles) {
    WC_ASSIGN_OR_RETURN(const SourceHandles handles, DecodeSourceHandles(message.bytes));
    return sources_.OnHandles(handles, std::move(message.fds));
  }
  if (kind == MessageKind::kSourceVerdict) {
    WC_ASSIGN_OR_RETURN(const SourceVerdict verdict, DecodeSourceVerdict(message.bytes));
    return offers_.OnVerdict(verdict);
  }
  if (kind == MessageKind::kDrop) {
    WC_ASSIGN_OR_RETURN(const Drop drop, DecodeDrop(message.bytes));
    return sources_.OnDrop(drop);
  }
  WC_ASSIGN_OR_RETURN(const Dropped dropped, DecodeDropped(message.bytes));
  return offers_.OnDropped(dropped);
}

Status Link::OnStageMessage(MessageKind kind, const Channel::Incoming& message) {
  if (kind == MessageKind::kWantStage) {
    WC_ASSIGN_OR_RETURN(const WantStage request, DecodeWantStage(message.bytes));
    return staging_->in.OnWantStage(request);
  }
  WC_ASSIGN_OR_RETURN(const StageReply reply, DecodeStageReply(message.bytes));
  return staging_->out.OnStage(reply, message.fds);
}

std::optional<DepartedPeer> Link::Depart() {
  if (gone_ || offers_.empty()) return std::nullopt;
  const bool own = pid_ == getpid();  // Its end is no news: the socket's end must do.
  if (!channel_.valid() && (own || !pidfd_.valid())) {
    offers_.Clear();
    return std::nullopt;
  }
  // What was not offered yet never will be; it counts as held all the same, until the peer has heard the end.
  const uint64_t key = PollKey(PollKind::kDeparted, 0);
  if (channel_.valid()) (void)context_->poller.Modify(channel_.fd(), EPOLLIN, key);
  if (pidfd_.valid() && !own) (void)context_->poller.Modify(pidfd_.get(), EPOLLIN, key);
  if (channel_.valid() && sources_.empty()) (void)channel_.Send(Encode(Dropped{.region = {}, .all = true}));
  return DepartedPeer(std::exchange(channel_, {}), own ? UniqueFd() : std::exchange(pidfd_, {}),
                      offers_.held(), offers_.TakeCells());
}

}  // namespace weightcast::transport::shm
