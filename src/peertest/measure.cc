#include "peertest/measure.h"

#include <algorithm>
#include <array>
#include <optional>
#include <thread>
#include <utility>

#include "base/random.h"
#include "base/statistics.h"
#include "base/strings.h"
#include "base/thread.h"
#include "peertest/hex.h"
#include "peertest/port_counts.h"
#include "peertest/reach.h"
#include "peertest/summary.h"
#include "peertest/units.h"
#include "transport/verbs/device_probe.h"

namespace weightcast::peertest {
namespace {

constexpr uint32_t kFirstPings = 30;
constexpr uint32_t kMostTimed = 5000;
constexpr size_t kCold = 10;  ///< Of the first: both sides were asleep.
constexpr std::array<uint64_t, 3> kAllSizes = {64 << 10, 1 << 20, 16 << 20};
constexpr std::array<uint64_t, 2> kFewSizes = {256 << 10, 4 << 20};
constexpr double kFewestTransfers = 6;
constexpr double kLoadAfter = 0.3;  ///< Seconds: the load outlasts what is measured under it.

/// Of the rates that were reached, the largest size that both directions had.
uint64_t LargestOf(const TransportFacts& facts) {
  const size_t both = std::min(facts.out.size(), facts.back.size());
  return both == 0 ? kAllSizes.front() : static_cast<uint64_t>(facts.out[both - 1].bytes);
}

std::vector<double> WithoutCold(std::vector<double> times) {
  times.erase(times.begin(), times.begin() + static_cast<ptrdiff_t>(std::min(kCold, times.size())));
  return times;
}

/// How many fit into so long, as the first took.
uint32_t PingsIn(double seconds, const std::vector<double>& first) {
  const double one_way = std::max(Median(first), 1e-6);
  return static_cast<uint32_t>(std::clamp<double>(seconds / (2 * one_way), kFirstPings, kMostTimed));
}

/// Pings for about so long, without the first.
Result<std::vector<double>> PingFor(double seconds,
                                    const std::function<Result<std::vector<double>>(uint32_t count)>& ping) {
  const TimePoint begin = Clock::now();
  WC_ASSIGN_OR_RETURN(std::vector<double> times, ping(kFirstPings));
  const uint32_t wanted = PingsIn(seconds, times);
  uint32_t done = 0;
  uint32_t round = kFirstPings;
  while ((round = NextPings(wanted - done, round, seconds - Seconds(Clock::now() - begin))) > 0) {
    WC_ASSIGN_OR_RETURN(const auto more, ping(round));
    if (done == 0) times.clear();
    times.insert(times.end(), more.begin(), more.end());
    done += round;
  }
  return times;
}

}  // namespace

uint32_t NextPings(uint32_t left, uint32_t last, double seconds_left) {
  constexpr uint32_t kGrowth = 4;
  return seconds_left > 0 ? std::min(left, kGrowth * last) : 0;
}

bool IsWorthwhile(uint64_t bytes, double gbit, double seconds) {
  return gbit * 1e9 / 8 * seconds >= kFewestTransfers * static_cast<double>(bytes);
}

Measurement::Measurement(Options options, Caller& caller) : options_(std::move(options)), caller_(caller) {
  facts_.name = options_.transport;
}

Duration Measurement::Patience(double seconds) const { return kAnswerTime + FromSeconds(seconds); }

void Measurement::Run(Ports* ports) {
  const auto before = CountBoth();
  if (options_.transport == "verbs") {
    if (const Status status = MeasureDevice(); !status.ok()) facts_.device_error = status.message();
    (void)caller_.Ask<Done>(AskShut{}, kAnswerTime);
  }
  if (const Status status = RunAll(ports); !status.ok()) facts_.error = status.message();
  const auto after = CountBoth();
  facts_.sent_here = CountedBetween(before.first, after.first);
  facts_.sent_there = CountedBetween(before.second, after.second);
}

std::pair<std::vector<PortCount>, std::vector<PortCount>> Measurement::CountBoth() {
  if (options_.transport != "verbs") return {};
  auto there = caller_.Ask<Counters>(AskCounters{}, kAnswerTime);
  return {ReadPortCounts(), there.ok() ? std::move(there->ports) : std::vector<PortCount>()};
}

Status Measurement::RunAll(Ports* ports) {
  WC_RETURN_IF_ERROR(Open());
  if (ports != nullptr) TryBoth(*ports);
  WC_RETURN_IF_ERROR(Meet());
  facts_.connection = link_->Describe();
  WC_RETURN_IF_ERROR(MeasureLatency());
  return MeasureRates();
}

Status Measurement::Open() {
  const std::string key = StrCat(ToHex(StrCat(RandomId())), ToHex(StrCat(RandomId())));
  Settings settings = options_.settings;
  if (traffic_class_ != kUnknown) settings.traffic_class = StrCat(traffic_class_);
  auto opened = DataLink::Open({.settings = std::move(settings),
                                .transport = options_.transport,
                                .address = options_.here,
                                .key = key,
                                .rank = 1,
                                .interrupted = options_.interrupted});
  if (!opened.ok()) return Error(opened.status().code(), "this host: ", opened.status().message());
  link_ = std::move(*opened);
  auto answer = caller_.Ask<Opened>(
      AskOpen{.transport = options_.transport, .key = key, .traffic_class = traffic_class_}, kAnswerTime);
  if (!answer.ok()) return answer.status();
  peer_ = std::move(answer->place);
  return Status::Ok();
}

void Measurement::TryBoth(Ports& ports) {
  const auto out = AddressesAt(peer_.addresses, options_.there);
  const auto back = AddressesAt(link_->place().addresses, options_.here);
  ports.tried_out = static_cast<int64_t>(out.size());
  ports.tried_back = static_cast<int64_t>(back.size());
  ports.out = TryPorts(out);
  auto reached = caller_.Ask<Reached>(AskReach{.addresses = back}, kAnswerTime);
  ports.back = reached.ok() ? std::move(reached->errors) : std::vector{reached.status().message()};
  peer_connects_ = ports.tried_out > 0 && ports.out.size() == out.size() && ports.back.size() < back.size();
}

Status Measurement::Meet() {
  Status first = MeetBy(peer_connects_);
  if (first.ok() || peer_connects_) return first;
  return MeetBy(true).ok() ? Status::Ok() : first;
}

Status Measurement::MeetBy(bool peer_connects) {
  WC_RETURN_IF_ERROR(caller_.Send(AskMeet{.place = link_->place(), .connect = peer_connects}));
  const Status here = peer_connects ? link_->Await(peer_) : link_->Connect(peer_);
  const auto there = caller_.Take<Done>(kAnswerTime);
  WC_RETURN_IF_ERROR(here);
  WC_RETURN_IF_ERROR(there.status());
  met_ = true;
  return Status::Ok();
}

Status Measurement::MeasureDevice() {
  WC_ASSIGN_OR_RETURN(auto api, drivers::LoadIbverbs());
  WC_ASSIGN_OR_RETURN(const auto device, transport::verbs::DeviceProbe::Open(
                                             std::move(api), {.settings = options_.settings,
                                                              .interrupted = options_.interrupted}));
  WC_ASSIGN_OR_RETURN(const DevicePlace there, caller_.Ask<DevicePlace>(AskDevice{}, kAnswerTime));
  const auto place = FromHex(there.place);
  if (!place)
    return {Code::kProtocol,
            "the other host sent a malformed address of its RDMA probe; use the same weightcast on both"};
  WC_RETURN_IF_ERROR(caller_.Ask<Done>(AskDeviceMeet{.place = ToHex(device->place())}, kAnswerTime).status());
  WC_RETURN_IF_ERROR(device->Connect(*place));
  const auto ping = [&](uint32_t count) -> Result<std::vector<double>> {
    WC_RETURN_IF_ERROR(caller_.Send(AskDevicePong{.count = count}));
    auto times = device->Ping(count);
    const auto done = caller_.Take<Done>(kAnswerTime);
    WC_RETURN_IF_ERROR(times.status());
    WC_RETURN_IF_ERROR(done.status());
    return WithoutCold(std::move(*times));
  };
  WC_ASSIGN_OR_RETURN(const auto times, PingFor(options_.plan.seconds, ping));
  facts_.device = Summarise(times);
  return Status::Ok();
}

Result<std::vector<double>> Measurement::Ping(uint32_t count) {
  WC_RETURN_IF_ERROR(caller_.Send(AskPong{.count = count}));
  auto times = link_->Ping(count);
  const auto there = caller_.Take<Done>(kAnswerTime);
  WC_RETURN_IF_ERROR(times.status());
  WC_RETURN_IF_ERROR(there.status());
  return WithoutCold(std::move(*times));
}

Status Measurement::MeasureLatency() {
  WC_ASSIGN_OR_RETURN(const auto times,
                      PingFor(options_.plan.seconds, [&](uint32_t count) { return Ping(count); }));
  facts_.latency = Summarise(times);
  return Status::Ok();
}

Result<Rate> Measurement::WriteBack(uint64_t bytes) {
  WC_ASSIGN_OR_RETURN(const Wrote wrote,
                      caller_.Ask<Wrote>(AskWrite{.bytes = bytes, .seconds = options_.plan.seconds},
                                         Patience(options_.plan.seconds)));
  return wrote.rate;
}

Result<std::pair<Rate, Rate>> Measurement::WriteBoth(uint64_t bytes, double seconds) {
  WC_RETURN_IF_ERROR(caller_.Send(AskWrite{.bytes = bytes, .seconds = seconds}));
  const auto out = link_->Write(bytes, seconds);
  const auto back = caller_.Take<Wrote>(Patience(seconds));
  WC_RETURN_IF_ERROR(out.status());
  WC_RETURN_IF_ERROR(back.status());
  return std::pair(*out, back->rate);
}

Result<std::vector<Rate>> Measurement::MeasureSizes(
    const std::function<Result<Rate>(uint64_t bytes)>& write) const {
  const std::vector<uint64_t> sizes = options_.plan.all_sizes
                                          ? std::vector<uint64_t>(kAllSizes.begin(), kAllSizes.end())
                                          : std::vector<uint64_t>(kFewSizes.begin(), kFewSizes.end());
  std::vector<Rate> rates;
  for (const uint64_t bytes : sizes) {
    if (!rates.empty() && !IsWorthwhile(bytes, BestGbit(rates), options_.plan.seconds)) break;
    WC_ASSIGN_OR_RETURN(const Rate rate, write(bytes));
    rates.push_back(rate);
  }
  if (rates.size() > 1) return rates;
  // The first has found the path idle: its congestion window had to grow.
  WC_ASSIGN_OR_RETURN(const Rate again, write(sizes.front()));
  if (again.gbit > rates.front().gbit) rates.front() = again;
  return rates;
}

Status Measurement::MeasureRates() {
  const double seconds = options_.plan.seconds;
  // One direction after the other: one that rests begins slowly again.
  WC_ASSIGN_OR_RETURN(facts_.out, MeasureSizes([&](uint64_t bytes) { return link_->Write(bytes, seconds); }));
  WC_ASSIGN_OR_RETURN(facts_.back, MeasureSizes([&](uint64_t bytes) { return WriteBack(bytes); }));
  WC_ASSIGN_OR_RETURN(const auto both, WriteBoth(LargestOf(facts_), seconds));
  facts_.both_out = both.first.gbit;
  facts_.both_back = both.second.gbit;
  return Status::Ok();
}

std::string Measurement::WhileLoaded(uint8_t traffic_class, const std::function<void()>& work) {
  if (!met_) return "there is no connection to load the path with";
  Close();
  traffic_class_ = traffic_class;
  Status again = Open();
  if (again.ok()) again = Meet();
  if (!again.ok()) return again.message();
  const double seconds = 2 * options_.plan.seconds + kLoadAfter;
  Status status;
  auto load = StartThread("wc-load", [&] { status = WriteBoth(LargestOf(facts_), seconds).status(); });
  if (!load.ok()) return load.status().message();
  work();
  load->join();
  return status.message();
}

void Measurement::Close() {
  met_ = false;
  link_.reset();
  (void)caller_.Ask<Done>(AskShut{}, kAnswerTime);
}

}  // namespace weightcast::peertest
