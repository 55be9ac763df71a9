#pragma once

#include <algorithm>
#include <cstdint>

#include "base/random.h"
#include "weightcast/clock.h"

namespace weightcast::transport {

/// When the initiator opens a lane again that has failed: after 0.1 s, doubled with each try that came to
/// nothing, at most 5 s. Half of it by chance: a cable that was pulled takes many links' lanes at once.
class Backoff {
 public:
  void OnBegun(TimePoint now) { begun_ = now; }
  /// When the lane, or the try, began.
  [[nodiscard]] TimePoint begun() const { return begun_; }
  /// The lane is over. If it was a good one, the next waits as if it were the first.
  void OnOver(TimePoint now) {
    if (now - begun_ >= kGoodLife) failures_ = 0;
    OnFailed(now);
  }
  void OnFailed(TimePoint now) {
    const Duration whole = std::min(kShortest * (1U << std::min(failures_++, 10U)), kLongest);
    const auto half = static_cast<uint64_t>(whole.count() / 2);
    again_ = now + whole / 2 + Duration(static_cast<Duration::rep>(RandomId() % half));
  }
  /// What kept it from opening may be gone.
  void Hasten() {
    if (again_ == TimePoint::max()) return;
    failures_ = 0;
    again_ = TimePoint{};
  }
  [[nodiscard]] TimePoint again() const { return again_; }
  /// Whether it is to be tried now: once for each that has failed.
  bool Take(TimePoint now) {
    if (now < again_) return false;
    again_ = TimePoint::max();
    return true;
  }

 private:
  static constexpr Duration kShortest = std::chrono::milliseconds(100);
  static constexpr Duration kLongest = std::chrono::seconds(5);
  static constexpr Duration kGoodLife = std::chrono::seconds(10);

  uint32_t failures_ = 0;  ///< In a row.
  TimePoint begun_{};
  TimePoint again_ = TimePoint::max();
};

}  // namespace weightcast::transport
