#include "device/stream_event.h"

#include "unit/device/fake/fake_world.h"

namespace weightcast::device {
namespace {

constexpr size_t kLength = 40'000;

Result<std::shared_ptr<StreamEvent>> RecordPosition(FakeWorld& world, drivers::CUstream stream) {
  const NoContext none(*world.host.cuda);
  return StreamEvent::Record(world.worker, stream);
}

TEST(StreamEventTest, IsDoneWhenTheStreamHasComeThere) {
  FakeWorld world;
  const auto signal = WakeSignal::Create().value();
  world.worker->AddSignal(signal);
  const auto stream = world.host.Stream();
  const auto memory = world.host.Alloc(kLength);
  EXPECT_EQ(world.host.cuda->MemsetD8Async(memory, 1, kLength, stream), drivers::CUDA_SUCCESS);
  {
    const auto event = RecordPosition(world, stream).value();
    world.StepWorker();
    signal->Arm();
    EXPECT_FALSE(event->Done());
    while (fake_cuda_pieces() < kLength / 4096) {
      fake_cuda_step(0);
      world.StepWorker();
      EXPECT_FALSE(event->Done()) << "after piece " << fake_cuda_pieces();
    }
    EXPECT_FALSE(Readable(signal->fd()));
    world.Settle();
    EXPECT_TRUE(event->Done());
    EXPECT_TRUE(Readable(signal->fd()));
    // One that nobody holds any more is looked at no more.
    fake_cuda_hold(0);
    EXPECT_EQ(world.host.cuda->MemsetD8Async(memory, 1, kLength, stream), drivers::CUDA_SUCCESS);
    EXPECT_TRUE(RecordPosition(world, stream).ok());
    world.Settle();
    fake_cuda_release(0);
  }
  world.Settle();
  EXPECT_EQ(fake_cuda_live(0).events, 0U);
  EXPECT_EQ(world.host.cuda->MemFree(memory), drivers::CUDA_SUCCESS);
  EXPECT_EQ(world.host.cuda->StreamDestroy(stream), drivers::CUDA_SUCCESS);
}

TEST(StreamEventTest, OfALostContextIsNeverDone) {
  FakeWorld world;
  world.host.leaves_things = true;
  const auto stream = world.host.Stream();
  const auto memory = world.host.Alloc(kLength);
  EXPECT_EQ(world.host.cuda->MemsetD8Async(memory, 1, kLength, stream), drivers::CUDA_SUCCESS);
  const auto event = RecordPosition(world, stream).value();
  fake_cuda_lose(0, 0, drivers::CUDA_ERROR_LAUNCH_FAILED, 1);
  world.Settle();
  EXPECT_FALSE(event->Done()) << "what a lost stream has done is not known";
  EXPECT_TRUE(world.worker->health()->lost());
  EXPECT_NE(world.worker->health()->failure().message().find("cuEventQuery"), std::string::npos)
      << world.worker->health()->failure().message();
}

TEST(StreamEventTest, ACapturedStreamIsRefused) {
  FakeWorld world;
  const auto captured = world.host.Stream();
  ASSERT_EQ(fake_cuda_capture(captured, 1), 0);
  const auto event = RecordPosition(world, captured);
  EXPECT_EQ(event.status().code(), Code::kInvalidArgument);
  EXPECT_NE(event.status().message().find("CUDA graph"), std::string::npos);
  EXPECT_EQ(fake_cuda_capture(captured, 0), 0) << "the capture ends well";
  EXPECT_EQ(world.host.cuda->StreamDestroy(captured), drivers::CUDA_SUCCESS);
}

}  // namespace
}  // namespace weightcast::device
