#include "device/describe.h"

#include "unit/device/world.h"

namespace weightcast::device {
namespace {

constexpr size_t kPage = SimpleCuda::kPage;

class DescribeTest : public ::testing::Test {
 protected:
  [[nodiscard]] Result<DeviceMemory> Look(std::byte* address, size_t length, int device = 0) const {
    return Describe(*context, OfDevice(address, length, device));
  }
  [[nodiscard]] std::string Refusal(std::byte* address, size_t length, int device = 0) const {
    const auto found = Look(address, length, device);
    EXPECT_EQ(found.status().code(), Code::kInvalidArgument);
    return found.status().message();
  }
  World world;
  std::shared_ptr<const Context> context = world.gpus->Retain(0).value();

  void TearDown() override { context.reset(); }
};

TEST_F(DescribeTest, AnAddressInsideAnAllocationNamesTheWholeAllocation) {
  std::byte* const base = world.cuda->Device(10'000);
  const auto inside = Look(base + 100, 50);
  ASSERT_TRUE(inside.ok()) << inside.status().ToString();
  EXPECT_EQ(inside->memory.allocation.base, base);
  EXPECT_EQ(inside->memory.allocation.length, 10'000U);
  EXPECT_EQ(inside->memory.address, base + 100);
  EXPECT_EQ(inside->memory.device, world.gpus->all()[0].uuid);
  EXPECT_EQ(inside->memory.ordinal, 0);
  EXPECT_EQ(inside->exportable, Exportable::kLegacy);

  const auto again = Look(base + 9'000, 1'000);
  EXPECT_EQ(again->memory.allocation.identity, inside->memory.allocation.identity)
      << "the same allocation, registered twice";
  world.cuda->FreeDevice(base);
}

TEST_F(DescribeTest, MemoryAllocatedAgainAtTheSameAddressIsOtherMemory) {
  std::byte* const page = world.cuda->Pages(1, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
  const uint64_t before = Look(page, 10)->memory.allocation.identity;
  EXPECT_EQ(IdentityOf(*context, {page, 10}).value(), before);
  world.cuda->RemapPage(page);
  EXPECT_NE(Look(page, 10)->memory.allocation.identity, before);
  EXPECT_NE(IdentityOf(*context, {page, 10}).value(), before);
  world.cuda->FreePages(page, 1);
  EXPECT_FALSE(IdentityOf(*context, {page, 10}).ok());
}

TEST_F(DescribeTest, AnExpandableSegmentIsWalkedPageByPage) {
  std::byte* const base = world.cuda->Pages(5, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
  const auto found = Look(base + kPage + 10, 2 * kPage);
  ASSERT_TRUE(found.ok()) << found.status().ToString();
  EXPECT_EQ(found->exportable, Exportable::kDescriptors);
  ASSERT_EQ(found->blocks.size(), 3U) << "only the pages that hold the bytes";
  EXPECT_EQ(found->blocks[0].address, base + kPage);
  EXPECT_EQ(found->memory.allocation.base, base + kPage);
  EXPECT_EQ(found->memory.allocation.length, 3 * kPage);

  const uint64_t before = found->memory.allocation.identity;
  world.cuda->RemapPage(base + 3 * kPage);
  EXPECT_NE(Look(base + kPage + 10, 2 * kPage)->memory.allocation.identity, before)
      << "one page of them is another one now";
  world.cuda->FreePages(base, 5);
}

TEST_F(DescribeTest, SaysWhatCannotBeExportedAndWhy) {
  std::byte* const plain = world.cuda->Pages(1, 0);
  EXPECT_EQ(Look(plain, 10)->exportable, Exportable::kNo);
  EXPECT_EQ(Look(plain, 10)->why_not, "no shareable handle type");
  world.cuda->FreePages(plain, 1);

  std::byte* const fabric = world.cuda->Pages(2, CU_MEM_HANDLE_TYPE_FABRIC);
  EXPECT_EQ(Look(fabric, kPage + 1)->exportable, Exportable::kFabric);
  world.cuda->RangeOf(fabric + kPage).handle_types = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  EXPECT_EQ(Look(fabric, kPage + 1)->exportable, Exportable::kNo) << "pages of two kinds";
  world.cuda->FreePages(fabric, 2);

  std::byte* const pooled = world.cuda->Device(100);
  world.cuda->RangeOf(pooled).legacy = false;
  world.cuda->RangeOf(pooled).pool = pooled;
  EXPECT_EQ(Look(pooled, 100)->exportable, Exportable::kNo);
  EXPECT_NE(Look(pooled, 100)->why_not.find("pool"), std::string_view::npos);
  world.cuda->FreeDevice(pooled);
}

TEST_F(DescribeTest, RefusesWhatTheDriverContradicts) {
  std::byte host{};
  EXPECT_NE(Refusal(&host, 1).find("no memory there"), std::string::npos);
  std::byte* const other = world.cuda->Device(100, 1);
  EXPECT_NE(Refusal(other, 100).find("is of device 1"), std::string::npos);
  EXPECT_NE(Refusal(other, 100, 1).find("device 1 is described as one of device 0"), std::string::npos);
  world.cuda->RangeOf(other).managed = true;
  EXPECT_NE(Refusal(other, 100).find("managed memory"), std::string::npos);
  world.cuda->RangeOf(other) = {.length = 100, .id = 5, .type = CU_MEMORYTYPE_HOST};
  EXPECT_NE(Refusal(other, 100).find("host memory there"), std::string::npos);
  world.cuda->FreeDevice(other);

  std::byte* const base = world.cuda->Device(100);
  EXPECT_NE(Refusal(base + 90, 11).find("beyond the end"), std::string::npos);
  EXPECT_NE(Refusal(base, 0).find("0 bytes"), std::string::npos);
  EXPECT_NE(Refusal(base, UINT64_MAX).find("last address"), std::string::npos);
  world.cuda->FreeDevice(base);

  std::byte* const page = world.cuda->Pages(1, 0);
  world.cuda->RangeOf(page).accessible = false;
  EXPECT_NE(Refusal(page, 10).find("cuMemSetAccess"), std::string::npos);
  EXPECT_FALSE(Look(page, kPage + 1).ok()) << "the second page is not mapped";
  world.cuda->FreePages(page, 1);
}

TEST_F(DescribeTest, RecognisesWhatACallerDoesNotSay) {
  std::array<std::byte, 10> host{};
  EXPECT_EQ(Recognise(*world.gpus, host).value(), HostMemory(host));
  std::byte* const base = world.cuda->Device(100, 1);
  EXPECT_EQ(Recognise(*world.gpus, {base, 100}).value(), OfDevice(base, 100, 1));
  world.cuda->RangeOf(base).managed = true;
  EXPECT_EQ(Recognise(*world.gpus, {base, 100}).status().code(), Code::kInvalidArgument);
  world.cuda->FreeDevice(base);
}

}  // namespace
}  // namespace weightcast::device
