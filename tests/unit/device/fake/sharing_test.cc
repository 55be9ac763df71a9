// Describe, Export and Mappings between processes of one fake machine.
#include <fcntl.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "device/describe.h"
#include "device/export.h"
#include "fake_cuda/children.h"
#include "unit/device/fake/fake_world.h"

namespace weightcast::device {
namespace {

using fake_cuda::Child;
using fake_cuda::Folder;
using fake_cuda::Wire;

// --- A small protocol of the test: a name, then its handles

struct NameHeader {
  uint64_t process;
  uint64_t identity;
  DeviceUuid device;
  Exportable exportable;
  uint64_t blocks;
  uint64_t length;  ///< Of each.
};

void SendName(const Wire& wire, const DeviceMemory& memory) {
  const AllocationName name = NameOf(memory);
  wire.Send(NameHeader{.process = name.process,
                       .identity = name.identity,
                       .device = name.device,
                       .exportable = name.exportable,
                       .blocks = name.lengths.size(),
                       .length = name.lengths.front()});
}

AllocationName ReceiveName(const Wire& wire) {
  const auto header = wire.Receive<NameHeader>();
  return {.process = header.process,
          .identity = header.identity,
          .device = header.device,
          .exportable = header.exportable,
          .address = nullptr,
          .lengths = std::vector<uint64_t>(header.blocks, header.length)};
}

void SendHandles(const Wire& wire, const Context& context, const DeviceMemory& memory) {
  for (size_t first = 0; first < memory.blocks.size(); first += kHandlesPerMessage) {
    const size_t count = std::min(memory.blocks.size() - first, kHandlesPerMessage);
    auto handles = Export(context, memory, first, count).value();
    for (const Handle& handle : handles) {
      if (const auto* fd = std::get_if<UniqueFd>(&handle)) {
        EXPECT_NE(fcntl(fd->get(), F_GETFD) & FD_CLOEXEC, 0) << "a program started here would keep it";
        wire.Send(LegacyHandle{}, fd->get());
      } else if (const auto* legacy = std::get_if<LegacyHandle>(&handle)) {
        wire.Send(*legacy);
      } else {
        wire.Send(LegacyHandle{.bytes = std::get<FabricHandle>(handle).bytes});
      }
    }
  }
}

std::vector<Handle> ReceiveHandles(const Wire& wire, const AllocationName& name) {
  std::vector<Handle> handles;
  for (size_t i = 0; i < name.lengths.size(); ++i) {
    int fd = -1;
    const auto bytes = wire.Receive<LegacyHandle>(&fd).bytes;
    if (name.exportable == Exportable::kLegacy) handles.emplace_back(LegacyHandle{bytes});
    if (name.exportable == Exportable::kFabric) handles.emplace_back(FabricHandle{bytes});
    if (name.exportable == Exportable::kDescriptors) handles.emplace_back(UniqueFd(fd));
  }
  return handles;
}

Result<std::shared_ptr<const Mapping>> Map(FakeWorld& world, const AllocationName& name,
                                           std::vector<Handle> handles) {
  return world.OnWorker([&]() -> Result<std::shared_ptr<const Mapping>> {
    WC_ASSIGN_OR_RETURN(auto import, world.mappings->Begin(world.worker, name));
    WC_RETURN_IF_ERROR(import->Add(std::move(handles)));
    return import->Finish();
  });
}

/// Pulls `length` bytes from `offset` of the mapping into memory of this process, and compares.
void PullAndCompare(FakeWorld& world, const Mapping& source, size_t offset, size_t length,
                    unsigned char value) {
  const auto target = world.host.Alloc(length);
  {
    CopyQueue queue(world.worker);
    const Copy copy{.to = Pointer(target), .from = source.address + offset, .length = length};
    ASSERT_TRUE(queue.Submit({&copy, 1}).has_value());
    EXPECT_TRUE(fake_cuda::Eventually([&] { return queue.HasFinished(); }));
    EXPECT_TRUE(queue.TakeFinished()->ok);
    EXPECT_TRUE(world.host.Holds(target, value, length));
  }
  // The queue's own objects go on the worker.
  EXPECT_TRUE(fake_cuda::Eventually(
      [&] { return world.OnWorker([] { return true; }) && fake_cuda_live(0).streams == 0; }));
  EXPECT_EQ(world.host.cuda->MemFree(target), drivers::CUDA_SUCCESS);
}

/// Of a memory: its first bytes, over the end of a page, and its last.
constexpr size_t kHead = 3 * kMiB;
constexpr size_t kTail = kMiB;

struct Kind {
  const char* name;
  int types;  ///< -1: cuMemAlloc.
  Exportable exportable;
  size_t pages;
};
void PrintTo(const Kind& kind, std::ostream* out) { *out << kind.name; }

class SharedOnFake : public ::testing::TestWithParam<Kind> {};

TEST_P(SharedOnFake, AnotherProcessPullsTheBytes) {
  const Kind kind = GetParam();
  const Folder folder;
  const std::string config = folder.Config("imex=1,delay_us=20");
  Child owner([&](const Wire& wire) {
    FakeWorld world(config, Worker::Mode::kThread);
    std::unique_ptr<Pages> pages;
    drivers::CUdeviceptr base = 0;
    if (kind.types < 0) {
      base = world.host.Alloc(kind.pages * kPage);
    } else {
      pages = std::make_unique<Pages>(world.host, kind.pages, kind.types);
      base = pages->base();
    }
    world.host.Fill(base, 0x42, std::min(kind.pages * kPage, kHead));
    world.host.Fill(base + kind.pages * kPage - kTail, 0x43, kTail);
    const auto memory = Describe(world.worker->context(), OfDevice(base, kind.pages * kPage)).value();
    EXPECT_EQ(memory.exportable, kind.exportable);
    EXPECT_EQ(memory.blocks.size(), kind.types < 0 ? 1 : kind.pages);
    SendName(wire, memory);
    SendHandles(wire, world.worker->context(), memory);
    wire.Receive<char>();
    if (kind.types < 0) {
      EXPECT_EQ(world.host.cuda->MemFree(base), drivers::CUDA_SUCCESS);
    }
  });
  {
    FakeWorld world(config, Worker::Mode::kThread);
    const AllocationName name = ReceiveName(owner.wire());
    EXPECT_EQ(name.exportable, kind.exportable);
    auto mapping = Map(world, name, ReceiveHandles(owner.wire(), name)).value();
    EXPECT_EQ(mapping->length, kind.pages * kPage);
    PullAndCompare(world, *mapping, 0, std::min(kind.pages * kPage - kTail, kHead), 0x42);
    PullAndCompare(world, *mapping, kind.pages * kPage - kTail, kTail, 0x43);
    EXPECT_EQ(world.OnWorker([&] { return world.mappings->size(); }), 1U);
    mapping.reset();
    EXPECT_EQ(world.OnWorker([&] { return world.mappings->size(); }), 0U);
    EXPECT_EQ(fake_cuda_live(0).mappings, 0U);
    EXPECT_EQ(fake_cuda_live(-1).exported, 0U) << "a descriptor is left";
  }
  owner.wire().Send('x');
}

INSTANTIATE_TEST_SUITE_P(Kinds, SharedOnFake,
                         ::testing::Values(Kind{"legacy", -1, Exportable::kLegacy, 2},
                                           Kind{"page", kDescriptor, Exportable::kDescriptors, 1},
                                           Kind{"pages", kDescriptor, Exportable::kDescriptors, 70},
                                           Kind{"fabric", kFabricType, Exportable::kFabric, 3}),
                         [](const auto& each) { return each.param.name; });

/// An allocation of cuMemAlloc in another process, for as long as it runs.
struct LegacyOwner {
  LegacyOwner(const Folder& folder, size_t length)
      : child([config = folder.Config(), length](const Wire& wire) {
          FakeWorld world(config, Worker::Mode::kThread);
          const auto base = world.host.Alloc(length);
          const auto memory = Describe(world.worker->context(), OfDevice(base, length)).value();
          SendName(wire, memory);
          SendHandles(wire, world.worker->context(), memory);
          wire.Receive<char>();
          EXPECT_EQ(world.host.cuda->MemFree(base), drivers::CUDA_SUCCESS);
        }) {}
  /// It frees the memory: nobody may have it open.
  void End() { child.wire().Send('x'); }
  Child child;
};

// Two registrations of one allocation come as two names; the fake ends a program that closes a legacy handle
// once too often or too seldom.
TEST(SharedOnFakeOnce, AnAllocationThatIsNamedTwiceIsOpenedOnce) {
  const Folder folder;
  LegacyOwner owner(folder, kMiB);
  {
    FakeWorld world(folder.Config(), Worker::Mode::kThread);
    const AllocationName name = ReceiveName(owner.child.wire());
    const auto handles = ReceiveHandles(owner.child.wire(), name);
    const auto legacy = std::get<LegacyHandle>(handles.front());
    const auto again = [&] {
      std::vector<Handle> copy;
      copy.emplace_back(legacy);
      return Map(world, name, std::move(copy)).value();
    };
    auto first = again();
    auto second = again();
    EXPECT_EQ(first, second);
    EXPECT_EQ(fake_cuda_live(0).mappings, 1U);
    first.reset();
    EXPECT_EQ(world.OnWorker([&] { return world.mappings->size(); }), 1U);
    EXPECT_EQ(fake_cuda_live(0).mappings, 1U);
    second.reset();
    EXPECT_EQ(world.OnWorker([&] { return world.mappings->size(); }), 0U);
    EXPECT_EQ(fake_cuda_live(0).mappings, 0U);
  }
  owner.End();
}

// A copy beyond the end of an allocation would cost this process its context.
TEST(SharedOnFakeOnce, AnAllocationThatIsShorterThanItsNameIsRefused) {
  const Folder folder;
  LegacyOwner owner(folder, kMiB);
  {
    FakeWorld world(folder.Config(), Worker::Mode::kThread);
    AllocationName name = ReceiveName(owner.child.wire());
    name.lengths.front() += 1;
    const auto mapped = Map(world, name, ReceiveHandles(owner.child.wire(), name));
    EXPECT_FALSE(mapped.ok());
    EXPECT_EQ(mapped.status().code(), Code::kProtocol) << mapped.status().ToString();
    EXPECT_EQ(world.OnWorker([&] { return world.mappings->size(); }), 0U);
    EXPECT_EQ(fake_cuda_live(0).mappings, 0U);
  }
  owner.End();
}

// A peer that sends something else than a handle is wrong; this process's device is not.
TEST(SharedOnFakeOnce, AForeignDescriptorCostsTheImportOnly) {
  FakeWorld world;
  const AllocationName name{.process = 77,
                            .identity = 1,
                            .device = world.gpus->all()[0].uuid,
                            .exportable = Exportable::kDescriptors,
                            .address = nullptr,
                            .lengths = {kPage}};
  std::vector<Handle> handles;
  handles.emplace_back(UniqueFd(open("/dev/null", O_RDONLY | O_CLOEXEC)));
  const auto mapped = Map(world, name, std::move(handles));
  ASSERT_FALSE(mapped.ok());
  EXPECT_FALSE(world.worker->health()->lost()) << mapped.status().ToString();
  EXPECT_EQ(mapped.status().code(), Code::kProtocol);
}

TEST(SharedOnFakeOnce, HandlesOfTheDeadCostTheImportOnly) {
  const Folder folder;
  Child owner([&](const Wire& wire) {
    FakeWorld world(folder.Config(), Worker::Mode::kThread);
    const auto base = world.host.Alloc(kMiB);
    const auto memory = Describe(world.worker->context(), OfDevice(base, kMiB)).value();
    SendName(wire, memory);
    SendHandles(wire, world.worker->context(), memory);
    wire.Receive<char>();
  });
  FakeWorld world(folder.Config(), Worker::Mode::kThread);
  const AllocationName name = ReceiveName(owner.wire());
  auto handles = ReceiveHandles(owner.wire(), name);
  owner.Kill();
  ASSERT_TRUE(fake_cuda::Eventually([] { return fake_cuda_live(-1).processes == 1; }));
  EXPECT_FALSE(Map(world, name, std::move(handles)).ok());
  EXPECT_FALSE(world.worker->health()->lost());
}

// What is mapped stays, whatever becomes of its owner.
TEST(SharedOnFakeOnce, TheOwnersDeathEndsNoPull) {
  for (const int types : {-1, kDescriptor}) {
    const Folder folder;
    const std::string config = folder.Config("after_death_ms=0");
    Child owner([&](const Wire& wire) {
      FakeWorld world(config, Worker::Mode::kThread);
      std::unique_ptr<Pages> pages;
      if (types >= 0) pages = std::make_unique<Pages>(world.host, 1, types);
      const auto base = types < 0 ? world.host.Alloc(kPage) : pages->base();
      world.host.Fill(base, 0x42, kPage);
      const auto memory = Describe(world.worker->context(), OfDevice(base, kPage)).value();
      SendName(wire, memory);
      SendHandles(wire, world.worker->context(), memory);
      wire.Receive<char>();
    });
    FakeWorld world(config, Worker::Mode::kThread);
    const AllocationName name = ReceiveName(owner.wire());
    auto mapping = Map(world, name, ReceiveHandles(owner.wire(), name)).value();
    owner.Kill();
    ASSERT_TRUE(fake_cuda::Eventually([] { return fake_cuda_live(-1).processes == 1; }));
    PullAndCompare(world, *mapping, 0, kPage, 0x42);
    mapping.reset();
    EXPECT_EQ(world.OnWorker([&] { return world.mappings->size(); }), 0U);
  }
}

}  // namespace
}  // namespace weightcast::device
