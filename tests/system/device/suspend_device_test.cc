// Engines that sleep while their device memory is unmapped, released or freed, and comes back at its address.
#include <gmock/gmock.h>

#include <array>
#include <string>
#include <vector>

#include "fake_cuda/fake_cuda.h"
#include "system/device/worker_scene.h"

namespace weightcast {
namespace {

using drivers::CUdeviceptr;
using ::testing::HasSubstr;
using transport::CurrentContext;
using transport::Require;

constexpr size_t kSuspendedSize = size_t{4} << 20;
constexpr int kDevice = 1;  // The trainer's is device 0.
constexpr int kCycles = 8;

enum class Away {
  kUnmapped,  ///< Other memory is mapped at the address; the old memory stays.
  kReleased,  ///< The memory is given back to the device; new memory is mapped.
  kFreed,     ///< cuMemFree and cuMemAlloc.
};

std::vector<std::byte> BytesOf(int64_t version) {
  std::vector<std::byte> bytes(kSuspendedSize);
  for (size_t i = 0; i < kSuspendedSize; ++i)
    bytes[i] = static_cast<std::byte>(static_cast<size_t>(version) * 31 + i % 251 + i / 4096);
  return bytes;
}

/// Device memory that goes away and comes back at the same address.
class Coming {
 public:
  Coming(transport::DevicesInUse& devices, Away away) : devices_(devices), away_(away) {
    const CurrentContext current(cuda(), devices.context(kDevice));
    if (away_ == Away::kFreed) {
      Take();
      return;
    }
    for (CUdeviceptr* place : {&address_, &look_})
      Expect(cuda().MemAddressReserve(place, kSuspendedSize, 0, 0, 0), "cuMemAddressReserve");
    for (auto& handle : handles_) handle = Create();
    Map(address_);
  }
  Coming(const Coming&) = delete;
  Coming& operator=(const Coming&) = delete;
  ~Coming() {
    const CurrentContext current(cuda(), devices_.context(kDevice));
    if (away_ == Away::kFreed) {
      cuda().MemFree(address_);
      return;
    }
    cuda().MemUnmap(address_, kSuspendedSize);
    for (const auto handle : handles_) cuda().MemRelease(handle);
    for (const CUdeviceptr place : {address_, look_}) cuda().MemAddressFree(place, kSuspendedSize);
  }
  [[nodiscard]] Memory memory() const { return MemoryAt(address_); }

  void Go() {
    const CurrentContext current(cuda(), devices_.context(kDevice));
    if (away_ == Away::kFreed) return Expect(cuda().MemFree(address_), "cuMemFree");
    Expect(cuda().MemUnmap(address_, kSuspendedSize), "cuMemUnmap");
    if (away_ == Away::kReleased) Expect(cuda().MemRelease(handles_[now_]), "cuMemRelease");
  }
  void Come() {
    const CurrentContext current(cuda(), devices_.context(kDevice));
    if (away_ == Away::kFreed) return Take();
    if (away_ == Away::kReleased) handles_[now_] = Create();
    if (away_ == Away::kUnmapped) now_ = 1 - now_;
    Map(address_);
  }
  /// Away::kUnmapped: what the memory holds that was at the address before.
  [[nodiscard]] std::vector<std::byte> Old() {
    const CurrentContext current(cuda(), devices_.context(kDevice));
    now_ = 1 - now_;
    Map(look_);
    std::vector<std::byte> bytes(kSuspendedSize);
    devices_.Read(MemoryAt(look_), 0, bytes);
    Expect(cuda().MemUnmap(look_, kSuspendedSize), "cuMemUnmap");
    now_ = 1 - now_;
    return bytes;
  }

