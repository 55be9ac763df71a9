#pragma once

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "contract/child.h"
#include "contract/names.h"
#include "contract/suite.h"

namespace weightcast::transport {

inline constexpr size_t kSize = 2U << 20;

inline Subject Pulls() {
  return {.factory = {"shm_pull", &CreateShmTransport}, .place = TestPlace::kDevice, .other_place = {}};
}

/// In the child: a target for one source after another, until the parent is gone.
inline void Receive(Channel& channel, const Machine& machine) {
  const DeviceUse use(machine);
  const TestMemory target(kSize, TestPlace::kDevice);
  Side side(Pulls().factory);
  ConnectOver(channel, side, kLink, Role::kResponder);
  Require(side.transport().OpenGrant(kLink, kGrant, {}).ok(), "OpenGrant");
  channel.Send(Pack(side.Register(target, Access::kGranted)));
  while (true) {
    side.Pump();
    if (!channel.Readable()) continue;
    const std::string seed = channel.Receive();
    if (seed == "end") return;
    const TestMemory expected(kSize, TestPlace::kPrivate);
    expected.Fill(std::stoul(seed));
    channel.Send(SameBytes(target.Read(), expected.Read()) ? "same" : "different");
  }
}

/// A source here, and a child that pulls.
class PullAcrossTest : public ::testing::Test {
 protected:
  /// `config` of the fake machine.
  explicit PullAcrossTest(const std::string& config = "")
      : machine(std::make_unique<const FakeMachine>(config)) {}
  void SetUp() override {
    ConnectOver(child.channel(), side, kLink, Role::kInitiator);
    remote = side.Import(kLink, Unpack(child.channel().Receive()));
  }
  void TearDown() override {
    child.Kill();
    DevicesInUse::AwaitBurial(pid);
  }
  Code WriteFrom(const Described& local, uint64_t offset = 0) {
    const Op op{.kind = OpKind::kWrite,
                .local = local.name.id,
                .local_offset = offset,
                .remote = remote,
                .length = kSize,
                .grant = kGrant,
                .signal = {}};
    const uint64_t cookie = side.Post(kLink, 0, op);
    Require(PumpUntil({&side}, [&] { return side.Completed(cookie); }), "the write does not end");
    EXPECT_FALSE(side.down.contains(kLink)) << side.down[kLink].message();
    return side.completions[cookie].code;
  }
  /// Whether what has landed is what Fill(seed) leaves.
  std::string Compare(uint64_t seed = 1) {
    child.channel().Send(std::to_string(seed));
    return child.channel().Receive();
  }
  bool Deregistered(const Described& local, Duration patience = kPatience) {
    return PumpUntil({&side}, [&] { return side.deregistered.contains(local.name.id); }, patience);
  }

  Machine machine;
  Child child{[this](Channel& channel) { Receive(channel, machine); }};
  const int pid = child.pid();
  DeviceUse use{machine};
  Side side{Pulls().factory};
  RemoteRegion remote{};
};

/// Memory as torch's expandable segments have it: pages of 2 MiB with a handle each, one after another.
class Pages {
 public:
  static constexpr size_t kPage = 2U << 20;
  Pages(DevicesInUse& devices, size_t count, drivers::CUmemAllocationHandleType types)
      : devices_(devices), cuda_(devices.cuda()) {
    const CurrentContext current(cuda_, devices.context(0));
    drivers::CUmemAllocationProp wanted{};
    wanted.type = drivers::CU_MEM_ALLOCATION_TYPE_PINNED;
    wanted.requestedHandleTypes = types;
    wanted.location = {.type = drivers::CU_MEM_LOCATION_TYPE_DEVICE, .id = 0};
    Expect(cuda_.MemAddressReserve(&base_, count * kPage, 0, 0, 0));
    for (size_t i = 0; i < count; ++i) {
      handles_.push_back(0);
      Expect(cuda_.MemCreate(&handles_.back(), kPage, &wanted, 0));
      Expect(cuda_.MemMap(base_ + i * kPage, kPage, 0, handles_.back(), 0));
    }
    const drivers::CUmemAccessDesc access{.location = wanted.location,
                                          .flags = drivers::CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    Expect(cuda_.MemSetAccess(base_, count * kPage, &access, 1));
  }
  Pages(const Pages&) = delete;
  Pages& operator=(const Pages&) = delete;
  ~Pages() {
    const CurrentContext current(cuda_, devices_.context(0));
    for (size_t i = 0; i < handles_.size(); ++i) {
      Expect(cuda_.MemUnmap(base_ + i * kPage, kPage));
      Expect(cuda_.MemRelease(handles_[i]));
    }
    Expect(cuda_.MemAddressFree(base_, size()));
  }
  [[nodiscard]] size_t size() const { return handles_.size() * kPage; }
  [[nodiscard]] Memory memory() const {
    return {.kind = MemoryKind::kDevice,
            .device = 0,
            .address = reinterpret_cast<std::byte*>(base_),
            .length = size()};
  }
  /// As a region of `side`, whole.
  [[nodiscard]] Described Register(Side& side) const {
    const RegionName name{.owner = side.self(), .id = 50, .generation = 51};
    const DescribedMemory described{.kind = MemoryKind::kDevice,
                                    .ordinal = 0,
                                    .address = memory().address,
                                    .length = size(),
                                    .allocation = {}};
    auto key = side.transport().Register(name, described, Access::kLocal);
    Require(key.ok(), key.status().message());
    return {name, size(), std::move(key).value()};
  }

 private:
  static void Expect(drivers::CUresult result) {
    Require(result == drivers::CUDA_SUCCESS, "a driver's call");
  }
  DevicesInUse& devices_;
  drivers::Cuda& cuda_;
  drivers::CUdeviceptr base_ = 0;
  std::vector<drivers::CUmemGenericAllocationHandle> handles_;
};

}  // namespace weightcast::transport
