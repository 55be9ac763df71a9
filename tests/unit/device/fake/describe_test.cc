#include "device/describe.h"

#include <array>

#include "unit/device/fake/fake_world.h"

namespace weightcast::device {
namespace {

class DescribeTest : public ::testing::Test {
 protected:
  [[nodiscard]] Result<DeviceMemory> Look(drivers::CUdeviceptr address, size_t length, int device = 0) const {
    const NoContext none(*world.host.cuda);
    return Describe(*world.context(), OfDevice(address, length, device));
  }
  [[nodiscard]] Result<uint64_t> Identity(drivers::CUdeviceptr address, size_t length) const {
    const NoContext none(*world.host.cuda);
    return IdentityOf(*world.context(), {Pointer(address), length});
  }
  [[nodiscard]] std::string Refusal(drivers::CUdeviceptr address, size_t length, int device = 0) const {
    const auto found = Look(address, length, device);
    EXPECT_EQ(found.status().code(), Code::kInvalidArgument);
    return found.status().message();
  }
  void Free(drivers::CUdeviceptr address) const {
    EXPECT_EQ(world.host.cuda->MemFree(address), drivers::CUDA_SUCCESS);
  }
  FakeWorld world{"imex=1"};
};

TEST_F(DescribeTest, AnAddressInsideAnAllocationNamesTheWholeAllocation) {
  const auto base = world.host.Alloc(10'000);
  const auto inside = Look(base + 100, 50);
  ASSERT_TRUE(inside.ok()) << inside.status().ToString();
  EXPECT_EQ(inside->memory.allocation.base, Pointer(base));
  EXPECT_EQ(inside->memory.allocation.length, 10'000U);
  EXPECT_EQ(inside->memory.address, Pointer(base + 100));
  EXPECT_EQ(inside->memory.device, world.gpus->all()[0].uuid);
  EXPECT_EQ(inside->memory.ordinal, 0);
  EXPECT_EQ(inside->exportable, Exportable::kLegacy);

  const auto again = Look(base + 9'000, 1'000);
  EXPECT_EQ(again->memory.allocation.identity, inside->memory.allocation.identity)
      << "the same allocation, registered twice";
  EXPECT_EQ(again->memory.allocation.base, Pointer(base));
  Free(base);
}

TEST_F(DescribeTest, MemoryAllocatedAgainAtTheSameAddressIsOtherMemory) {
  const auto first = world.host.Alloc(kMiB);
  const uint64_t before = Look(first, kMiB)->memory.allocation.identity;
  EXPECT_EQ(Identity(first + 5, 1).value(), before);
  Free(first);
  EXPECT_FALSE(Identity(first, 1).ok());
  const auto second = world.host.Alloc(kMiB);
  ASSERT_EQ(first, second) << "the driver gives the same address again";
  EXPECT_NE(Look(second, kMiB)->memory.allocation.identity, before);
  EXPECT_NE(Identity(second, kMiB).value(), before);
  Free(second);
}

TEST_F(DescribeTest, APageMappedAgainAtTheSameAddressIsOtherMemory) {
  auto pages = std::make_unique<Pages>(world.host, 1, kDescriptor);
  const auto page = pages->base();
  const uint64_t before = Look(page, 10)->memory.allocation.identity;
  EXPECT_EQ(Identity(page, 10).value(), before);
  pages->Remap(0, kDescriptor);
  EXPECT_NE(Look(page, 10)->memory.allocation.identity, before);
  EXPECT_NE(Identity(page, 10).value(), before);
  pages.reset();
  EXPECT_FALSE(Identity(page, 10).ok());
}

TEST_F(DescribeTest, AnExpandableSegmentIsWalkedPageByPage) {
  Pages pages(world.host, 5, kDescriptor);
  const auto found = Look(pages.At(1) + 10, 2 * kPage);
  ASSERT_TRUE(found.ok()) << found.status().ToString();
  EXPECT_EQ(found->exportable, Exportable::kDescriptors);
  ASSERT_EQ(found->blocks.size(), 3U) << "only the pages that hold the bytes";
  EXPECT_EQ(found->blocks[0].address, Pointer(pages.At(1)));
  EXPECT_EQ(found->memory.allocation.base, Pointer(pages.At(1)));
  EXPECT_EQ(found->memory.allocation.length, 3 * kPage);

  const uint64_t before = found->memory.allocation.identity;
  pages.Remap(3, kDescriptor);
  EXPECT_NE(Look(pages.At(1) + 10, 2 * kPage)->memory.allocation.identity, before)
      << "one page of them is another one now";
}

TEST_F(DescribeTest, SaysWhatCannotBeExportedAndWhy) {
  Pages plain(world.host, 1, 0);
  EXPECT_EQ(Look(plain.base(), 10)->exportable, Exportable::kNo);
  EXPECT_EQ(Look(plain.base(), 10)->why_not, "it has no shareable handle type");

  Pages fabric(world.host, 2, kFabricType);
  EXPECT_EQ(Look(fabric.base(), kPage + 1)->exportable, Exportable::kFabric);
  fabric.Remap(1, kDescriptor);
  EXPECT_EQ(Look(fabric.base(), kPage + 1)->exportable, Exportable::kNo);
  EXPECT_EQ(Look(fabric.base(), kPage + 1)->why_not, "mappings of several handle types");

  drivers::CUdeviceptr pooled = 0;
  ASSERT_EQ(fake_cuda_alloc_pooled(&pooled, 100), 0);
  EXPECT_EQ(Look(pooled, 100)->exportable, Exportable::kNo);
  EXPECT_NE(Look(pooled, 100)->why_not.find("pool"), std::string_view::npos);
  Free(pooled);
}

TEST_F(DescribeTest, RefusesWhatTheDriverContradicts) {
  std::byte host{};
  EXPECT_NE(Refusal(Number(&host), 1).find("no memory there"), std::string::npos);
  std::byte* const pinned = world.host.Pinned(100);
  EXPECT_NE(Refusal(Number(pinned), 100).find("host memory there"), std::string::npos);
  EXPECT_EQ(world.host.cuda->MemFreeHost(pinned), drivers::CUDA_SUCCESS);

  SecondDevice second(world.host);
  const auto other = second.Alloc(100);
  EXPECT_NE(Refusal(other, 100).find("is of device 1"), std::string::npos);
  EXPECT_NE(Refusal(other, 100, 1).find("device 1 is described as one of device 0"), std::string::npos);
  second.Free(other);

  drivers::CUdeviceptr managed = 0;
  ASSERT_EQ(fake_cuda_alloc_managed(&managed, 100), 0);
  EXPECT_NE(Refusal(managed, 100).find("managed memory"), std::string::npos);
  Free(managed);

  const auto base = world.host.Alloc(100);
  EXPECT_NE(Refusal(base + 90, 11).find("beyond the end"), std::string::npos);
  EXPECT_NE(Refusal(base, 0).find("0 bytes"), std::string::npos);
  EXPECT_NE(Refusal(base, UINT64_MAX).find("last address"), std::string::npos);
  Free(base);

  Pages page(world.host, 1, 0);
  EXPECT_NE(Refusal(page.base(), kPage + 1).find("no memory there"), std::string::npos)
      << "the second page is not mapped";
  page.Remap(0, 0, /*access=*/false);
  EXPECT_NE(Refusal(page.base(), 10).find("cuMemSetAccess"), std::string::npos);
}

TEST_F(DescribeTest, RecognisesWhatACallerDoesNotSay) {
  const auto recognise = [&](drivers::CUdeviceptr address, size_t length) {
    const NoContext none(*world.host.cuda);
    return Recognise(*world.gpus, {Pointer(address), length});
  };
  std::array<std::byte, 10> host{};
  EXPECT_EQ(recognise(Number(host.data()), host.size()).value(), HostMemory(host));
  SecondDevice second(world.host);
  const auto base = second.Alloc(100);
  EXPECT_EQ(recognise(base, 100).value(), OfDevice(base, 100, 1));
  second.Free(base);
  drivers::CUdeviceptr managed = 0;
  ASSERT_EQ(fake_cuda_alloc_managed(&managed, 100), 0);
  EXPECT_EQ(recognise(managed, 100).status().code(), Code::kInvalidArgument);
  Free(managed);
}

}  // namespace
}  // namespace weightcast::device