 private:
  [[nodiscard]] drivers::Cuda& cuda() const { return devices_.cuda(); }
  static void Expect(drivers::CUresult result, const char* call) { Require(result == 0, call); }
  static Memory MemoryAt(CUdeviceptr address) {
    return {.kind = MemoryKind::kDevice,
            .device = kDevice,
            .address = reinterpret_cast<std::byte*>(address),
            .length = kSuspendedSize};
  }
  void Take() {
    CUdeviceptr got = 0;
    Expect(cuda().MemAlloc(&got, kSuspendedSize), "cuMemAlloc");
    Require(address_ == 0 || address_ == got, "the memory comes back at another address");
    address_ = got;
  }
  drivers::CUmemGenericAllocationHandle Create() {
    drivers::CUmemAllocationProp wanted{};
    wanted.type = drivers::CU_MEM_ALLOCATION_TYPE_PINNED;
    wanted.requestedHandleTypes = drivers::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    wanted.location = {.type = drivers::CU_MEM_LOCATION_TYPE_DEVICE, .id = kDevice};
    drivers::CUmemGenericAllocationHandle handle = 0;
    Expect(cuda().MemCreate(&handle, kSuspendedSize, &wanted, 0), "cuMemCreate");
    return handle;
  }
  void Map(CUdeviceptr at) {
    Expect(cuda().MemMap(at, kSuspendedSize, 0, handles_[now_], 0), "cuMemMap");
    const drivers::CUmemAccessDesc access{
        .location = {.type = drivers::CU_MEM_LOCATION_TYPE_DEVICE, .id = kDevice},
        .flags = drivers::CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    Expect(cuda().MemSetAccess(at, kSuspendedSize, &access, 1), "cuMemSetAccess");
  }

  transport::DevicesInUse& devices_;
  const Away away_;
  CUdeviceptr address_ = 0;
  CUdeviceptr look_ = 0;
  std::array<drivers::CUmemGenericAllocationHandle, 2> handles_{};
  size_t now_ = 0;
};

struct Scene {
  std::string name;
  Away away;
  LandingMode landing;
  std::string transport;
};

class SuspendDevice : public WorkerScene, public ::testing::WithParamInterface<Scene> {
 protected:
  void SetUp() override {
    source = Allocate(kSuspendedSize);
    trainer = ConnectTrainer();
    ASSERT_TRUE(trainer->Register({.shards = {ShardOf(source)}}, {}).ok());
    WorkerOptions options = Options();
    options.engine = "rollout";
    options.settings["transport"] = GetParam().transport;
    options.settings["lease"] = "240";  // What is kept for a part of it is kept too long.
    auto connected = Inference::Connect(std::move(options));
    ASSERT_TRUE(connected.ok()) << connected.status().ToString();
    inference = std::move(connected).value();
    const Status registered =
        inference->Register({.shards = {ShardOf(target.memory())}}, {.landing = GetParam().landing});
    ASSERT_TRUE(registered.ok()) << registered.ToString();
  }
  void TearDown() override {
    inference->Close();
    trainer->Close();
    inference.reset();
    trainer.reset();
    FreeAll();
  }
  static Shard ShardOf(const Memory& memory) {
    return Whole("w", DType::kU8, {static_cast<int64_t>(kSuspendedSize)}, memory);
  }
  [[nodiscard]] std::vector<std::byte> Landed() {
    std::vector<std::byte> bytes(kSuspendedSize);
    devices.Read(target.memory(), 0, bytes);
    return bytes;
  }
  void Send(int64_t version) {
    devices.Write(source, 0, BytesOf(version));
    Move(*trainer, *inference, version);
    ASSERT_TRUE(Landed() == BytesOf(version)) << "version " << version << " is not bit-exact";
  }
  void SleepAndWake(int64_t version) {
    const uint64_t awake = fake_cuda_live(0).bytes;
    const Status slept = inference->Suspend(In(60));
    ASSERT_TRUE(slept.ok()) << slept.ToString();
    // The spare buffer goes, too, and soon: the memory is for others now.
    const bool shadow = GetParam().landing == LandingMode::kShadow;
    const TimePoint limit = In(20);
    while (shadow && fake_cuda_live(0).bytes > awake - kSuspendedSize)
      Require(Clock::now() < limit, "the sleeper keeps its spare buffer");
    target.Go();
    EXPECT_EQ(inference->version().number, -1);
    target.Come();
    const Status resumed = inference->Resume();
    ASSERT_TRUE(resumed.ok()) << resumed.ToString();
    Send(version);
    if (GetParam().away != Away::kUnmapped) return;
    EXPECT_TRUE(target.Old() == BytesOf(version - 1)) << "what is mapped no more was written";
  }

