#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string_view>
#include <vector>

#include "transport/shm/copy.h"
#include "transport/shm/regions.h"
#include "transport/shm/shared_memory.h"
#include "transport/types.h"

namespace weightcast::transport::shm {

/// A peer's region, mapped here. Its pages enter our page table piece by piece, before a copy and never
/// inside one: a fault there would hold up a revoke, and a whole mapping is rarely written whole.
class PeerMapping {
 public:
  explicit PeerMapping(Mapping mapping, bool writable);

  [[nodiscard]] std::byte* data() const { return mapping_.data(); }
  [[nodiscard]] uint64_t size() const { return mapping_.size(); }
  /// Makes the pages of [offset, offset + length) present; kExhausted when that is impossible.
  Status Prepare(uint64_t offset, uint64_t length) {
    if (length == 0) return Status::Ok();
    for (uint64_t block = offset / kBlock; block <= (offset + length - 1) / kBlock; ++block) {
      if ((present_[block / 64] >> (block % 64) & 1) == 0) WC_RETURN_IF_ERROR(Populate(block));
    }
    return Status::Ok();
  }
  /// Whether the bytes of a large copy that ends at `end` are in no cache, as far as can be guessed:
  /// so much else has been copied since they were. `copied`: bytes copied by this transport so far.
  bool Uncached(uint64_t end, uint64_t copied) {
    uint32_t& touched = touched_[(end - 1) / kLargeCopy];
    const auto now = static_cast<uint32_t>(copied / kLargeCopy + kCacheReach);
    return now - std::exchange(touched, now) >= kCacheReach;
  }

 private:
  static constexpr uint64_t kBlock = 256 * 1024;
  static constexpr uint32_t kCacheReach = (64U << 20) / kLargeCopy;
  Status Populate(uint64_t block);

  Mapping mapping_;
  bool writable_;
  std::vector<uint64_t> present_;  ///< A bit for each block.
  std::vector<uint32_t> touched_;  ///< When each stretch of kLargeCopy was last copied; 0: never.
};

/// A region that Import has been asked for.
struct PeerRegion {
  enum class State : uint8_t {
    kWaiting,  ///< For its link, its descriptor or the payload rings: operations on it wait.
    kReady,
    kFailed,  ///< Operations complete with `failure`.
  };
  LinkId link{};
  RemoteRegion id{};
  RegionName name;
  uint64_t length = 0;  ///< As imported: no more than the key's.
  RegionKey key;
  State state = State::kWaiting;
  Code failure = Code::kOk;
  std::shared_ptr<PeerMapping> mapping;  ///< Shared by all imports of one region; null: another path.
};

/// All imports of one transport object. Add: any thread. The rest: the progress thread.
class PeerRegions {
 public:
  /// kProtocol for a malformed key, kExhausted when there are too many.
  Result<RemoteRegion> Add(LinkId link, const RegionName& name, uint64_t length, std::string_view key);

  [[nodiscard]] bool pending() const { return pending_.load(std::memory_order_seq_cst); }
  /// Imports added since the last call, now in the table.
  std::vector<PeerRegion*> TakeAdded();
  /// nullptr if there is none of that number on this link. Does not see imports that were not yet taken.
  PeerRegion* Find(LinkId link, RemoteRegion id) {
    const auto index = static_cast<uint32_t>(id);
    if (index >= table_.size() || table_[index] == nullptr || table_[index]->link != link) return nullptr;
    return table_[index].get();
  }
  void Erase(LinkId link, RemoteRegion id);
  void EraseLink(LinkId link);
  /// Calls `visit` for every import of a link.
  template <typename Visit>
  void ForEach(LinkId link, Visit visit) {
    for (auto& region : table_) {
      if (region != nullptr && region->link == link) visit(*region);
    }
  }

 private:
  static constexpr uint32_t kMost = 1U << 22;

  std::mutex mutex_;  ///< Guards the next three.
  std::vector<std::unique_ptr<PeerRegion>> added_;
  std::vector<uint32_t> free_;
  uint32_t used_ = 0;
  std::atomic<bool> pending_{false};

  std::vector<std::unique_ptr<PeerRegion>> table_;  ///< By RemoteRegion.
};

}  // namespace weightcast::transport::shm
