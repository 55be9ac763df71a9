// What a source can lie in: each kind of device memory is pulled from another process, or staged.
#include <functional>
#include <set>

#include "contract/pull_across.h"
#include "fake_cuda/fake_cuda.h"
#include "trace/metrics.h"

namespace weightcast::transport {
namespace {

class SourceKindsTest : public PullAcrossTest {};

/// Writes what lies in `memory`, which no other process can map.
void ExpectStaged(DevicesInUse& devices, const Memory& memory, const std::function<Code()>& write) {
  const TestMemory pattern(kSize, TestPlace::kPrivate);
  pattern.Fill(1);
  devices.Write(memory, 0, pattern.bytes());
  const uint64_t before = trace::CounterNamed("gpu.staged_bytes").value();
  EXPECT_EQ(write(), Code::kOk);
  EXPECT_EQ(trace::CounterNamed("gpu.staged_bytes").value(), before + kSize);
}

/// Writes a pattern from the middle of `pages`, across the edge of two.
void ExpectPulled(DevicesInUse& devices, const Pages& pages, size_t page,
                  const std::function<Code(uint64_t)>& write) {
  const TestMemory pattern(kSize, TestPlace::kPrivate);
  pattern.Fill(1);
  const uint64_t offset = page * Pages::kPage + 4096;
  devices.Write(pages.memory(), offset, pattern.bytes());
  EXPECT_EQ(write(offset), Code::kOk);
}

// A segment of torch's: hundreds of pages of 2 MiB, of which one message has the descriptors of 32.
TEST_F(SourceKindsTest, HundredsOfPagesOfAnExpandableSegmentArePulled) {
  const Pages pages(*use.devices, 200, drivers::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
  const Described local = pages.Register(side);
  for (const size_t page : {0, 31, 185, 198}) {
    ExpectPulled(*use.devices, pages, page, [&](uint64_t offset) { return WriteFrom(local, offset); });
    EXPECT_EQ(Compare(), "same") << page;
  }
  side.transport().Deregister(local.name.id);
  ASSERT_TRUE(Deregistered(local));
  EXPECT_EQ(fake_cuda_live(-1).exported, 0U) << "descriptors of pages are left";
}

// vLLM's sleep mode makes such memory.
TEST_F(SourceKindsTest, MemoryWithoutAHandleTypeIsStaged) {
  const Pages pages(*use.devices, 2, drivers::CU_MEM_HANDLE_TYPE_NONE);
  const Described local = pages.Register(side);
  ExpectStaged(*use.devices, pages.memory(), [&] { return WriteFrom(local); });
  EXPECT_EQ(Compare(), "same");
  side.transport().Deregister(local.name.id);
  ASSERT_TRUE(Deregistered(local));
}

TEST_F(SourceKindsTest, MemoryOfAPoolIsStaged) {
  drivers::CUdeviceptr pooled = 0;
  {
    const CurrentContext current(use.devices->cuda(), use.devices->context(0));
    ASSERT_EQ(fake_cuda_alloc_pooled(&pooled, kSize), 0);
  }
  const RegionName name{.owner = side.self(), .id = 50, .generation = 51};
  const DescribedMemory memory{.kind = MemoryKind::kDevice,
                               .ordinal = 0,
                               .address = reinterpret_cast<std::byte*>(pooled),
                               .length = kSize,
                               .allocation = {}};
  auto key = side.transport().Register(name, memory, Access::kLocal);
  ASSERT_TRUE(key.ok()) << key.status().message();
  const Described local{name, kSize, *key};
  const Memory raw{.kind = MemoryKind::kDevice, .device = 0, .address = memory.address, .length = kSize};
  ExpectStaged(*use.devices, raw, [&] { return WriteFrom(local); });
  EXPECT_EQ(Compare(), "same");
  side.transport().Deregister(local.name.id);
  ASSERT_TRUE(Deregistered(local));
  const CurrentContext current(use.devices->cuda(), use.devices->context(0));
  EXPECT_EQ(use.devices->cuda().MemFree(pooled), drivers::CUDA_SUCCESS);
}

// Its address is the same, its identity is not: a mapping of what was there before would show other bytes.
TEST_F(SourceKindsTest, MemoryAllocatedAgainAtItsAddressIsPulledAnew) {
  const RegionName name{.owner = side.self(), .id = 50, .generation = 51};
  std::set<std::byte*> addresses;
  for (uint64_t round = 0; round < 3; ++round) {
    const TestMemory source(kSize, TestPlace::kDevice);
    const TestMemory skipped(4096, TestPlace::kDevice);  // Of device 1: the next source is of device 0.
    addresses.insert(source.memory().address);
    source.Fill(round);
    const Described local =
        side.RegisterAs(name.id, name.generation + static_cast<uint32_t>(round), source, Access::kLocal);
    ASSERT_EQ(WriteFrom(local), Code::kOk);
    EXPECT_EQ(Compare(round), "same");
    side.transport().Deregister(name.id);
    ASSERT_TRUE(Deregistered(local));
  }
  EXPECT_EQ(addresses.size(), 1U) << "the driver gave other addresses: nothing was tried";
}

/// Where the driver shares memory over a fabric.
class FabricPullTest : public PullAcrossTest {
 protected:
  FabricPullTest() : PullAcrossTest("imex=1") {}
};

// As torch makes it there: 7 handles to a message.
TEST_F(FabricPullTest, PagesWithFabricHandlesOnlyArePulled) {
  const Pages pages(*use.devices, 16, drivers::CU_MEM_HANDLE_TYPE_FABRIC);
  const Described local = pages.Register(side);
  ExpectPulled(*use.devices, pages, 13, [&](uint64_t offset) { return WriteFrom(local, offset); });
  EXPECT_EQ(Compare(), "same");
  side.transport().Deregister(local.name.id);
  ASSERT_TRUE(Deregistered(local));
}

}  // namespace
}  // namespace weightcast::transport
