#include "verbs_cluster/cluster.h"

#include <algorithm>
#include <cstdio>
#include <span>

#include "base/strings.h"
#include "transport/verbs/queue_table.h"
#include "verbs_cluster/heap.h"

namespace weightcast::transport::verbs {
namespace {

/// Heap of one link: of the link itself, and of each of its queue pairs.
constexpr int64_t kMostOfLink = 16 << 10;
constexpr int64_t kMostOfQueuePair = 24 << 10;
constexpr LinkId kBack{1};

LinkId LinkTo(uint32_t other) { return LinkId{other + 1}; }
std::byte ByteOf(uint32_t i) { return static_cast<std::byte>(i % 251 + 1); }

}  // namespace

Cluster::Cluster(Part part, uint32_t peers, int nics) : part_(part), nics_(nics) {
  const size_t before = Descriptors();
  {
    const Scope scope(CountedHeap::here);
    const int64_t heap = CountedHeap::bytes;
    one_ = std::make_unique<Process>(fabric_, HostWith(nics, false), 0, peers * kChunk);
    alone_ = CountedHeap::bytes - heap - static_cast<int64_t>(one_->memory.size());
  }
  descriptors_ = Descriptors() - before;
  own_registered_ = one_->verbs->registered;
  one_->Register(part == Part::kInference ? Access::kGranted : Access::kLocal);
  for (uint32_t i = 0; i < peers; ++i) {
    others_.push_back(std::make_unique<Process>(fabric_, HostWith(nics, true), i + 1, kChunk));
    others_.back()->Register(part == Part::kInference ? Access::kLocal : Access::kGranted);
  }
}

Cluster::~Cluster() {
  // No graceful shutdown: it would wait for a network whose time stands still.
  fabric_.Kill(one_->verbs->host());
  for (const auto& other : others_) fabric_.Kill(other->verbs->host());
}

template <typename Done>
void Cluster::Until(std::string_view what, const Done& done) {
  const TimePoint limit = Clock::now() + std::chrono::minutes(2);
  while (!done()) {
    Require(Clock::now() < limit, StrCat("it takes too long until ", what));
    fabric_.Advance(std::chrono::milliseconds(1));
    {
      const Scope scope(CountedHeap::here);
      one_->Pump();
    }
    for (const auto& other : others_) other->Pump();
  }
}

void Cluster::Run() {
  const size_t open = Descriptors();
  const int64_t heap = CountedHeap::bytes;
  for (uint32_t i = 0; i < others_.size(); ++i) Connect(i);
  Until("the links become ready", [&] {
    return one_->ready == others_.size() &&
           std::ranges::all_of(others_, [](const auto& other) { return other->ready == 1; });
  });
  for (uint32_t i = 0; i < others_.size(); ++i) Write(i);
  Until("the chunks arrive", [&] {
    if (part_ == Part::kInference) return one_->signals == others_.size();
    return one_->completed == others_.size() &&
           std::ranges::all_of(others_, [](const auto& other) { return other->signals == 1; });
  });
  Compare();
  links_ = CountedHeap::bytes - heap;
  Require(Descriptors() == open, "a link has opened a descriptor");
}

void Cluster::Print() const {
  const auto peers = static_cast<int64_t>(others_.size());
  int most = 0;
  int all = 0;
  for (int nic = 0; nic < nics_; ++nic) {
    const int count = fabric_.CountersOf(one_->verbs->host(), nic).qps;
    most = std::max(most, count);
    all += count;
  }
  const char* const who = part_ == Part::kInference ? "inference rank" : "trainer";
  std::printf("| %s | %lld | %d | %u-%u | %d | %d | %d | %u | %zu | %lld | %.0f | %.1f | %.0f |\n", who,
              static_cast<long long>(peers), nics_, one_->fewest, one_->most, most, all,
              one_->verbs->completions, one_->verbs->receives, descriptors_,
              static_cast<long long>(alone_ >> 10),
              static_cast<double>(links_) / static_cast<double>(peers) / 1024,
              static_cast<double>(alone_ + links_) / (1 << 20), static_cast<double>(own_registered_) / 1024);
  std::fflush(stdout);
  Expect(most <= static_cast<int>(QueueTable::kMost), StrCat(most, " queue pairs on one NIC"));
  Expect(links_ <= peers * kMostOfLink + all * kMostOfQueuePair,
         StrCat(links_ / peers, " bytes of heap a link"));
}

void Cluster::Connect(uint32_t i) {
  Process& other = *others_[i];
  const TimePoint deadline = Clock::now() + std::chrono::minutes(5);
  // The trainer speaks first.
  Process& first = part_ == Part::kInference ? other : *one_;
  Process& second = part_ == Part::kInference ? *one_ : other;
  const LinkId at_first = part_ == Part::kInference ? kBack : LinkTo(i);
  const LinkId at_second = part_ == Part::kInference ? LinkTo(i) : kBack;
  const auto as = [&](Process& process, const auto& call) {
    const bool counts = &process == one_.get();
    bool nobody = false;
    const Scope scope(counts ? CountedHeap::here : nobody);
    return call();
  };
  auto offer = as(first, [&] {
    return first.transport->OpenLink(at_first, Role::kInitiator, second.self, "", deadline);
  });
  Require(offer.ok(), offer.status().message());
  auto answer = as(second, [&] {
    return second.transport->OpenLink(at_second, Role::kResponder, first.self, *offer, deadline);
  });
  Require(answer.ok(), answer.status().message());
  const Status established = as(first, [&] { return first.transport->Establish(at_first, *answer); });
  Require(established.ok(), established.message());
  Process& target = part_ == Part::kInference ? *one_ : other;
  const LinkId at_target = part_ == Part::kInference ? LinkTo(i) : kBack;
  const Status opened = as(target, [&] { return target.transport->OpenGrant(at_target, {1, 1}, {}); });
  Require(opened.ok(), opened.message());
}

void Cluster::Write(uint32_t i) {
  const bool here = part_ == Part::kTrainer;
  Process& writer = here ? *one_ : *others_[i];
  Process& target = here ? *others_[i] : *one_;
  const LinkId link = here ? LinkTo(i) : kBack;
  const uint64_t from = here ? i * kChunk : 0;
  std::fill_n(writer.memory.begin() + static_cast<std::ptrdiff_t>(from), kChunk, ByteOf(i));
  bool nobody = false;
  const Scope scope(here ? CountedHeap::here : nobody);
  Op op;
  op.local = 1;
  op.local_offset = from;
  op.remote = writer.transport->Import(link, target.name, target.memory.size(), target.key).value();
  op.remote_offset = here ? 0 : i * kChunk;
  op.length = kChunk;
  op.has_signal = op.first = true;
  op.grant = {1, 1};
  op.signal = {.grant = {1, 1}, .transfer = 0, .chunk = 0, .chunks = 2, .checksum = 1};  // A record.
  op.cookie = i;
  Require(writer.transport->Post(link, 0, std::span(&op, 1)) == 1, "a lane takes nothing");
}

void Cluster::Compare() const {
  for (uint32_t i = 0; i < others_.size(); ++i) {
    const std::byte* place =
        part_ == Part::kTrainer ? others_[i]->memory.data() : one_->memory.data() + i * kChunk;
    Require(std::all_of(place, place + kChunk, [&](std::byte b) { return b == ByteOf(i); }),
            "other bytes have arrived");
  }
}

}  // namespace weightcast::transport::verbs
