// Device memory over verbs: as dma-bufs of the fake driver, or by its address, on the NICs of a network
// inside the test. What holds for all memory is in the other suites, which run over it too.
#include <gmock/gmock.h>

#include <algorithm>
#include <array>
#include <functional>

#include "contract/devices.h"
#include "device/in_process.h"
#include "device/stream_event.h"
#include "fake_cuda/fake_cuda.h"
#include "unit/transport/verbs_world.h"

namespace weightcast::transport::verbs {
namespace {

using ::testing::HasSubstr;

constexpr size_t kSize = (2U << 20) + 4096 + 24;
constexpr size_t kPage = 2U << 20;
constexpr GrantName kGrant{.slot = 2, .id = 222};

enum class Takes { kNothing, kDmaBuf, kAddress };
fake::HostConfig GpuNics(int count, Takes takes = Takes::kDmaBuf) {
  fake::HostConfig host = Nics(count);
  for (fake::DeviceConfig& nic : host.devices) {
    nic.dmabuf = takes == Takes::kDmaBuf;
    nic.max_inline = 512;
    if (takes == Takes::kAddress) nic.peermem = &fake_cuda_peermem;
  }
  return host;
}

DescribedMemory Part(const TestMemory& memory, size_t offset, size_t length) {
  DescribedMemory part = memory.memory();
  part.address += offset;
  part.length = length;
  return part;
}

/// Memory of cuMemCreate in pages, which NICs may reach or not, mapped side by side.
class MappedPages {
 public:
  MappedPages(DevicesInUse& devices, size_t pages, bool rdma)
      : devices_(devices), rdma_(rdma), length_(pages * kPage), handles_(pages) {
    const CurrentContext current(devices_.cuda(), devices_.context(0));
    Check(devices_.cuda().MemAddressReserve(&address_, length_, 0, 0, 0));
    Map();
  }
  MappedPages(const MappedPages&) = delete;
  MappedPages& operator=(const MappedPages&) = delete;
  ~MappedPages() {
    Unmap();
    const CurrentContext current(devices_.cuda(), devices_.context(0));
    Check(devices_.cuda().MemAddressFree(address_, length_));
  }
  [[nodiscard]] Memory memory() const {
    return {.kind = MemoryKind::kDevice,
            .device = 0,
            .address = reinterpret_cast<std::byte*>(address_),
            .length = length_};
  }
  [[nodiscard]] DescribedMemory described() const {
    return {.kind = MemoryKind::kDevice,
            .ordinal = 0,
            .address = memory().address,
            .length = length_,
            .allocation = {}};
  }
  void Map() {
    const CurrentContext current(devices_.cuda(), devices_.context(0));
    drivers::CUmemAllocationProp wanted{};
    wanted.type = drivers::CU_MEM_ALLOCATION_TYPE_PINNED;
    wanted.location = {.type = drivers::CU_MEM_LOCATION_TYPE_DEVICE, .id = 0};
    wanted.allocFlags.gpuDirectRDMACapable = rdma_ ? 1 : 0;
    for (size_t i = 0; i < handles_.size(); ++i) {
      Check(devices_.cuda().MemCreate(&handles_[i], kPage, &wanted, 0));
      Check(devices_.cuda().MemMap(address_ + i * kPage, kPage, 0, handles_[i], 0));
    }
    const drivers::CUmemAccessDesc access{.location = wanted.location,
                                          .flags = drivers::CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    Check(devices_.cuda().MemSetAccess(address_, length_, &access, 1));
  }
  void Unmap() {
    const CurrentContext current(devices_.cuda(), devices_.context(0));
    Check(devices_.cuda().MemUnmap(address_, length_));
    for (const auto handle : handles_) Check(devices_.cuda().MemRelease(handle));
  }

 private:
  static void Check(drivers::CUresult result) {
    Require(result == drivers::CUDA_SUCCESS, "a call of the driver");
  }

  DevicesInUse& devices_;
  const bool rdma_;
  const size_t length_;
  drivers::CUdeviceptr address_ = 0;
  std::vector<drivers::CUmemGenericAllocationHandle> handles_;
};

class VerbsDeviceTest : public VerbsPairTest {
 protected:
  void TearDown() override {
    Drop();
    use.reset();
  }
  void Begin(const char* config = "") {
    use.reset();
    machine = std::make_unique<FakeMachine>(config);
    use.emplace(*machine);
  }
  void SetUp() override { Begin(); }

