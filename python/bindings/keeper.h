#pragma once

#include <deque>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "support.h"
#include "weightcast/endpoint.h"

namespace weightcast::bindings {

class Keeper;

/// A registration and the Python object whose memory it is. Whoever may still touch that memory holds this:
/// slices, transfers until they are fenced. Belongs to the holder of the GIL, but for Close.
class Registered {
 public:
  Registered(std::shared_ptr<Keeper> keeper, Region region, nb::object memory, bool writable, int device)
      : keeper_(std::move(keeper)),
        region_(std::move(region)),
        memory_(std::move(memory)),
        writable_(writable),
        device_(device) {}
  Registered(const Registered&) = delete;
  Registered& operator=(const Registered&) = delete;
  ~Registered();

  Region& region() { return *region_; }
  [[nodiscard]] const nb::object& memory() const { return memory_; }
  [[nodiscard]] bool writable() const { return writable_; }
  /// Whose memory it is; -1: the host's.
  [[nodiscard]] int device() const { return device_; }
  [[nodiscard]] bool closed() const { return closed_; }
  /// From here on no transfer is begun with it. Its id may become another region's.
  void SetClosed() { closed_ = true; }
  /// Nobody touches the memory any more.
  void LetGo() { memory_.reset(); }

 private:
  const std::shared_ptr<Keeper> keeper_;
  std::optional<Region> region_;
  nb::object memory_;
  const bool writable_;
  const int device_;
  bool closed_ = false;
};

using Registrations = std::vector<std::shared_ptr<Registered>>;

/// Keeps memory that Python has let go of until nobody can touch it any more: that of transfers whose handle
/// was dropped, and that of regions which a stopped peer may still write to. Holder of the GIL.
class Keeper {
 public:
  explicit Keeper(pid_t owner) : owner_(owner) {}
  /// In a forked child everything is the parent's: there nothing is waited for.
  [[nodiscard]] bool forked() const { return ::getpid() != owner_; }

  void Keep(Transfer transfer, Registrations registrations) {
    transfers_.emplace_back(std::move(transfer), std::move(registrations));
  }
  void Keep(Region region, nb::object memory) { regions_.emplace_back(std::move(region), std::move(memory)); }
  /// Lets go of what is over. Cheap: it looks only as far as the oldest that is not.
  void Sweep() {
    while (!transfers_.empty() && transfers_.front().first.fenced()) {
      const auto over = std::move(transfers_.front());  // Its end may run Python, which may come here.
      transfers_.pop_front();
    }
    while (!regions_.empty() && regions_.front().first.Close(Clock::now()).ok()) {
      const auto over = std::move(regions_.front());
      regions_.pop_front();
    }
  }
  [[nodiscard]] size_t size() const { return transfers_.size() + regions_.size(); }

 private:
  const pid_t owner_;
  std::deque<std::pair<Transfer, Registrations>> transfers_;
  std::deque<std::pair<Region, nb::object>> regions_;
};

inline Registered::~Registered() {
  if (keeper_->forked() || !memory_.is_valid()) return;
  if (region_->Close(Clock::now()).ok()) return;
  keeper_->Keep(std::move(*region_), std::move(memory_));
}

}  // namespace weightcast::bindings
