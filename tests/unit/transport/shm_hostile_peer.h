#pragma once

#include <sys/mman.h>

#include <array>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/process.h"
#include "base/random.h"
#include "transport/shm/channel.h"
#include "transport/shm/cross_copy.h"
#include "transport/shm/inbox.h"
#include "transport/shm/messages.h"
#include "transport/shm/record_ring.h"
#include "transport/shm/shm_transport.h"

namespace weightcast::transport::shm {

inline constexpr GrantName kGrant{.slot = 2, .id = 22};

/// A transport and a peer that is played by hand, so that it can break every rule. One thread.
class HostilePeer {
 public:
  static constexpr LinkId kLink{5};

  explicit HostilePeer(CrossCopies copies = CrossCopies::kOff)
      : fence(CreateShared(sizeof(FencePage), true).value()), inbox(OwnInbox::Create().value()) {
    auto made = ShmTransport::Create({.settings = {}, .self = victim_self}, copies);
    victim = std::move(made).value();
  }

  /// The victim expects this peer; connects to it.
  bool Connect(Duration patience = std::chrono::seconds(20)) {
    const Invitation offer{.boot_id = BootId(), .name = {}, .cookie = NewCookie()};
    auto answer = victim->OpenLink(kLink, Role::kResponder, own_self, Encode(offer), Clock::now() + patience);
    if (!answer.ok()) return false;
    const auto invitation = DecodeInvitation(*answer);
    if (!invitation.ok()) return false;
    victim_cookie = invitation->cookie;
    victim_name = invitation->name;
    auto connected = Channel::Connect(victim_name);
    if (!connected.ok()) return false;
    channel = std::move(connected).value();
    return true;
  }
  [[nodiscard]] Hello GoodHello() {
    inbox.shared().trial_nonce.store(1234);
    cell.nonce.store(99);
    return {.cookie = victim_cookie,
            .incarnation = own_self,
            .map_nonce = 1234,
            .copy_address = reinterpret_cast<uint64_t>(&cell),
            .copy_nonce = 99};
  }
  void Greet(const Hello& hello, int inbox_fd, int fence_fd) {
    (void)channel.Send(Encode(hello), std::array{inbox_fd, fence_fd});
  }
  /// Everything by the rules, until the victim is ready.
  bool BecomeReady() {
    if (!Connect()) return false;
    Greet(GoodHello(), inbox.fd(), fence.fd.get());
    const auto hello = Await(MessageKind::kHello);
    const auto trial = Await(MessageKind::kTrial);
    if (!hello || hello->fds.size() != 2 || !trial) return false;
    auto mapped = MapPeer(hello->fds[0].get(), 0, sizeof(Inbox), true);
    auto page = MapPeer(hello->fds[1].get(), 0, sizeof(FencePage), false);
    if (!mapped.ok() || !page.ok()) return false;
    victim_inbox = std::move(mapped).value();
    victim_fence = std::move(page).value();
    Inbox& there = *victim_inbox.As<Inbox>();
    records.emplace(there.records, there.records_taken);
    there.trial_echo.store(77);
    const bool copies = Decode<Trial>(trial->bytes)->copy_echo != 0;  // The victim may copy, and so may we.
    const uint64_t cell_there = Decode<Hello>(hello->bytes)->copy_address;
    Trial echoes{.map_echo = 77, .copy_echo = 0};
    if (copies) reinterpret_cast<TrialCell*>(cell_there)->echo.store(echoes.copy_echo = 88);
    (void)channel.Send(Encode(echoes));
    (void)channel.Send(Encode(Verdict{.map_seen = true, .copy_seen = copies}));
    return PumpUntil([&] { return ready; });
  }
  /// Both sides have their payload rings.
  bool ExchangeRings() {
    const auto own = inbox.EnsurePayload();
    if (!own.ok()) return false;
    (void)channel.Send(Encode(RingReply{}), std::array{*own});
    const auto theirs = Await(MessageKind::kRing);
    if (!theirs || theirs->fds.size() != 1) return false;
    auto mapped = MapPeer(theirs->fds[0].get(), 0, kPayloadBytes, true);
    if (!mapped.ok()) return false;
    victim_payload = std::move(mapped).value();
    return true;
  }
  template <typename T>
  void Push(const T& record) {
    PushRaw(Pack(record));
  }
  void PushRaw(const RecordBody& body) {
    while (!records->HasSpace() && !down) Pump();
    if (!down) records->Push(body);
  }

  void Pump() {
    std::array<Event, 16> events;
    const size_t count = victim->Progress(events).events;
    for (size_t i = 0; i < count; ++i) {
      if (std::holds_alternative<LinkReady>(events[i])) ready = true;
      if (const auto* gone = std::get_if<LinkDown>(&events[i])) down = gone->reason;
      if (std::holds_alternative<SignalArrived>(events[i])) ++signals;
      if (const auto* done = std::get_if<Completion>(&events[i])) completions.push_back(*done);
    }
  }
  bool PumpUntil(const std::function<bool()>& done) {
    const auto limit = Clock::now() + std::chrono::seconds(30);
    while (!done()) {
      if (Clock::now() > limit) return false;
      Pump();
    }
    return true;
  }
  /// The next message of that kind; others are dropped.
  std::optional<Channel::Incoming> Await(MessageKind kind) {
    std::optional<Channel::Incoming> found;
    PumpUntil([&] {
      auto message = channel.Receive();
      if (!message.ok()) return true;
      if (!*message) return false;
      const auto got = KindOf((*message)->bytes);
      if (!got.ok() || *got != kind) return false;
      found = std::move(*message);
      return true;
    });
    return found;
  }

  const Incarnation victim_self = RandomId();
  const Incarnation own_self = RandomId();
  SharedPages fence;
  OwnInbox inbox;
  TrialCell cell;
  std::unique_ptr<Transport> victim;
  Channel channel;
  Cookie victim_cookie{};
  std::string victim_name;
  Mapping victim_inbox;
  Mapping victim_fence;
  Mapping victim_payload;
  std::optional<RecordProducer> records;

  bool ready = false;
  std::optional<Status> down;
  size_t signals = 0;
  std::vector<Completion> completions;
};

}  // namespace weightcast::transport::shm
