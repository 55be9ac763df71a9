#include "transport/verbs/device_probe.h"

#include <algorithm>
#include <atomic>
#include <thread>
#include <utility>

#include "base/bytes.h"
#include "transport/verbs/address.h"

namespace weightcast::transport::verbs {
namespace {

constexpr size_t kPage = 4096;
/// What is sent, and what the peer writes, in lines of their own.
constexpr size_t kOut = 0;
constexpr size_t kIn = 128;
constexpr uint32_t kDepth = 64;
constexpr size_t kMostPlace = 1024;
constexpr auto kPatience = std::chrono::seconds(5);  ///< With one exchange.
constexpr int kSpins = 64;                           ///< Between looks at completions.
constexpr int kYield = 64;                           ///< Looks at completions between these.
constexpr int kLooks = 4096;                         ///< At completions, between looks at the clock.

}  // namespace

Result<std::unique_ptr<DeviceProbe>> DeviceProbe::Open(std::shared_ptr<drivers::Ibverbs> api,
                                                       Options options) {
  std::unique_ptr<DeviceProbe> made(new DeviceProbe(std::move(options)));
  WC_RETURN_IF_ERROR(made->Init(std::move(api)));
  return made;
}

Status DeviceProbe::Init(std::shared_ptr<drivers::Ibverbs> api) {
  WC_ASSIGN_OR_RETURN(auto nics, OpenNics(api, options_.settings));
  const auto up = std::ranges::find_if(nics, [](const auto& nic) { return nic->up(); });
  if (up == nics.end()) return nics.front()->why_down();
  nic_ = std::move(*up);
  page_.reset(static_cast<std::byte*>(std::aligned_alloc(kPage, kPage)));
  std::fill_n(page_.get(), kPage, std::byte{0});
  WC_ASSIGN_OR_RETURN(region_, nic_->domain().RegisterMemory(
                                   page_.get(), kPage, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE));
  WC_ASSIGN_OR_RETURN(queue_, Queue::Create(*nic_, kDepth));
  queue_->SetOwner(*this);
  return Status::Ok();
}

DeviceProbe::~DeviceProbe() {
  if (queue_ != nullptr) queue_->Retire();
  queue_.reset();
  // Refused: the device may still write there.
  if (region_ != nullptr && !nic_->domain().DeregisterMemory(region_).ok()) (void)page_.release();
}

std::string DeviceProbe::place() const {
  const Offer offer{
      .nics = {{.address = nic_->port().address(), .control = queue_->name(), .data = {queue_->name()}}}};
  const RegionKey key{.base = reinterpret_cast<uint64_t>(page_.get()),
                      .length = kPage,
                      .part = kPage,
                      .rkeys = {region_->rkey}};
  return PackBytes(Encode(offer), Encode(key));
}

Status DeviceProbe::Connect(std::string_view place) {
  ByteReader in(place);
  const std::string offered(in.GetString(kMostPlace));
  const std::string described(in.GetString(kMostPlace));
  WC_ASSIGN_OR_RETURN(const Offer offer, ParseOffer(offered));
  WC_ASSIGN_OR_RETURN(const RegionKey key, ParseRegionKey(described));
  if (!in.AtEnd() || key.length != kPage || key.rkeys.size() != 1)
    return {Code::kProtocol, "the other host's probe is malformed; use the same weightcast on both"};
  remote_ = key.base;
  rkey_ = key.rkeys.front();
  const OfferedNic& nic = offer.nics.front();
  return queue_->Connect(nic.address, nic.control, options_.settings);
}

void DeviceProbe::OnSendError(uint32_t sequence, Code code, std::string_view reason) {
  queue_->Complete(sequence);
  if (queue_->Fail()) broken_ = Status(code, std::string(reason));
}

Status DeviceProbe::CheckStop(TimePoint deadline) const {
  if (options_.interrupted && options_.interrupted())
    return {Code::kCancelled,
            "the test was stopped by a signal, or the other host has left it; check that weightcast doctor "
            "runs on both hosts, then run the test again"};
  if (Clock::now() < deadline) return Status::Ok();
  return {Code::kTimedOut,
          "8 bytes to or from the other host's device do not arrive; check the network between the two NICs"};
}

Status DeviceProbe::Send(uint64_t number) {
  for (const TimePoint deadline = In(kPatience); !queue_->HasRoom();) {
    nic_->Poll();
    WC_RETURN_IF_ERROR(broken_);
    WC_RETURN_IF_ERROR(CheckStop(deadline));
  }
  *word(kOut) = number;
  queue_->AddWrite({.local = reinterpret_cast<uint64_t>(word(kOut)),
                    .lkey = region_->lkey,
                    .remote = remote_ + kIn,
                    .rkey = rkey_,
                    .length = sizeof(number)});
  return queue_->Flush();
}

Status DeviceProbe::Await(uint64_t number) {
  const std::atomic_ref<uint64_t> in(*word(kIn));
  TimePoint deadline{};
  for (int look = 1;; ++look) {
    for (int spin = 0; spin < kSpins; ++spin) {
      if (in.load(std::memory_order_acquire) == number) return Status::Ok();
    }
    nic_->Poll();
    WC_RETURN_IF_ERROR(broken_);
    if (look % kYield == 0) std::this_thread::yield();  // The other side may need this processor.
    if (look % kLooks != 0) continue;
    if (deadline == TimePoint{}) deadline = In(kPatience);
    WC_RETURN_IF_ERROR(CheckStop(deadline));
  }
}

Result<std::vector<double>> DeviceProbe::Ping(uint32_t count) {
  std::vector<double> times;
  times.reserve(count);
  TimePoint last = Clock::now();
  for (uint32_t i = 0; i < count; ++i) {
    WC_RETURN_IF_ERROR(Send(++last_));
    nic_->Poll();  // While the answer is on its way.
    WC_RETURN_IF_ERROR(Await(last_));
    const TimePoint now = Clock::now();
    times.push_back(Seconds(now - last) / 2);
    last = now;
  }
  return times;
}

Status DeviceProbe::Pong(uint32_t count) {
  for (uint32_t i = 0; i < count; ++i) {
    WC_RETURN_IF_ERROR(Await(++last_));
    WC_RETURN_IF_ERROR(Send(last_));
    nic_->Poll();
  }
  return Status::Ok();
}

}  // namespace weightcast::transport::verbs
