// Export and Mappings within one process, by handles that the process opens itself; sharing_test.cc has two.
#include "device/mapping.h"

#include <fcntl.h>

#include <algorithm>
#include <array>
#include <memory>

#include "device/buffer.h"
#include "device/copy_queue.h"
#include "device/describe.h"
#include "device/export.h"
#include "unit/device/fake/fake_world.h"

namespace weightcast::device {
namespace {

using Shared = std::shared_ptr<const Mapping>;

/// What mapping makes in the driver.
struct Made {
  uint64_t mappings;
  uint64_t reservations;
  uint64_t handles;
  bool operator==(const Made&) const = default;
};
void PrintTo(const Made& made, std::ostream* out) {
  *out << made.mappings << " mappings, " << made.reservations << " reservations, " << made.handles
       << " handles";
}
Made Now() {
  const FakeCudaLive live = fake_cuda_live(0);
  return {live.mappings, live.reservations, live.handles};
}
Made Plus(Made made, uint64_t mappings, uint64_t reservations) {
  return {made.mappings + mappings, made.reservations + reservations, made.handles};
}

class MappingTest : public ::testing::Test {
 protected:
  /// As its owner in another process would tell of it.
  [[nodiscard]] static AllocationName Foreign(const DeviceMemory& memory) {
    AllocationName name = NameOf(memory);
    name.process = 77;
    return name;
  }
  [[nodiscard]] DeviceMemory Look(drivers::CUdeviceptr address, size_t length) const {
    return Describe(world.worker->context(), OfDevice(address, length)).value();
  }
  [[nodiscard]] Result<std::vector<Handle>> Handles(const DeviceMemory& memory, size_t first,
                                                    size_t count) const {
    const NoContext none(*world.host.cuda);
    return Export(world.worker->context(), memory, first, count);
  }
  Result<Shared> Map(const DeviceMemory& memory, const AllocationName& name) {
    return world.OnWorker([&]() -> Result<Shared> {
      WC_ASSIGN_OR_RETURN(auto import, world.mappings->Begin(world.worker, name));
      for (size_t first = 0; import->missing() > 0; first += kHandlesPerMessage) {
        const size_t count = std::min(import->missing(), kHandlesPerMessage);
        WC_ASSIGN_OR_RETURN(auto handles, Handles(memory, first, count));
        WC_RETURN_IF_ERROR(import->Add(std::move(handles)));
      }
      return import->Finish();
    });
  }
  Result<Shared> MapOwn(const AllocationName& name) {
    return world.OnWorker([&] { return world.mappings->MapOwn(world.worker, name); });
  }
  /// The worker unmaps what was let go.
  void TearDown() override { world.Settle(); }
  FakeWorld world{"imex=1"};
};

TEST_F(MappingTest, AnAllocationIsMappedOnceForAll) {
  const Pages pages(world.host, 1, kDescriptor);
  const Made before = Now();
  const DeviceMemory memory = Look(pages.base(), kPage);
  const AllocationName name = Foreign(memory);
  Shared first = Map(memory, name).value();
  EXPECT_EQ(first->length, kPage);
  EXPECT_EQ(Map(memory, name).value(), first) << "two imports at the same time end in one";
  EXPECT_EQ(Map(memory, Foreign(Look(pages.base() + 100, 10))).value(), first)
      << "the same allocation, registered twice";
  EXPECT_EQ(world.OnWorker([&] { return world.mappings->Find(world.worker, name); }), first);
  world.Settle();
  EXPECT_EQ(Now(), Plus(before, 1, 1));

  // Asked for again when the worker has unmapped it.
  first.reset();
  const Shared again = world.OnWorker([&] { return world.mappings->Find(world.worker, name); });
  EXPECT_EQ(again, nullptr) << "the worker was first";
  world.Settle();
  EXPECT_EQ(Now(), before);
}

TEST_F(MappingTest, OneThatIsAskedForAgainIsNotUnmapped) {
  const Pages pages(world.host, 1, kDescriptor);
  const Made before = Now();
  const DeviceMemory memory = Look(pages.base(), kPage);
  const AllocationName name = Foreign(memory);
  Shared first = Map(memory, name).value();
  Shared again;
  world.worker->Run([&] { again = world.mappings->Find(world.worker, name); });
  first.reset();  // The unmapping comes behind that task.
  world.Settle();
  ASSERT_NE(again, nullptr);
  EXPECT_EQ(Now(), Plus(before, 1, 1));
  again.reset();
  Made seen{};
  world.worker->Run([&] { seen = Now(); });
  world.Settle();
  EXPECT_EQ(seen, before) << "a task after the last holder finds it unmapped";
}

/// An endpoint that is closed does not wait for ever for a copy that stands still.
TEST_F(MappingTest, IsNotUnmappedUnderACopyWhoseQueueHasGone) {
  const Pages pages(world.host, 1, kDescriptor);
  const Pages own(world.host, 1, kDescriptor);
  const Made before = Now();
  const DeviceMemory memory = Look(pages.base(), kPage);
  Shared mapping = Map(memory, Foreign(memory)).value();
  auto queue = std::make_unique<CopyQueue>(world.worker);
  const std::array copy{Copy{.to = reinterpret_cast<std::byte*>(own.base()),
                             .from = mapping->address,
                             .length = 100,
                             .ends = Ends::kOneDevice}};
  ASSERT_TRUE(queue->Submit(copy));
  world.StepWorker();  // It is begun, and the device has not moved a byte.
  const Made begun = Now();
  queue.reset();
  mapping.reset();
  bool ran = false;
  world.worker->Run([&] { ran = true; });
  world.StepWorker();
  EXPECT_TRUE(ran) << "other tasks do not wait";
  EXPECT_EQ(Now(), begun);
  world.Settle();
  EXPECT_EQ(Now(), before);
}

TEST_F(MappingTest, PagesComeInSeveralMessagesAndLieInOneRange) {
  for (const int types : {kDescriptor, kFabricType}) {
    const Pages pages(world.host, 70, types);
    const Made before = Now();
    const DeviceMemory memory = Look(pages.base() + 5, 70 * kPage - 10);
    ASSERT_EQ(memory.blocks.size(), 70U);
    Shared mapping = Map(memory, Foreign(memory)).value();
    EXPECT_EQ(mapping->length, 70 * kPage);
    EXPECT_EQ(world.mappings->size(), 1U);
    EXPECT_EQ(Now(), Plus(before, 70, 1)) << "70 pages and their range; no handle is kept";
    // The driver knows the range of what has access only.
    EXPECT_EQ(Look(Number(mapping->address) + 69 * kPage, kPage).blocks.size(), 1U);
    mapping.reset();
    world.Settle();
    EXPECT_EQ(world.mappings->size(), 0U);
    EXPECT_EQ(Now(), before);
  }
}

// A segment that grows or loses a page between two registrations is another allocation, with a mapping of its
// own; the pages that both have are mapped twice.
TEST_F(MappingTest, ASegmentThatHasChangedIsMappedAnew) {
  Pages pages(world.host, 3, kDescriptor);
  const Made before = Now();
  const DeviceMemory old_memory = Look(pages.base(), 3 * kPage);
  const Shared old_mapping = Map(old_memory, Foreign(old_memory)).value();
  pages.Remap(1, kDescriptor);
  const DeviceMemory new_memory = Look(pages.base(), 3 * kPage);
  const Shared new_mapping = Map(new_memory, Foreign(new_memory)).value();
  EXPECT_NE(old_mapping, new_mapping);
  EXPECT_EQ(world.mappings->size(), 2U);
  EXPECT_EQ(Now(), Plus(before, 6, 2));
}

TEST_F(MappingTest, AnImportThatIsGivenUpOrFailsLeavesNothing) {
  const Pages pages(world.host, 3, kDescriptor);
  const Made before = Now();
  const DeviceMemory memory = Look(pages.base(), 3 * kPage);
  world.OnWorker([&] {
    auto import = world.mappings->Begin(world.worker, Foreign(memory)).value();
    EXPECT_TRUE(import->Add(Handles(memory, 0, 2).value()).ok());
    EXPECT_EQ(import->missing(), 1U);
    EXPECT_EQ(import->Finish().status().code(), Code::kProtocol);
    EXPECT_EQ(import->Add(Handles(memory, 0, 2).value()).code(), Code::kProtocol) << "more than are missing";
    return true;
  });
  EXPECT_EQ(Now(), before);
  for (const char* call :
       {"cuMemAddressReserve", "cuMemImportFromShareableHandle", "cuMemMap", "cuMemSetAccess"}) {
    fake_cuda_fail(0, call, 1, drivers::CUDA_ERROR_INVALID_VALUE);
    const auto mapped = Map(memory, Foreign(memory));
    EXPECT_FALSE(mapped.ok());
    EXPECT_NE(mapped.status().message().find(call), std::string::npos) << mapped.status().message();
    EXPECT_EQ(Now(), before) << call;
  }
}

TEST_F(MappingTest, APeerThatLiesAboutLengthsIsRefused) {
  const Pages pages(world.host, 2, kDescriptor);
  const Made before = Now();
  const DeviceMemory memory = Look(pages.base(), 2 * kPage);
  AllocationName name = Foreign(memory);
  for (const std::vector<uint64_t>& lengths :
       {std::vector<uint64_t>{}, {0}, {UINT64_MAX}, {uint64_t{1} << 43, uint64_t{1} << 44}}) {
    name.lengths = lengths;
    EXPECT_EQ(Map(memory, name).status().code(), Code::kProtocol);
  }
  name.exportable = Exportable::kLegacy;
  name.lengths = {kPage, kPage};
  EXPECT_EQ(Map(memory, name).status().code(), Code::kProtocol) << "a plain allocation has one block";
  name.exportable = Exportable::kNo;
  EXPECT_EQ(Map(memory, name).status().code(), Code::kUnavailable);
  // What only the driver can find out: its handles are of pages of 2 MiB.
  name.exportable = Exportable::kDescriptors;
  for (const std::vector<uint64_t>& lengths : {std::vector<uint64_t>{2 * kPage, kPage}, {kPage, 2 * kPage}}) {
    name.lengths = lengths;
    const auto mapped = Map(memory, name);
    ASSERT_FALSE(mapped.ok());
    EXPECT_NE(mapped.status().message().find("cuMemMap"), std::string::npos) << mapped.status().ToString();
  }
  EXPECT_FALSE(world.worker->health()->lost());
  EXPECT_EQ(Now(), before);
}

TEST_F(MappingTest, MemoryOfThisProcessIsItsOwnAddress) {
  const auto base = world.host.Alloc(kMiB);
  const Made before = Now();
  const DeviceMemory memory = Look(base + 10, 20);
  Shared mapping = MapOwn(NameOf(memory)).value();
  EXPECT_EQ(mapping->address, Pointer(base));
  EXPECT_EQ(mapping->length, kMiB);
  EXPECT_EQ(MapOwn(NameOf(Look(base, kMiB))).value(), mapping) << "the same allocation, registered twice";
  EXPECT_EQ(Now(), before) << "nothing was mapped";
  mapping.reset();
  world.Settle();
  EXPECT_EQ(world.mappings->size(), 0U);
  EXPECT_EQ(MapOwn(Foreign(memory)).status().code(), Code::kInvalidArgument);

  EXPECT_EQ(world.host.cuda->MemFree(base), drivers::CUDA_SUCCESS);
  ASSERT_EQ(world.host.Alloc(kMiB), base);
  const auto stale = MapOwn(NameOf(memory));
  EXPECT_EQ(stale.status().code(), Code::kInvalidArgument);
  EXPECT_NE(stale.status().message().find("freed since"), std::string::npos) << stale.status().message();
  EXPECT_TRUE(MapOwn(NameOf(Look(base, 10))).ok());
  world.Settle();
  EXPECT_EQ(world.host.cuda->MemFree(base), drivers::CUDA_SUCCESS);
}

/// Device 0 reads `from`, memory of device 1 that the mapping shows.
bool Reads(FakeWorld& world, const Mapping& from, unsigned char value) {
  return world.host.Holds(Number(from.address), value, 10'000);
}

TEST_F(MappingTest, AnAllocationOfAnotherDeviceOfThisProcessIsMadeReachable) {
  SecondDevice second(world.host);
  const auto base = second.Alloc(10'000);
  second.Inside([&] {
    world.host.Fill(base, 0x21, 10'000);
    return true;
  });
  {
    const auto owner = world.gpus->Retain(1).value();
    const DeviceMemory memory = Describe(*owner, OfDevice(base, 10'000, 1)).value();
    fake_cuda_peer(0, 1, 0);
    EXPECT_EQ(MapOwn(NameOf(memory)).status().code(), Code::kUnavailable);
    fake_cuda_peer(0, 1, 1);
    for (int round = 0; round < 2; ++round) {  // The second time its access is enabled already.
      const Shared mapping = MapOwn(NameOf(memory)).value();
      EXPECT_EQ(mapping->address, Pointer(base));
      EXPECT_TRUE(Reads(world, *mapping, 0x21));
    }
    world.Settle();
  }
  EXPECT_EQ(fake_cuda_calls("cuCtxEnablePeerAccess"), 3U);
  second.Free(base);
}

TEST_F(MappingTest, PagesOfAnotherDeviceOfThisProcessAreMadeReachable) {
  SecondDevice second(world.host);
  const Pages pages(world.host, 2, kDescriptor, 1);
  second.Inside([&] {
    world.host.Fill(pages.base(), 0x22, pages.length());
    return true;
  });
  const auto owner = world.gpus->Retain(1).value();
  const DeviceMemory memory = Describe(*owner, OfDevice(pages.base(), pages.length(), 1)).value();
  const Shared mapping = MapOwn(NameOf(memory)).value();
  EXPECT_TRUE(Reads(world, *mapping, 0x22));
}

// A way between devices that lies gives neither an error nor a late ticket: only who compares the bytes finds
// out, as the trial of a link does.
TEST_F(MappingTest, BytesOverAWayThatLiesAreToldAsArrived) {
  SecondDevice second(world.host);
  const auto far = second.Alloc(10'000);
  second.Inside([&] {
    world.host.Fill(far, 0x21, 10'000);
    return true;
  });
  const auto near = world.host.Alloc(10'000);
  {
    const auto owner = world.gpus->Retain(1).value();
    const DeviceMemory memory = Describe(*owner, OfDevice(far, 10'000, 1)).value();
    const Shared mapping = MapOwn(NameOf(memory)).value();
    CopyQueue queue(world.worker);
    const auto pull = [&] {
      const Copy copy{.to = Pointer(near), .from = mapping->address, .length = 10'000};
      EXPECT_TRUE(queue.Submit({&copy, 1}).has_value());
      world.Settle();
      const auto finished = queue.TakeFinished();
      EXPECT_TRUE(finished.has_value() && finished->ok) << queue.failure().ToString();
      return world.host.Holds(near, 0x21, 10'000);
    };
    fake_cuda_peer(1, 0, 2);
    EXPECT_FALSE(pull());
    EXPECT_FALSE(world.worker->health()->lost());
    fake_cuda_peer(1, 0, 1);
    EXPECT_TRUE(pull());
  }
  world.Settle();
  EXPECT_EQ(world.host.cuda->MemFree(near), drivers::CUDA_SUCCESS);
  second.Free(far);
}

TEST_F(MappingTest, WhatCannotBeExportedIsSaid) {
  const Pages plain(world.host, 2, 0);
  const auto none = Handles(Look(plain.base(), 10), 0, 1);
  EXPECT_EQ(none.status().code(), Code::kUnavailable);
  EXPECT_NE(none.status().message().find("no shareable handle type"), std::string::npos);

  const Pages pages(world.host, 2, kDescriptor);
  const DeviceMemory memory = Look(pages.base(), 2 * kPage);
  EXPECT_EQ(Handles(memory, 1, 2).status().code(), Code::kOutOfBounds);
  const Made before = Now();
  const auto handles = Handles(memory, 0, 2).value();
  for (const Handle& handle : handles)
    EXPECT_NE(fcntl(std::get<UniqueFd>(handle).get(), F_GETFD) & FD_CLOEXEC, 0);
  fake_cuda_fail(0, "cuMemExportToShareableHandle", 2, drivers::CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_EQ(Handles(memory, 0, 2).status().code(), Code::kExhausted);
  EXPECT_EQ(Now(), before) << "the handle went back";
  EXPECT_EQ(fake_cuda_live(0).exported, 2U) << "and the first descriptor";
}

TEST_F(MappingTest, ABufferOfOursIsExportable) {
  const NoContext none(*world.host.cuda);
  const auto context = world.context();
  auto buffer = Buffer::Allocate(context, 5000).value();
  const auto memory = Describe(*context, buffer->memory());
  ASSERT_TRUE(memory.ok()) << memory.status().ToString();
  EXPECT_EQ(memory->exportable, Exportable::kLegacy);
  const auto too_large = Buffer::Allocate(context, 2'000'000'000);  // The device has 1 GiB.
  EXPECT_EQ(too_large.status().code(), Code::kExhausted);
  EXPECT_NE(too_large.status().message().find("2.00 GB on device 0"), std::string::npos)
      << too_large.status().message();
  EXPECT_EQ(Buffer::Allocate(context, 0).status().code(), Code::kInvalidArgument);
}

}  // namespace
}  // namespace weightcast::device
