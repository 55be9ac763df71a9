#include "device/gpus.h"

#include "child_process.h"
#include "device/buffer.h"
#include "device/describe.h"
#include "unit/device/fake/fake_world.h"

namespace weightcast::device {
namespace {

TEST(GpusTest, NoContextIsMadeWhereTheUserHasNone) {
  Host host;
  const auto gpus = Gpus::Create(host.cuda).value();
  const auto none = gpus->Retain(1);
  EXPECT_EQ(none.status().code(), Code::kUnavailable);
  EXPECT_NE(none.status().message().find("use it first"), std::string::npos);
  EXPECT_EQ(fake_cuda_live(0).contexts, 1U) << "the user's, of device 0";
  EXPECT_EQ(gpus->Retain(2).status().code(), Code::kInvalidArgument);
  EXPECT_EQ(gpus->Retain(-1).status().code(), Code::kInvalidArgument);
}

TEST(GpusTest, DevicesAreFoundByUuid) {
  const FakeWorld world;
  EXPECT_EQ(world.gpus->OrdinalOf(world.gpus->all()[1].uuid), 1);
  EXPECT_EQ(world.gpus->OrdinalOf({}), std::nullopt);
  EXPECT_EQ(world.gpus->all()[1].name, "Fake GPU 1");
}

/// In a child no call may be made, not even to free what was made before: the fake ends a child that does.
TEST(ForkTest, OnlyTheParentGoesOn) {
#ifdef __SANITIZE_THREAD__
  GTEST_SKIP()
      << "in a child clang's TSan knows none of the parent's threads, and ends where one is let go of";
#endif
  FakeWorld world("", Worker::Mode::kThread);
  auto buffer = Buffer::Allocate(world.context(), 100).value();
  test::Process child = test::Process::Fork([&] {
    const bool refused =
        world.gpus->Retain(0).status().code() == Code::kInternal &&
        Describe(world.worker->context(), buffer->memory()).status().code() == Code::kInternal;
    buffer.reset();
    world.mappings.reset();
    world.worker.reset();
    world.gpus.reset();
    return refused ? 0 : 1;
  });
  EXPECT_EQ(child.Wait(), 0);
}

}  // namespace
}  // namespace weightcast::device
