#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <vector>

#include "endpoint/transfers/flag.h"
#include "endpoint/transfers/user_callbacks.h"
#include "transport/types.h"
#include "weightcast/endpoint.h"

namespace weightcast::endpoint {

/// The transfers of a grant that one signal stands for. A transport carries them as one number: `first` in
/// its lower 24 bits, `count` - 1 above.
struct SignalRange {
  static constexpr uint32_t kMostTransfers = 1U << 24;  ///< Of one grant.
  static constexpr uint32_t kMostTogether = 256;

  uint32_t first = 0;
  uint32_t count = 1;

  [[nodiscard]] constexpr uint32_t Packed() const { return (count - 1) << 24 | first; }
  static constexpr SignalRange Of(uint32_t packed) {
    return {.first = packed & (kMostTransfers - 1), .count = (packed >> 24) + 1};
  }
};

/// The grants that one connection's peer holds from us, and what has arrived under them. Completeness
/// is a set of (transfer, chunk), never a count of messages: what comes twice counts once.
class Grants {
 public:
  using Callback = std::function<void()>;
  explicit Grants(UserCallbacks& callbacks) : callbacks_(callbacks) {}

  // Holder of progress.
  /// A free slot with a name never used before. kExhausted: all slots are in use.
  Result<transport::GrantName> Reserve(GrantOptions options);
  /// It could not be opened after all.
  void Drop(const transport::GrantName& name);
  /// kProtocol: the peer signals what it cannot have sent.
  Status OnSignal(const transport::Signal& signal);
  /// True if the transport is now to be asked to revoke it. `fenced` is called when nothing of it can land
  /// any more: at once when it is gone already.
  bool Revoke(const transport::GrantName& name, Callback fenced);
  /// Nothing of it can land any more.
  void OnRevoked(const transport::GrantName& name);
  /// The connection has ended: nobody waits any more. The link may live on, until nothing can land.
  void OnEnd();
  /// The link is gone: nothing of any of them can land any more. No grant can be opened any more.
  void OnLinkClosed();

  /// Any thread. A grant that is gone is never complete.
  [[nodiscard]] GrantProgress ProgressOf(const transport::GrantName& name) const;
  /// Outlives the grant for those who wait.
  struct Arrived {
    std::atomic<uint32_t> transfers{0};
    Flag waited;  ///< `transfers`, or kGone once the grant is revoked.
    static constexpr uint32_t kGone = UINT32_MAX;
  };
  /// Any thread. Null: there is no such grant.
  [[nodiscard]] std::shared_ptr<Arrived> ArrivedOf(const transport::GrantName& name) const;

 private:
  /// Which chunks of one transfer are there.
  struct Arrivals {
    uint32_t chunks = 0;  ///< 0: none has come yet.
    uint32_t arrived = 0;
    uint32_t together = 0;  ///< So many transfers arrive with it; 0: none has come yet.
    static constexpr uint32_t kWithAnother = UINT32_MAX;  ///< Or it arrives with an earlier one.
    std::vector<uint64_t> bits;
  };
  struct Grant {
    transport::GrantName name;
    GrantOptions options;
    std::vector<Arrivals> transfers;
    uint64_t memory = 0;  ///< Bytes of all `bits`.
    std::shared_ptr<Arrived> arrived = std::make_shared<Arrived>();
    std::atomic<uint64_t> chunks_arrived{0};
    bool revoking = false;
    std::vector<Callback> fenced;
    [[nodiscard]] GrantProgress progress() const;
  };

  Grant* Find(const transport::GrantName& name) const;
  static Status Admit(Grant& grant, const transport::Signal& signal);
  void Free(uint32_t slot);

  UserCallbacks& callbacks_;
  bool closed_ = false;
  /// The slots change under the mutex; the holder of progress reads them without.
  mutable std::mutex mutex_;
  std::array<std::unique_ptr<Grant>, transport::kGrantSlots> slots_;
  uint32_t last_slot_ = 0;
};

}  // namespace weightcast::endpoint
