// What becomes of everything else when a device's context is lost; copies_test.cc has the copies.
#include <array>
#include <thread>

#include "device/buffer.h"
#include "device/describe.h"
#include "device/error.h"
#include "device/export.h"
#include "device/pinned.h"
#include "unit/device/fake/bytes.h"
#include "unit/device/fake/fake_world.h"

namespace weightcast::device {
namespace {

constexpr auto kEcc = drivers::CUDA_ERROR_ECC_UNCORRECTABLE;

/// The context of device 0 is lost, and the worker knows.
void Lose(FakeWorld& world) {
  world.host.leaves_things = true;
  fake_cuda_lose(0, 0, kEcc, 0);
  CopyQueue queue(world.worker);
  const Copy copy{.to = nullptr, .from = nullptr, .length = 1};
  ASSERT_TRUE(queue.Submit({&copy, 1}).has_value());
  while (!queue.HasFinished()) world.StepWorker();
  EXPECT_FALSE(queue.TakeFinished()->ok);
  ASSERT_TRUE(world.worker->health()->lost());
}

bool HasTheDriversWords(const Status& status) {
  return status.code() == Code::kInternal &&
         status.message().find("uncorrectable ECC error") != std::string::npos;
}

Result<std::vector<Handle>> ExportAll(FakeWorld& world, const DeviceMemory& memory) {
  return Export(world.worker->context(), memory, 0, memory.blocks.size());
}

TEST(LostContextTest, EveryCallSaysSo) {
  FakeWorld world;
  std::vector<std::byte> ring(1 << 16);
  const auto base = world.host.Alloc(kMiB);
  const auto memory = Describe(*world.context(), OfDevice(base, kMiB)).value();
  Lose(world);
  EXPECT_TRUE(HasTheDriversWords(world.worker->health()->failure()));
  EXPECT_TRUE(HasTheDriversWords(Describe(*world.context(), OfDevice(base, kMiB)).status()));
  EXPECT_TRUE(HasTheDriversWords(ExportAll(world, memory).status()));
  EXPECT_TRUE(HasTheDriversWords(Buffer::Allocate(world.context(), 100).status()));
  EXPECT_TRUE(
      HasTheDriversWords(world.OnWorker([&] { return PinnedRange::Pin(world.worker, ring).status(); })));
  EXPECT_TRUE(HasTheDriversWords(world.gpus->Retain(0).status()));
}

TEST(LostContextTest, TheDriversWordsNameTheDevice) {
  FakeWorld world;
  Lose(world);
  const Status refused = Buffer::Allocate(world.context(), 100).status();
  EXPECT_NE(refused.message().find(", device 0)"), std::string::npos) << refused.message();
  const Status outside = DriverStatus(*world.host.cuda, kEcc, "cuInit");
  EXPECT_EQ(outside.message().find(", device "), std::string::npos) << outside.message();
}

TEST(LostContextTest, WhatIsMappedIsLetGoAndNothingIsMappedAnew) {
  FakeWorld world;
  const auto handle = world.host.Create(kPage, kDescriptor);
  const auto at = world.host.Reserve(kPage);
  ASSERT_EQ(world.host.cuda->MemMap(at, kPage, 0, handle, 0), drivers::CUDA_SUCCESS);
  ASSERT_EQ(world.host.Allow(at, kPage), drivers::CUDA_SUCCESS);
  const auto memory = Describe(*world.context(), OfDevice(at, kPage)).value();
  AllocationName name = NameOf(memory);
  name.process = 77;
  const auto map = [&](std::vector<Handle> handles) {
    return world.OnWorker([&]() -> Result<std::shared_ptr<const Mapping>> {
      WC_ASSIGN_OR_RETURN(auto import, world.mappings->Begin(world.worker, name));
      WC_RETURN_IF_ERROR(import->Add(std::move(handles)));
      return import->Finish();
    });
  };
  auto mapping = map(ExportAll(world, memory).value()).value();
  auto late = ExportAll(world, memory).value();
  Lose(world);
  mapping.reset();
  world.Settle();
  EXPECT_EQ(world.mappings->size(), 0U);
  EXPECT_TRUE(HasTheDriversWords(map(std::move(late)).status()));
  EXPECT_EQ(world.mappings->size(), 0U);
}

TEST(LostContextTest, APoolGivesNoBlockAndEndsWell) {
  FakeWorld world;
  {
    PinnedPool pool(world.worker, 4096, 1 << 20);
    EXPECT_EQ(pool.Take(), nullptr);
    world.Settle();
    std::byte* const block = pool.Take();
    ASSERT_NE(block, nullptr);
    Lose(world);
    EXPECT_EQ(pool.Take(), nullptr);
    world.Settle();
    EXPECT_EQ(pool.Take(), nullptr);
    EXPECT_TRUE(pool.refused());
    pool.Give(block);
    EXPECT_EQ(pool.Take(), block) << "what is pinned is memory still";
    pool.Give(block);
  }
  world.Settle();
}

TEST(LostContextTest, TheThreadEndsWithCopiesThatNeverWill) {
  FakeWorld world("", Worker::Mode::kThread);
  world.host.leaves_things = true;
  const Bytes bytes(world.host, 100);
  CopyQueue queue(world.worker);
  const std::array copies{bytes.At(0, 100)};
  ASSERT_TRUE(queue.Submit(copies).has_value());  // Nobody steps the device: it stays under way.
  while (fake_cuda_calls("cuEventRecord") == 0) std::this_thread::yield();
  fake_cuda_lose(0, 0, kEcc, 0);
  while (!queue.HasFinished()) std::this_thread::yield();
  EXPECT_FALSE(queue.TakeFinished()->ok);
}

TEST(LostContextTest, AnotherDeviceOfTheProcessGoesOn) {
  FakeWorld world;
  SecondDevice second(world.host);
  auto other = Worker::Create(world.gpus->Retain(1).value(), Worker::Mode::kCalled).value();
  const auto from = second.Alloc(10'000);
  const auto to = second.Alloc(10'000);
  second.Inside([&] {
    world.host.Fill(from, 0x21, 10'000);
    return true;
  });
  const auto turn = [&] {
    const NoContext none(*world.host.cuda);
    return other->Step();
  };
  Lose(world);
  {
    CopyQueue queue(other);
    const Copy copy{.to = Pointer(to), .from = Pointer(from), .length = 10'000};
    ASSERT_TRUE(queue.Submit({&copy, 1}).has_value());
    while (!queue.HasFinished()) {
      turn();
      fake_cuda_step(0);
    }
    EXPECT_TRUE(queue.TakeFinished()->ok);
    EXPECT_TRUE(second.Inside([&] { return world.host.Holds(to, 0x21, 10'000); }));
    EXPECT_FALSE(other->health()->lost());
  }
  while (turn()) {
  }
  second.Free(from);
  second.Free(to);
  other.reset();
}

}  // namespace
}  // namespace weightcast::device
