#pragma once

#include <cstdint>
#include <unordered_map>
#include <vector>

#include "transport/verbs/queue_owner.h"

namespace weightcast::transport::verbs {

/// The queue pairs of this process on one NIC, and whom their completions are for. Completions of one that is
/// gone may still stand in the completion queue: its id finds nobody, even while another one has its slot.
/// Belongs to the holder of progress.
class QueueTable {
 public:
  /// At most so many.
  static constexpr uint32_t kMost = 1024;
  [[nodiscard]] uint32_t size() const { return static_cast<uint32_t>(by_number_.size()); }
  /// With so many more, over half of them are taken. The other half is given out two by two, one for control
  /// and one for data, so that 256 links find room whatever those before them took.
  [[nodiscard]] bool Crowded(uint32_t more) const { return size() + more > kMost / 2; }

  /// `number`: the device's. Returns the id under which its completions find it, of 31 bits: the upper half
  /// of a work request's id, whose top bit tells receives.
  uint32_t Attach(uint32_t number);
  /// Before its first work request.
  void SetOwner(uint32_t number, uint32_t id, QueueOwner& owner);
  void Detach(uint32_t number, uint32_t id);
  /// One could be neither destroyed nor stopped: the device may go on letting its peer write.
  void Lose() { ++lost_; }
  /// Peers may still write through one.
  [[nodiscard]] bool reachable() const { return size() + lost_ > 0; }

  /// Null: it has none yet, or is gone.
  [[nodiscard]] QueueOwner* OwnerById(uint32_t id) const;
  [[nodiscard]] QueueOwner* OwnerByNumber(uint32_t number) const;

 private:
  struct Slot {
    QueueOwner* owner = nullptr;
    uint32_t generation = 0;
  };

  std::unordered_map<uint32_t, QueueOwner*> by_number_;
  std::vector<Slot> slots_;
  std::vector<uint32_t> free_slots_;
  uint32_t lost_ = 0;
};

}  // namespace weightcast::transport::verbs
