#include "transport/shm/link_devices.h"

#include <unistd.h>

#include <utility>

#include "transport/shm/source_messages.h"

namespace weightcast::transport::shm {

Result<bool> LinkDevices::Step() {
  if (link_.context.devices() == nullptr && link_.sources.empty()) return false;
  bool any = link_.engines.Advance();
  if (link_.sender) link_.sender->own().EndPushes();
  any |= link_.sources.Step();
  if (link_.over()) {
    any |= link_.sender && link_.sender->queue().Settle();
    if (link_.sources.empty() && link_.channel.valid() && !std::exchange(all_dropped_told_, true)) {
      (void)link_.channel.Send(Encode(Dropped{.region = {}, .all = true}));
      if (link_.bye_seen && link_.offers.empty()) link_.CloseChannel();
    }
    return any;
  }
  Status status = link_.engines.failure();
  if (status.ok()) status = link_.offers.failure();
  if (status.ok() && link_.staging) status = link_.staging->failure();
  if (!status.ok()) return Status(Code::kInternal, status.message());
  WC_ASSIGN_OR_RETURN(const bool sent, link_.offers.Step());
  return any || sent;
}

Status LinkDevices::OnMessage(MessageKind kind, Channel::Incoming message) {
  switch (kind) {
    case MessageKind::kWantSource:
      return DecodeFor<WantSource>(message.bytes, [&](const auto& m) { return link_.offers.OnWant(m); });
    case MessageKind::kSourceOffer:
      return DecodeFor<SourceOffer>(message.bytes, [&](const auto& m) { return link_.sources.OnOffer(m); });
    case MessageKind::kSourceHandles:
      return DecodeFor<SourceHandles>(
          message.bytes, [&](const auto& m) { return link_.sources.OnHandles(m, std::move(message.fds)); });
    case MessageKind::kSourceVerdict:
      return DecodeFor<SourceVerdict>(message.bytes,
                                      [&](const auto& m) { return link_.offers.OnVerdict(m); });
    case MessageKind::kDrop:
      return DecodeFor<Drop>(message.bytes, [&](const auto& m) { return link_.sources.OnDrop(m); });
    case MessageKind::kWantStage:
      return DecodeFor<WantStage>(message.bytes,
                                  [&](const auto& m) { return link_.staging->in.OnWantStage(m); });
    case MessageKind::kStage:
      return DecodeFor<StageReply>(message.bytes,
                                   [&](const auto& m) { return link_.staging->out.OnStage(m, message.fds); });
    default:
      return DecodeFor<Dropped>(message.bytes, [&](const auto& m) { return link_.offers.OnDropped(m); });
  }
}

std::optional<DepartedPeer> LinkDevices::Depart(bool gone) {
  if (gone || link_.offers.empty()) return std::nullopt;
  const bool own = link_.pid == getpid();  // Its end tells nothing: the socket's end must do.
  if (!link_.channel.valid() && (own || !link_.pidfd.valid())) {
    link_.offers.Clear();
    return std::nullopt;
  }
  // What was not offered yet never will be; it counts as held all the same, until the peer has heard the end.
  const uint64_t key = PollKey(PollKind::kDeparted, 0);
  if (link_.channel.valid()) (void)link_.context.poller.Modify(link_.channel.fd(), EPOLLIN, key);
  if (link_.pidfd.valid() && !own) (void)link_.context.poller.Modify(link_.pidfd.get(), EPOLLIN, key);
  if (link_.channel.valid() && link_.sources.empty())
    (void)link_.channel.Send(Encode(Dropped{.region = {}, .all = true}));
  return DepartedPeer(std::exchange(link_.channel, {}), own ? UniqueFd() : std::exchange(link_.pidfd, {}),
                      link_.offers.held(), link_.offers.TakeCells());
}

}  // namespace weightcast::transport::shm
