#include "device/gpus.h"

#include <sys/wait.h>
#include <unistd.h>

#include "device/buffer.h"
#include "device/describe.h"
#include "unit/device/world.h"

namespace weightcast::device {
namespace {

TEST(GpusTest, NoContextIsMadeWhereTheUserHasNone) {
  const auto cuda = std::make_shared<SimpleCuda>();
  cuda->active = false;
  const auto gpus = Gpus::Create(cuda).value();
  const auto none = gpus->Retain(0);
  EXPECT_EQ(none.status().code(), Code::kUnavailable);
  EXPECT_NE(none.status().message().find("use it first"), std::string::npos);
  EXPECT_EQ(cuda->contexts(), 0);
  EXPECT_EQ(gpus->Retain(2).status().code(), Code::kInvalidArgument);
  EXPECT_EQ(gpus->Retain(-1).status().code(), Code::kInvalidArgument);
}

TEST(GpusTest, DevicesAreFoundByUuid) {
  const World world;
  EXPECT_EQ(world.gpus->OrdinalOf(world.gpus->all()[1].uuid), 1);
  EXPECT_EQ(world.gpus->OrdinalOf({}), std::nullopt);
}

/// In a child no call may be made, not even to free what was made before.
TEST(ForkTest, OnlyTheParentGoesOn) {
  World world(Worker::Mode::kThread);
  auto buffer = Buffer::Allocate(world.worker->health()->shared_context(), 100).value();
  const int calls = world.cuda->calls();
  const pid_t child = fork();
  if (child == 0) {
    const bool refused =
        world.gpus->Retain(0).status().code() == Code::kInternal &&
        Describe(world.worker->context(), buffer->memory()).status().code() == Code::kInternal;
    buffer.reset();
    world.mappings.reset();
    world.worker.reset();
    world.gpus.reset();
    _exit(refused && world.cuda->calls() == calls ? 0 : 1);
  }
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
}

}  // namespace
}  // namespace weightcast::device