  Memory source;
  Coming target{devices, GetParam().away};
  std::unique_ptr<Trainer> trainer;
  std::unique_ptr<Inference> inference;
};

/// Nothing of the driver's may pile up either. Of tcp's pinned blocks a cycle may need one more at once than
/// any before; each is a memory and a mapping.
TEST_P(SuspendDevice, WhatComesBackIsWrittenAndWhatWentAwayIsNot) {
  Send(1);
  SleepAndWake(2);
  const FakeCudaLive before = fake_cuda_live(0);
  for (int64_t version = 3; version < kCycles + 3 && !HasFailure(); ++version) SleepAndWake(version);
  const FakeCudaLive after = fake_cuda_live(0);
  EXPECT_EQ(after.bytes, before.bytes);
  EXPECT_EQ(after.memories - after.pinned, before.memories - before.pinned);
  EXPECT_EQ(after.mappings - after.pinned, before.mappings - before.pinned);
  EXPECT_EQ(after.streams, before.streams);
  EXPECT_EQ(after.events, before.events);
  EXPECT_EQ(after.handles, before.handles);
  EXPECT_LT(after.pinned, before.pinned + uint64_t{kCycles / 2});
}

/// While nothing is at the address a version is published.
TEST_P(SuspendDevice, APublicationWaitsUntilTheMemoryIsBack) {
  Send(1);
  ASSERT_TRUE(inference->Suspend(In(60)).ok());
  target.Go();
  devices.Write(source, 0, BytesOf(2));
  const auto update = trainer->Publish(2);
  ASSERT_TRUE(update.ok()) << update.status().ToString();
  EXPECT_EQ((*update)->Wait(In(0.2)).status().code(), Code::kTimedOut);
  target.Come();
  ASSERT_TRUE(inference->Resume().ok());
  const auto served = inference->Wait({.run = 1, .number = 1}, In(60));
  ASSERT_TRUE(served.ok()) << served.status().ToString();
  EXPECT_TRUE((*update)->Wait(In(60)).ok());
  EXPECT_TRUE(Landed() == BytesOf(2));
}

TEST_P(SuspendDevice, WhatIsIntactIsServedAtOnce) {
  Send(1);
  ASSERT_TRUE(inference->Suspend(In(60)).ok());
  EXPECT_THAT(inference->Begin().message(), HasSubstr("resume"));
  ASSERT_TRUE(inference->Resume(Contents::kIntact).ok());
  EXPECT_EQ(inference->version().number, 1);
  EXPECT_TRUE(Landed() == BytesOf(1));
  Send(2);
}

INSTANTIATE_TEST_SUITE_P(
    Scenes, SuspendDevice,
    testing::Values(Scene{"unmapped_in_place_shm", Away::kUnmapped, LandingMode::kInPlace, "shm"},
                    Scene{"unmapped_shadow_shm", Away::kUnmapped, LandingMode::kShadow, "shm"},
                    Scene{"unmapped_in_place_tcp", Away::kUnmapped, LandingMode::kInPlace, "tcp"},
                    Scene{"released_in_place_shm", Away::kReleased, LandingMode::kInPlace, "shm"},
                    Scene{"released_shadow_tcp", Away::kReleased, LandingMode::kShadow, "tcp"},
                    Scene{"freed_in_place_shm", Away::kFreed, LandingMode::kInPlace, "shm"},
                    Scene{"freed_shadow_shm", Away::kFreed, LandingMode::kShadow, "shm"}),
    [](const auto& scene) { return scene.param.name; });

}  // namespace
}  // namespace weightcast