  Described RegisterAt(Node& node, const DescribedMemory& memory, Access access) {
    const RegionName name{.owner = node.side->self(), .id = next_region_, .generation = next_region_};
    ++next_region_;
    auto key = node.side->transport().Register(name, memory, access);
    Require(key.ok(), key.status().message());
    return {name, memory.length, std::move(key).value()};
  }
  /// Of a region that must be refused. Nothing of it may be left.
  Status Refused(Node& node, const DescribedMemory& memory) {
    const int before = Regions(node);
    const RegionName name{.owner = node.side->self(), .id = 90, .generation = 1};
    const Status status = node.side->transport().Register(name, memory, Access::kGranted).status();
    EXPECT_FALSE(status.ok());
    EXPECT_EQ(Regions(node), before);
    EXPECT_EQ(DmaBufs(), 0U);
    return status;
  }
  bool Deregister(Node& node, const Described& region) {
    node.side->transport().Deregister(region.name.id);
    return Until([&] { return node.side->deregistered.contains(region.name.id); });
  }
  [[nodiscard]] int Regions(const Node& node) const {
    int all = 0;
    for (int i = 0; i < kNics; ++i) all += world.fabric.CountersOf(*node.host, i).mrs;
    return all;
  }
  static uint64_t DmaBufs() { return fake_cuda_live(-1).dmabufs; }
  static uint64_t Torn() { return fake_cuda_live(-1).torn; }
  /// Of the driver, to copy or to ask about memory. wc-device makes its context current when it begins.
  static uint64_t Calls() {
    uint64_t all = 0;
    for (const char* call :
         {"cuMemcpyAsync", "cuMemcpyBatchAsync", "cuLaunchKernel", "cuPointerGetAttributes",
          "cuMemGetAddressRange", "cuMemGetHandleForAddressRange", "cuDeviceGetAttribute"})
      all += fake_cuda_calls(call);
    return all;
  }
  void Meet(Takes takes = Takes::kDmaBuf, const Settings& settings = World::OwnSettings()) {
    Join(GpuNics(kNics, takes), GpuNics(kNics, takes), settings);
    ASSERT_TRUE(b.side->transport().OpenGrant(Pair::kB, kGrant, {}).ok());
  }
  static Op From(const Described& local, RemoteRegion to, uint64_t length) {
    return {.kind = OpKind::kWrite,
            .local = local.name.id,
            .remote = to,
            .length = length,
            .grant = kGrant,
            .signal = {.grant = kGrant, .transfer = 1, .chunk = 0, .chunks = 1}};
  }

  std::unique_ptr<FakeMachine> machine;
  std::optional<DevicesInUse> use;
  static constexpr int kNics = 2;

