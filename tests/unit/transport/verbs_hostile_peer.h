#pragma once

#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "transport/verbs/nic.h"
#include "transport/verbs/queue.h"
#include "unit/transport/verbs_world.h"

namespace weightcast::transport::verbs {

/// The initiator of a link, played by hand so that it can break every rule: one NIC, a control queue pair and
/// `kLanes` data ones. The victim is a correct responder.
class HostilePeer {
 public:
  static constexpr uint32_t kLanes = 2;
  static constexpr uint64_t kCookie = 77;

  HostilePeer(World& world, Side& victim) : world_(world), victim_(victim) {
    auto opened = OpenNics(world.fabric.NewHost(Nics(1)), settings_);
    Require(opened.ok(), opened.status().message());
    nics_ = std::move(*opened);
    for (uint32_t i = 0; i <= kLanes; ++i) {
      ends_.push_back(std::make_unique<End>());
      ends_.back()->queue = Queue::Create(*nics_[0], 16).value();
      ends_.back()->queue->SetOwner(*ends_.back());
    }
  }
  /// A link whose queue pairs work, and that is ready.
  bool BecomeReady(LinkId link) {
    Offer offer{.cookie = kCookie, .nics = {OfferedNic{}}};
    offer.nics[0].address = nics_[0]->port().address();
    offer.nics[0].control = ends_[0]->queue->name();
    for (uint32_t i = 1; i <= kLanes; ++i) offer.nics[0].data.push_back(ends_[i]->queue->name());
    auto blob = victim_.transport().OpenLink(link, Role::kResponder, self, Encode(offer), Clock::now() + 20s);
    Require(blob.ok(), blob.status().message());
    const Answer answer = ParseAnswer(*blob).value();
    cookie = answer.cookie;
    for (uint32_t i = 0; i <= kLanes; ++i) {
      const QueueName& name = i == 0 ? answer.rails[0].control : answer.rails[0].data[i - 1];
      if (!ends_[i]->queue->Connect(answer.rails[0].address, name, settings_).ok()) return false;
      Send(i, Probe{.cookie = cookie, .queue = static_cast<uint16_t>(i), .generation = 1});
    }
    Say(Start{});
    return Until([&] { return victim_.ready.contains(link); });
  }
  /// Queue pair 0 is the control one.
  void SendRaw(uint32_t queue, std::string_view bytes) {
    MessageBytes message;
    message.length = static_cast<uint32_t>(bytes.copy(message.bytes.data(), message.bytes.size()));
    ends_[queue]->queue->AddMessage(message);
    (void)ends_[queue]->queue->Flush();
  }
  void Send(uint32_t queue, const Message& message) {
    const MessageBytes bytes = Encode(message);
    SendRaw(queue, {bytes.bytes.data(), bytes.length});
  }
  void Say(const ControlMessage& message) {
    Send(0, Numbered{.cookie = cookie, .number = next_number++, .message = message});
  }
  void SendImmediate(uint32_t queue, uint32_t bits) {
    ends_[queue]->queue->AddWrite({}, bits);
    (void)ends_[queue]->queue->Flush();
  }
  void Write(uint32_t queue, uint64_t remote, uint32_t rkey, uint32_t length) {
    static std::byte source[220];
    ends_[queue]->queue->AddWrite({.local = reinterpret_cast<uint64_t>(source),
                                   .lkey = 0,
                                   .remote = remote,
                                   .rkey = rkey,
                                   .length = length});
    (void)ends_[queue]->queue->Flush();
  }
  [[nodiscard]] bool broken(uint32_t queue) const { return ends_[queue]->broken; }
  [[nodiscard]] uint32_t sent(uint32_t queue) const { return ends_[queue]->queue->done(); }
  /// The last of its kind that the victim has said.
  template <typename T>
  std::optional<T> Heard() const {
    std::optional<T> found;
    for (const std::string& bytes : ends_[0]->received) {
      const auto message = ParseMessage(bytes);
      const auto* numbered = message ? std::get_if<Numbered>(&*message) : nullptr;
      if (numbered != nullptr && std::holds_alternative<T>(numbered->message))
        found = std::get<T>(numbered->message);
    }
    return found;
  }
  bool Until(const std::function<bool()>& done) {
    return world_.Until({&victim_}, [&] {
      nics_[0]->Poll();
      return done();
    });
  }
  /// All that was sent has been taken.
  bool Settle() {
    return Until([&] {
      return std::ranges::all_of(ends_, [](const auto& end) { return end->broken || end->Idle(); });
    });
  }

  const Incarnation self = 4711;
  uint64_t cookie = 0;
  uint32_t next_number = 0;

 private:
  struct End final : QueueOwner {
    void OnSent(uint32_t sequence) override { queue->Complete(sequence); }
    void OnSendError(uint32_t, Code, std::string_view) override { broken = true; }
    void OnMessage(std::string_view bytes) override { received.emplace_back(bytes); }
    void OnImmediate(uint32_t) override {}
    void OnBroken(Status) override { broken = true; }
    [[nodiscard]] bool Idle() const { return queue->under_way() == 0; }
    std::unique_ptr<Queue> queue;
    std::vector<std::string> received;
    bool broken = false;
  };

  World& world_;
  Side& victim_;
  Settings settings_ = World::OwnSettings();
  std::vector<std::unique_ptr<Nic>> nics_;
  std::vector<std::unique_ptr<End>> ends_;  ///< Before the NIC goes.
};

}  // namespace weightcast::transport::verbs
