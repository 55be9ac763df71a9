#include "transport/shm/peer_regions.h"

#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "base/advice.h"

namespace weightcast::transport::shm {
namespace {

// Linux 5.14; older C libraries do not know the names.
constexpr int kPopulateRead = 22;   // MADV_POPULATE_READ
constexpr int kPopulateWrite = 23;  // MADV_POPULATE_WRITE

}  // namespace

PeerMapping::PeerMapping(Mapping mapping, bool writable)
    : mapping_(std::move(mapping)),
      writable_(writable),
      present_(mapping_.size() / kBlock / 64 + 1),
      touched_(mapping_.size() / kLargeCopy + 1) {
  mapping_.HideFromChildren();
}

Status PeerMapping::Populate(uint64_t block) {
  const auto page = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
  const uint64_t length = std::min(kBlock, mapping_.size() - block * kBlock);
  const auto first = reinterpret_cast<uintptr_t>(mapping_.data() + block * kBlock);
  const uintptr_t begin = first / page * page;
  const uintptr_t end = (first + length + page - 1) / page * page;
  const int advice = writable_ ? kPopulateWrite : kPopulateRead;
  while (madvise(reinterpret_cast<void*>(begin), end - begin, advice) != 0) {
    if (errno == EINVAL) break;  // A kernel before 5.14: the pages come one by one in the copy.
    if (errno != EINTR && errno != EAGAIN) {
      return Error(Code::kExhausted,
                   "this process cannot fault in pages of the peer's memory: ", ErrnoAndAdvice(errno));
    }
  }
  present_[block / 64] |= uint64_t{1} << (block % 64);
  return Status::Ok();
}

Result<RemoteRegion> PeerRegions::Add(LinkId link, const RegionName& name, uint64_t length,
                                      std::string_view key) {
  auto region = std::make_unique<PeerRegion>();
  WC_ASSIGN_OR_RETURN(region->key, DecodeKey(key));
  region->link = link;
  region->name = name;
  region->length = length;
  if (length > region->key.length || name.id >= kMaxRegions) {
    region->state = PeerRegion::State::kFailed;
    region->failure = Code::kOutOfBounds;
  } else if (name.generation == 0 || region->key.access == Access::kLocal) {
    region->state = PeerRegion::State::kFailed;
    region->failure = Code::kPermission;
  }
  const std::lock_guard lock(mutex_);
  uint32_t id = used_;
  if (!free_.empty()) {
    id = free_.back();
    free_.pop_back();
  } else if (used_ == kMost) {
    return Error(Code::kExhausted, "at most ", kMost,
                 " regions of peers can be imported at once; let the peers register larger pieces of memory");
  } else {
    ++used_;
  }
  region->id = RemoteRegion{id};
  added_.push_back(std::move(region));
  pending_.store(true, std::memory_order_seq_cst);
  return RemoteRegion{id};
}

std::vector<PeerRegion*> PeerRegions::TakeAdded() {
  std::vector<std::unique_ptr<PeerRegion>> added;
  {
    const std::lock_guard lock(mutex_);
    pending_.store(false, std::memory_order_seq_cst);
    added.swap(added_);
    if (table_.size() < used_) table_.resize(used_);
  }
  std::vector<PeerRegion*> taken;
  for (auto& region : added) {
    taken.push_back(region.get());
    table_[static_cast<uint32_t>(region->id)] = std::move(region);
  }
  return taken;
}

void PeerRegions::Erase(LinkId link, RemoteRegion id) {
  if (Find(link, id) == nullptr) return;
  table_[static_cast<uint32_t>(id)].reset();
  const std::lock_guard lock(mutex_);
  free_.push_back(static_cast<uint32_t>(id));
}

void PeerRegions::EraseLink(LinkId link) {
  const std::lock_guard lock(mutex_);
  for (uint32_t id = 0; id < table_.size(); ++id) {
    if (table_[id] == nullptr || table_[id]->link != link) continue;
    table_[id].reset();
    free_.push_back(id);
  }
}

}  // namespace weightcast::transport::shm