 private:
  uint32_t next_region_ = 10;
};

struct Ends {
  TestPlace a;
  TestPlace b;
};
class VerbsDeviceEndsTest : public VerbsDeviceTest, public ::testing::WithParamInterface<Ends> {};

/// Nothing but the NICs touches the bytes: no call of the driver, nor a processor that reads them to send
/// them inline.
TEST_P(VerbsDeviceEndsTest, WritesReadsAndSignalsOfEveryLength) {
  Meet();
  const TestMemory here(kSize, GetParam().a);
  const TestMemory there(kSize, GetParam().b);
  const Described local = RegisterAt(a, here.memory(), Access::kLocal);
  const RemoteRegion written = a.side->Import(Pair::kA, RegisterAt(b, there.memory(), Access::kGranted));
  for (const size_t length : {size_t{1}, size_t{8}, size_t{512}, size_t{513}, size_t{70000}, kSize - 13}) {
    here.Fill(length);
    there.Wipe();
    Op write = From(local, written, length);
    write.has_signal = write.first = true;
    write.local_offset = 13;
    const uint64_t calls = Calls();
    EXPECT_EQ(Run(static_cast<uint32_t>(length % 4), write).code, Code::kOk);
    ASSERT_TRUE(Until([&] { return b.side->signals.size() == 1; }));
    EXPECT_EQ(Calls(), calls);
    const auto sent = here.Read(13, length);
    EXPECT_TRUE(SameBytes(sent, there.Read(0, length)));
    if (length < kSize - 13) {
      EXPECT_EQ(there.Read(length, 1)[0], TestMemory::kWiped);
    }
    b.side->Forget();
  }
  const RemoteRegion open = a.side->Import(Pair::kA, RegisterAt(b, there.memory(), Access::kRead));
  here.Wipe();
  there.Fill(99);
  Op read = From(local, open, kSize);
  read.kind = OpKind::kRead;
  read.grant = {};
  EXPECT_EQ(Run(0, read).code, Code::kOk);
  EXPECT_TRUE(SameBytes(here.Read(), there.Read()));
}

INSTANTIATE_TEST_SUITE_P(Kinds, VerbsDeviceEndsTest,
                         ::testing::Values(Ends{TestPlace::kDevice, TestPlace::kDevice},
                                           Ends{TestPlace::kDevice, TestPlace::kPrivate},
                                           Ends{TestPlace::kPrivate, TestPlace::kDevice}),
                         [](const auto& tested) {
                           const auto name = [](TestPlace place) {
                             return std::string(IsDevice(place) ? "Device" : "Host");
                           };
                           return name(tested.param.a) + "To" + name(tested.param.b);
                         });

/// Where the driver or the NIC knows no dma-bufs, and the kernel has nvidia-peermem.
TEST_F(VerbsDeviceTest, WithoutDmaBufsTheAddressIsRegistered) {
  for (const char* const config : {"dmabuf=0", "dmabuf=1"}) {
    Drop();
    Begin(config);
    Meet(Takes::kAddress);
    const TestMemory here(kSize, TestPlace::kDevice);
    const TestMemory there(kSize, TestPlace::kDevice);
    here.Fill(1);
    const Described local = RegisterAt(a, Part(here, 13, kSize - 13), Access::kLocal);
    const Described target = RegisterAt(b, Part(there, 13, kSize - 13), Access::kGranted);
    EXPECT_EQ(Run(0, From(local, a.side->Import(Pair::kA, target), kSize - 13)).code, Code::kOk);
    EXPECT_TRUE(SameBytes(here.ReadLast(kSize - 13), there.ReadLast(kSize - 13)));
    EXPECT_TRUE(Deregister(a, local));
    EXPECT_TRUE(Deregister(b, target));
    EXPECT_EQ(DmaBufs(), 0U);
    Drop();
  }
}

/// They begin and end anywhere.
TEST_F(VerbsDeviceTest, SeveralRegionsOfOneAllocationKeepToTheirBytes) {
  Meet();
  const TestMemory here(kSize, TestPlace::kDevice);
  const TestMemory there(kSize, TestPlace::kDevice);
  here.Fill(1);
  there.Wipe();
  const Described local = RegisterAt(a, here.memory(), Access::kLocal);
  struct Bytes {
    size_t at;
    size_t length;
  };
  constexpr std::array kParts = {Bytes{1, 10}, Bytes{4095, 2}, Bytes{8192, 4096}, Bytes{100001, 70001}};
  for (const Bytes& part : kParts) {
    const Described region = RegisterAt(b, Part(there, part.at, part.length), Access::kGranted);
    const RemoteRegion remote_part = a.side->Import(Pair::kA, region);
    EXPECT_EQ(Run(0, From(local, remote_part, part.length)).code, Code::kOk);
    EXPECT_TRUE(SameBytes(here.Read(0, part.length), there.Read(part.at, part.length)));
    for (const size_t beside : {part.at - 1, part.at + part.length})
      EXPECT_EQ(there.Read(beside, 1)[0], TestMemory::kWiped) << beside;
  }
}

/// As small as the driver gives it: neither begin nor end is a page's.
TEST_F(VerbsDeviceTest, AnAllocationThatIsNoWholePage) {
  Meet();
  const TestMemory here(100, TestPlace::kDevice);
  const TestMemory there(100, TestPlace::kDevice);
  ASSERT_NE(reinterpret_cast<uintptr_t>(there.memory().address) % 4096, 0U);
  here.Fill(1);
  const Described local = RegisterAt(a, here.memory(), Access::kLocal);
  const Described target = RegisterAt(b, there.memory(), Access::kGranted);
  EXPECT_EQ(Run(0, From(local, a.side->Import(Pair::kA, target), 100)).code, Code::kOk);
  EXPECT_TRUE(SameBytes(here.Read(), there.Read()));
}

TEST_F(VerbsDeviceTest, ARunOfMappingsIsOneRegion) {
  Meet();
  MappedPages pages(*use, 3, /*rdma=*/true);
  const TestMemory here(3 * kPage, TestPlace::kPrivate);
  here.Fill(1);
  const Described local = RegisterAt(a, here.memory(), Access::kLocal);
  const Described target = RegisterAt(b, pages.described(), Access::kGranted);
  EXPECT_EQ(DmaBufs(), 1U);
  EXPECT_EQ(Run(0, From(local, a.side->Import(Pair::kA, target), 3 * kPage)).code, Code::kOk);
  std::vector<std::byte> landed(3 * kPage);
  use->Read(pages.memory(), 0, landed);
  EXPECT_TRUE(SameBytes(here.Read(), landed));
  EXPECT_TRUE(Deregister(b, target));
}

/// In parts: more than a device registers at once.
TEST_F(VerbsDeviceTest, ALargeRegionIsRegisteredInParts) {
  fake::HostConfig config = GpuNics(2);
  config.devices[1].max_mr_size = 100001;
  Join(config);
  ASSERT_TRUE(b.side->transport().OpenGrant(Pair::kB, kGrant, {}).ok());
  const TestMemory here(kSize, TestPlace::kDevice);
  const TestMemory there(kSize, TestPlace::kDevice);
  here.Fill(1);
  const int before = Regions(b);
  const Described local = RegisterAt(a, here.memory(), Access::kLocal);
  const Described target = RegisterAt(b, there.memory(), Access::kGranted);
  EXPECT_EQ(Regions(b), before + 2 * static_cast<int>((kSize + 100000) / 100001));
  for (uint32_t lane = 0; lane < 4; ++lane) {
    there.Wipe();
    EXPECT_EQ(Run(lane, From(local, a.side->Import(Pair::kA, target), kSize)).code, Code::kOk);
    EXPECT_TRUE(SameBytes(here.Read(), there.Read()));
  }
  EXPECT_TRUE(Deregister(b, target));
  EXPECT_EQ(Regions(b), before);
}

// --- What is refused

TEST_F(VerbsDeviceTest, WithoutAnyWayTheRefusalNamesBothAndTheRemedies) {
  for (const auto& [config, takes, words] :
       {std::tuple("dmabuf=0", Takes::kDmaBuf, "gives no dma-buf of device 0"),
        std::tuple("", Takes::kNothing, "Operation not supported")}) {
    Drop();
    Begin(config);
    Meet(takes);
    const TestMemory memory(kSize, TestPlace::kDevice);
    const Status status = Refused(b, memory.memory());
    EXPECT_EQ(status.code(), Code::kUnavailable);
    for (const char* word : {words, "nic0", "by its address: Bad address", "nvidia-peermem", "setting nics"})
      EXPECT_THAT(status.message(), HasSubstr(word));
    Drop();
  }
}

TEST_F(VerbsDeviceTest, MemoryThatTheDriverDoesNotGiveIsRefusedByItsKind) {
  Meet();
  drivers::CUdeviceptr pooled = 0;
  drivers::CUdeviceptr managed = 0;
  const CurrentContext current(use->cuda(), use->context(0));
  ASSERT_EQ(fake_cuda_alloc_pooled(&pooled, kSize), 0);
  ASSERT_EQ(fake_cuda_alloc_managed(&managed, kSize), 0);
  const auto at = [](drivers::CUdeviceptr address) {
    return DescribedMemory{.kind = MemoryKind::kDevice,
                           .ordinal = 0,
                           .address = reinterpret_cast<std::byte*>(address),
                           .length = kSize,
                           .allocation = {}};
  };
  const Status of_pool = Refused(b, at(pooled));
  EXPECT_EQ(of_pool.code(), Code::kUnavailable);
  EXPECT_THAT(of_pool.message(), HasSubstr("cudaMallocAsync"));
  const Status of_managed = Refused(b, at(managed));
  EXPECT_EQ(of_managed.code(), Code::kInvalidArgument);
  EXPECT_THAT(of_managed.message(), HasSubstr("cudaMallocManaged"));
  use->cuda().MemFree(pooled);
  use->cuda().MemFree(managed);
  MappedPages pages(*use, 1, /*rdma=*/false);
  const Status of_pages = Refused(b, pages.described());
  EXPECT_EQ(of_pages.code(), Code::kUnavailable);
  EXPECT_THAT(of_pages.message(), HasSubstr("gpuDirectRDMACapable"));
}

TEST_F(VerbsDeviceTest, ADeviceThatDoesNotOrderWritesIsRefused) {
  Begin("ordering=0");
  Meet();
  const TestMemory memory(kSize, TestPlace::kDevice);
  const Status status = Refused(b, memory.memory());
  EXPECT_EQ(status.code(), Code::kUnavailable);
  EXPECT_THAT(status.message(), HasSubstr("does not order the writes of NICs"));
  Drop();
}

/// Registered on each NIC; one that refuses takes the others with it.
TEST_F(VerbsDeviceTest, ARefusalOfTheSecondNicLeavesNothingOnTheFirst) {
  Meet();
  const TestMemory memory(kSize, TestPlace::kDevice);
  world.fabric.Fail(*b.host, fake::Call::kRegDmabufMr, 2, ENOMEM);
  const Status status = Refused(b, memory.memory());
  EXPECT_EQ(status.code(), Code::kUnavailable);
  EXPECT_THAT(status.message(), HasSubstr("nic1"));
  EXPECT_THAT(status.message(), HasSubstr("Cannot allocate memory"));
  const int before = Regions(b);
  const Described region = RegisterAt(b, memory.memory(), Access::kGranted);
  EXPECT_EQ(Regions(b), before + 2);
  EXPECT_TRUE(Deregister(b, region));
}

TEST_F(VerbsDeviceTest, GpusThatAreOffAreNotAsked) {
  Settings off = World::OwnSettings();
  off.gpu = "off";
  Node node = world.Start(GpuNics(2), off);
  const TestMemory memory(kSize, TestPlace::kDevice);
  const Status status = Refused(node, memory.memory());
  EXPECT_EQ(status.code(), Code::kUnavailable);
  EXPECT_THAT(status.message(), HasSubstr("setting gpu"));
}

// --- Lifetime of regions

/// The memory is the user's again with Deregistered: no NIC and no descriptor has it.
TEST_F(VerbsDeviceTest, ARegionLetsGoOfItsMemoryBeforeItSaysSo) {
  Meet();
  for (uint32_t round = 0; round < 20; ++round) {
    const int regions = Regions(b);
    const TestMemory there(kSize, TestPlace::kDevice);
    const Described target = RegisterAt(b, there.memory(), Access::kGranted);
    EXPECT_EQ(DmaBufs(), 1U);
    const uint64_t calls = Calls();
    EXPECT_TRUE(Deregister(b, target));
    EXPECT_EQ(Calls(), calls) << "progress made a call";
    EXPECT_EQ(DmaBufs(), 0U);
    EXPECT_EQ(Regions(b), regions);
  }
  EXPECT_EQ(Torn(), 0U);
  {
    const TestMemory early(kSize, TestPlace::kDevice);
    RegisterAt(b, early.memory(), Access::kGranted);
  }
  EXPECT_EQ(Torn(), 1U) << "the fake does not see who frees too early";
}

TEST_F(VerbsDeviceTest, TheSameMemoryIsRegisteredAgainAndAgain) {
  Meet();
  const TestMemory here(kSize, TestPlace::kDevice);
  const TestMemory there(kSize, TestPlace::kDevice);
  const Described local = RegisterAt(a, here.memory(), Access::kLocal);
  for (uint32_t round = 0; round < 20; ++round) {
    here.Fill(round);
    const Described first = RegisterAt(b, there.memory(), Access::kGranted);
    const Described second = RegisterAt(b, there.memory(), Access::kReadWrite);
    EXPECT_TRUE(Deregister(b, first));
    EXPECT_EQ(Run(0, From(local, a.side->Import(Pair::kA, second), kSize)).code, Code::kOk);
    EXPECT_TRUE(SameBytes(here.Read(), there.Read()));
    EXPECT_TRUE(Deregister(b, second));
    EXPECT_EQ(DmaBufs(), 1U);  // The source's.
  }
}

TEST_F(VerbsDeviceTest, RegionsThatEndWhileOperationsAreOut) {
  Settings patient = World::OwnSettings();
  patient.lease = 120s;  // No fence is made by force.
  Meet(Takes::kDmaBuf, patient);
  for (const bool at_source : {true, false}) {
    const TestMemory here(kSize, TestPlace::kDevice);
    const TestMemory there(kSize, TestPlace::kDevice);
    const Described local = RegisterAt(a, here.memory(), Access::kLocal);
    const Described target = RegisterAt(b, there.memory(), Access::kGranted);
    const RemoteRegion remote_target = a.side->Import(Pair::kA, target);
    world.fabric.Hold(*a.host, fake::Direction::kOut);
    uint64_t cookie = 0;
    ASSERT_TRUE(Until([&] { return (cookie = Post(0, From(local, remote_target, kSize))) != 0; }));
    Node& node = at_source ? a : b;
    const Described& ended = at_source ? local : target;
    node.side->transport().Deregister(ended.name.id);
    for (int i = 0; i < 20; ++i) {
      a.side->Pump();
      b.side->Pump();
    }
    EXPECT_FALSE(node.side->deregistered.contains(ended.name.id));
    EXPECT_EQ(DmaBufs(), 2U);
    world.fabric.Release(*a.host);
    ASSERT_TRUE(
        Until([&] { return node.side->deregistered.contains(ended.name.id) && a.side->Completed(cookie); }));
    EXPECT_TRUE(a.side->completions[cookie].code == Code::kOk ||
                a.side->completions[cookie].code == Code::kPermission);
    EXPECT_EQ(DmaBufs(), 1U);
    EXPECT_TRUE(Deregister(at_source ? b : a, at_source ? target : local));
  }
  EXPECT_EQ(Torn(), 0U);
}

/// What an engine does that sleeps: other memory comes back at the same address.
TEST_F(VerbsDeviceTest, MemoryThatIsUnmappedAndMappedAgainIsOtherMemory) {
  Meet();
  MappedPages pages(*use, 2, /*rdma=*/true);
  const TestMemory here(2 * kPage, TestPlace::kDevice);
  const Described local = RegisterAt(a, here.memory(), Access::kLocal);
  std::vector<std::byte> landed(2 * kPage);
  for (uint64_t round = 0; round < 5; ++round) {
    here.Fill(round);
    const Described target = RegisterAt(b, pages.described(), Access::kGranted);
    const RemoteRegion remote_target = a.side->Import(Pair::kA, target);
    EXPECT_EQ(Run(0, From(local, remote_target, 2 * kPage)).code, Code::kOk);
    use->Read(pages.memory(), 0, landed);
    EXPECT_TRUE(SameBytes(here.Read(), landed));
    ASSERT_TRUE(Deregister(b, target));
    EXPECT_EQ(Run(0, From(local, remote_target, 2 * kPage)).code, Code::kPermission);
    pages.Unmap();
    pages.Map();
    a.side->transport().Release(Pair::kA, remote_target);
  }
  EXPECT_EQ(Torn(), 0U);
}

TEST_F(VerbsDeviceTest, NothingIsLeftAfterManyLinksAndRegions) {
  a = world.Start(GpuNics(2));
  b = world.Start(GpuNics(2));
  const int regions = Regions(b);
  FakeCudaLive before{};
  for (int round = 0; round < 30; ++round) {
    if (round == 1) before = fake_cuda_live(-1);  // The first one has begun the devices' threads.
    const TestMemory here(kSize, TestPlace::kDevice);
    const TestMemory there(kSize, TestPlace::kDevice);
    const Described local = RegisterAt(a, here.memory(), Access::kLocal);
    const Described target = RegisterAt(b, there.memory(), Access::kReadWrite);
    ASSERT_TRUE(world.Connect(a, b));
    Op write = From(local, a.side->Import(Pair::kA, target), kSize);
    write.grant = {};
    std::vector<Op> ops(3, write);
    ASSERT_EQ(a.side->TryPost(Pair::kA, static_cast<uint32_t>(round) % 4, ops), ops.size());
    if (round % 3 == 1) {
      ASSERT_TRUE(Until([&] { return a.side->pending() == 0; }));
    }
    if (round % 3 == 2) world.fabric.Inject(*a.host, 1, IBV_EVENT_QP_FATAL);
    a.side->transport().Deregister(local.name.id);
    b.side->transport().Deregister(target.name.id);
    a.side->transport().CloseLink(Pair::kA);
    b.side->transport().CloseLink(Pair::kB);
    ASSERT_TRUE(Until([&] {
      return a.side->closed.contains(Pair::kA) && b.side->closed.contains(Pair::kB) &&
             a.side->deregistered.contains(local.name.id) && b.side->deregistered.contains(target.name.id);
    })) << round;
    EXPECT_EQ(DmaBufs(), 0U) << round;
    a.side->Forget();
  }
  EXPECT_EQ(Regions(b), regions);
  const FakeCudaLive after = fake_cuda_live(-1);
  EXPECT_EQ(after.torn, 0U);
  EXPECT_EQ(after.memories, before.memories);
  EXPECT_EQ(after.mappings, before.mappings);
  EXPECT_EQ(after.exported, before.exported);
}

// --- Streams and lost contexts

/// What a stream holds is waited for, and a context that is lost meanwhile ends the link with the driver's
/// words.
TEST_F(VerbsDeviceTest, ASourceIsReadBehindItsStreamAndEndsWithItsContext) {
  Meet();
  const TestMemory here(kSize, TestPlace::kDevice);  // Device 0.
  const TestMemory there(kSize, TestPlace::kDevice);
  const Described local = RegisterAt(a, here.memory(), Access::kLocal);
  const RemoteRegion target = a.side->Import(Pair::kA, RegisterAt(b, there.memory(), Access::kGranted));
  auto devices = device::DevicesInProcess(World::OwnSettings());
  ASSERT_TRUE(devices.ok());
  auto device = (*devices)->Of(0);
  ASSERT_TRUE(device.ok());
  drivers::CUstream stream{};
  const auto record = [&] {
    auto event = device::StreamEvent::Record(device->worker, stream);
    Require(event.ok(), event.status().message());
    return std::move(event).value();
  };
  {
    const CurrentContext current(use->cuda(), use->context(0));
    ASSERT_EQ(use->cuda().StreamCreateWithPriority(&stream, drivers::CU_STREAM_NON_BLOCKING, 0), 0);
    fake_cuda_hold(0);
    const auto to = reinterpret_cast<drivers::CUdeviceptr>(here.memory().address);
    ASSERT_EQ(use->cuda().MemsetD8Async(to, 7, kSize, stream), 0);
  }
  auto event = record();
  Op write = From(local, target, kSize);
  write.after = event.get();
  const uint64_t waits = Post(0, write);
  ASSERT_NE(waits, 0U);
  for (int i = 0; i < 50; ++i) {
    a.side->Pump();
    world.fabric.Advance(World::kTurn);
  }
  EXPECT_FALSE(a.side->Completed(waits));
  fake_cuda_release(0);
  ASSERT_TRUE(Until([&] { return a.side->Completed(waits); }));
  EXPECT_EQ(there.Read(kSize - 1, 1)[0], std::byte{7});
  // Another, whose stream never gets there.
  fake_cuda_hold(0);
  {
    const CurrentContext current(use->cuda(), use->context(0));
    const auto to = reinterpret_cast<drivers::CUdeviceptr>(here.memory().address);
    ASSERT_EQ(use->cuda().MemsetD8Async(to, 8, kSize, stream), 0);
  }
  event = record();
  write.after = event.get();
  const uint64_t lost = Post(0, write);
  ASSERT_NE(lost, 0U);
  use->ExpectLeftovers();
  fake_cuda_lose(0, 0, drivers::CUDA_ERROR_ECC_UNCORRECTABLE, 0);
  fake_cuda_release(0);
  ASSERT_TRUE(Until([&] { return a.side->down.contains(Pair::kA) && a.side->Completed(lost); }));
  EXPECT_EQ(a.side->down[Pair::kA].code(), Code::kInternal);
  EXPECT_THAT(a.side->down[Pair::kA].message(), HasSubstr("ECC"));
  EXPECT_NE(a.side->completions[lost].code, Code::kOk);
  event.reset();
  Drop();
}

}  // namespace
}  // namespace weightcast::transport::verbs
