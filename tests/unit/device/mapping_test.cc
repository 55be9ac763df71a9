#include "device/mapping.h"

#include <fcntl.h>

#include "device/buffer.h"
#include "device/export.h"
#include "unit/device/world.h"

namespace weightcast::device {
namespace {

constexpr size_t kPage = SimpleCuda::kPage;
using Shared = std::shared_ptr<const Mapping>;

class MappingTest : public ::testing::Test {
 protected:
  /// As its owner in another process would tell of it.
  [[nodiscard]] AllocationName Foreign(const DeviceMemory& memory) const {
    AllocationName name = NameOf(memory);
    name.process = 77;
    return name;
  }
  [[nodiscard]] DeviceMemory Look(std::byte* address, size_t length) const {
    return Describe(world.worker->context(), OfDevice(address, length)).value();
  }
  [[nodiscard]] std::vector<Handle> Handles(const DeviceMemory& memory, size_t first, size_t count) const {
    return Export(world.worker->context(), memory, first, count).value();
  }
  Result<Shared> Map(const DeviceMemory& memory, const AllocationName& name) {
    return world.OnWorker([&]() -> Result<Shared> {
      WC_ASSIGN_OR_RETURN(auto import, world.mappings->Begin(world.worker, name));
      for (size_t first = 0; import->missing() > 0; first += kHandlesPerMessage) {
        const size_t count = std::min(import->missing(), kHandlesPerMessage);
        WC_RETURN_IF_ERROR(import->Add(Handles(memory, first, count)));
      }
      return import->Finish();
    });
  }
  World world;
};

TEST_F(MappingTest, AnAllocationIsMappedOnceForAll) {
  std::byte* const base = world.cuda->Device(1000);
  const DeviceMemory memory = Look(base, 1000);
  const AllocationName name = Foreign(memory);
  Shared first = Map(memory, name).value();
  EXPECT_EQ(first->length, 1000U);
  EXPECT_EQ(Map(memory, name).value(), first) << "two imports at the same time end in one";
  EXPECT_EQ(world.OnWorker([&] { return world.mappings->Find(world.worker, name); }), first);
  world.Settle();
  EXPECT_EQ(world.cuda->live(), 1);

  // Asked for again before the worker has unmapped it.
  first.reset();
  Shared again = world.OnWorker([&] { return world.mappings->Find(world.worker, name); });
  EXPECT_EQ(again, nullptr) << "the worker was first";
  world.Settle();
  EXPECT_EQ(world.cuda->live(), 0);
  world.cuda->FreeDevice(base);
}

TEST_F(MappingTest, OneThatIsAskedForAgainIsNotUnmapped) {
  std::byte* const base = world.cuda->Device(1000);
  const DeviceMemory memory = Look(base, 1000);
  const AllocationName name = Foreign(memory);
  Shared first = Map(memory, name).value();
  Shared again;
  world.worker->Run([&] { again = world.mappings->Find(world.worker, name); });
  first.reset();  // The unmapping comes behind that task.
  world.Settle();
  ASSERT_NE(again, nullptr);
  EXPECT_EQ(world.cuda->live(), 1);
  again.reset();
  bool unmapped = false;
  world.worker->Run([&] { unmapped = world.cuda->live() == 0; });
  world.Settle();
  EXPECT_TRUE(unmapped) << "a task after the last holder finds it unmapped";
  world.cuda->FreeDevice(base);
}

TEST_F(MappingTest, PagesComeInSeveralMessagesAndLieInOneRange) {
  for (const uint64_t types : {CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, CU_MEM_HANDLE_TYPE_FABRIC}) {
    std::byte* const base = world.cuda->Pages(70, types);
    const DeviceMemory memory = Look(base + 5, 70 * kPage - 10);
    ASSERT_EQ(memory.blocks.size(), 70U);
    Shared mapping = Map(memory, Foreign(memory)).value();
    EXPECT_EQ(mapping->length, 70 * kPage);
    EXPECT_EQ(world.mappings->size(), 1U);
    EXPECT_TRUE(world.cuda->RangeOf(mapping->address + 69 * kPage).accessible);
    EXPECT_EQ(world.cuda->live(), 71) << "70 pages and their range; no handle is kept";
    mapping.reset();
    world.Settle();
    EXPECT_EQ(world.mappings->size(), 0U);
    world.cuda->FreePages(base, 70);
  }
}

TEST_F(MappingTest, AnImportThatIsGivenUpOrFailsLeavesNothing) {
  std::byte* const base = world.cuda->Pages(3, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
  const DeviceMemory memory = Look(base, 3 * kPage);
  world.OnWorker([&] {
    auto import = world.mappings->Begin(world.worker, Foreign(memory)).value();
    EXPECT_TRUE(import->Add(Handles(memory, 0, 2)).ok());
    EXPECT_EQ(import->missing(), 1U);
    EXPECT_EQ(import->Finish().status().code(), Code::kProtocol);
    EXPECT_EQ(import->Add(Handles(memory, 0, 2)).code(), Code::kProtocol) << "more than are missing";
    return true;
  });
  EXPECT_EQ(world.cuda->live(), 0);
  for (const char* call :
       {"cuMemAddressReserve", "cuMemImportFromShareableHandle", "cuMemMap", "cuMemSetAccess"}) {
    world.cuda->FailNext(call, CUDA_ERROR_INVALID_VALUE);
    const auto mapped = Map(memory, Foreign(memory));
    EXPECT_FALSE(mapped.ok());
    EXPECT_NE(mapped.status().message().find(call), std::string::npos) << mapped.status().message();
    EXPECT_EQ(world.cuda->live(), 0) << call;
  }
  world.cuda->FreePages(base, 3);
}

TEST_F(MappingTest, APeerThatLiesAboutLengthsIsRefused) {
  std::byte* const base = world.cuda->Device(1000);
  const DeviceMemory memory = Look(base, 1000);
  AllocationName name = Foreign(memory);
  name.lengths = {1001};
  EXPECT_EQ(Map(memory, name).status().code(), Code::kProtocol);
  for (const std::vector<uint64_t>& lengths :
       {std::vector<uint64_t>{}, {0}, {UINT64_MAX}, {uint64_t{1} << 43, uint64_t{1} << 44}, {500, 500}}) {
    name.lengths = lengths;
    EXPECT_EQ(Map(memory, name).status().code(), Code::kProtocol);
  }
  name.exportable = Exportable::kNo;
  EXPECT_EQ(Map(memory, name).status().code(), Code::kUnavailable);
  EXPECT_EQ(world.cuda->live(), 0);
  world.cuda->FreeDevice(base);
}

TEST_F(MappingTest, MemoryOfThisProcessIsItsOwnAddress) {
  std::byte* const base = world.cuda->Device(1000);
  const DeviceMemory memory = Look(base + 10, 20);
  const auto map = [&](const AllocationName& name) {
    return world.OnWorker([&] { return world.mappings->MapOwn(world.worker, name); });
  };
  Shared mapping = map(NameOf(memory)).value();
  EXPECT_EQ(mapping->address, base);
  EXPECT_EQ(world.cuda->live(), 0) << "nothing was mapped";
  mapping.reset();
  world.Settle();
  EXPECT_EQ(map(Foreign(memory)).status().code(), Code::kInvalidArgument);
  AllocationName stale = NameOf(memory);
  world.cuda->RemapPage(base);
  EXPECT_EQ(map(stale).status().code(), Code::kInvalidArgument) << "freed and allocated again";
  world.cuda->FreeDevice(base);
}

TEST_F(MappingTest, MemoryOfAnotherDeviceOfThisProcessIsMadeReachable) {
  std::byte* const base = world.cuda->Device(1000, 1);
  const auto owner = world.gpus->Retain(1).value();
  const DeviceMemory memory = Describe(*owner, OfDevice(base, 1000, 1)).value();
  const auto map = [&] {
    return world.OnWorker([&] { return world.mappings->MapOwn(world.worker, NameOf(memory)); });
  };
  world.cuda->FailNext("cuCtxEnablePeerAccess", CUDA_ERROR_PEER_ACCESS_UNSUPPORTED);
  EXPECT_EQ(map().status().code(), Code::kUnavailable);
  world.cuda->FailNext("cuCtxEnablePeerAccess", CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED);
  EXPECT_EQ(map().value()->address, base);
  world.Settle();
  world.cuda->FreeDevice(base);
}

TEST_F(MappingTest, WhatCannotBeExportedIsSaid) {
  std::byte* const base = world.cuda->Pages(2, 0);
  const auto none = Export(world.worker->context(), Look(base, 10), 0, 1);
  EXPECT_EQ(none.status().code(), Code::kUnavailable);
  EXPECT_NE(none.status().message().find("no shareable handle type"), std::string::npos);
  world.cuda->FreePages(base, 2);

  std::byte* const pages = world.cuda->Pages(2, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
  const DeviceMemory memory = Look(pages, 2 * kPage);
  EXPECT_EQ(Export(world.worker->context(), memory, 1, 2).status().code(), Code::kOutOfBounds);
  for (const Handle& handle : Handles(memory, 0, 2))
    EXPECT_NE(fcntl(std::get<UniqueFd>(handle).get(), F_GETFD) & FD_CLOEXEC, 0);
  world.cuda->FailNext("cuMemExportToShareableHandle", CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_EQ(Export(world.worker->context(), memory, 0, 2).status().code(), Code::kExhausted);
  EXPECT_EQ(world.cuda->live(), 0) << "the handle went back";
  world.cuda->FreePages(pages, 2);
}

TEST_F(MappingTest, ABufferOfOursIsExportable) {
  const auto context = world.worker->health()->shared_context();
  auto buffer = Buffer::Allocate(context, 5000).value();
  const auto memory = Describe(*context, buffer->memory());
  ASSERT_TRUE(memory.ok()) << memory.status().ToString();
  EXPECT_EQ(memory->exportable, Exportable::kLegacy);
  world.cuda->FailNext("cuMemAlloc", CUDA_ERROR_OUT_OF_MEMORY);
  const auto none = Buffer::Allocate(context, 5'000'000);
  EXPECT_EQ(none.status().code(), Code::kExhausted);
  EXPECT_NE(none.status().message().find("5.00 MB on device 0"), std::string::npos)
      << none.status().message();
  EXPECT_EQ(Buffer::Allocate(context, 0).status().code(), Code::kInvalidArgument);
}

}  // namespace
}  // namespace weightcast::device
