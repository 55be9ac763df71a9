#include "device/stream_event.h"

#include "unit/device/world.h"

namespace weightcast::device {
namespace {

TEST(StreamEventTest, IsDoneWhenTheStreamHasComeThere) {
  World world;
  const auto signal = WakeSignal::Create().value();
  world.worker->AddSignal(signal);
  std::byte* const bytes = world.cuda->Device(2);
  const auto stream = world.OnWorker([&] {
    CUstream made = nullptr;
    world.cuda->StreamCreateWithPriority(&made, 0, 0);
    world.cuda->MemcpyAsync(reinterpret_cast<CUdeviceptr>(bytes), reinterpret_cast<CUdeviceptr>(bytes + 1), 1,
                            made);
    return made;
  });
  auto event = StreamEvent::Record(world.worker, stream).value();
  world.worker->Step();
  signal->Arm();
  EXPECT_FALSE(event->Done());
  world.cuda->Step(0);
  world.worker->Step();
  EXPECT_FALSE(event->Done());
  EXPECT_FALSE(Readable(signal->fd()));
  world.Settle();
  EXPECT_TRUE(event->Done());
  EXPECT_TRUE(Readable(signal->fd()));

  const auto dropped = StreamEvent::Record(world.worker, stream);
  auto waits = StreamEvent::Record(world.worker, stream).value();
  world.cuda->Lose(CUDA_ERROR_LAUNCH_FAILED);
  for (int turn = 0; turn < 3; ++turn) world.worker->Step();
  EXPECT_FALSE(waits->Done()) << "what a lost stream has done is not known";
  EXPECT_TRUE(world.worker->health()->lost());
  EXPECT_NE(world.worker->health()->failure().message().find("cuEventQuery"), std::string::npos);
  world.OnWorker([&] { return world.cuda->StreamDestroy(stream); });
  world.cuda->FreeDevice(bytes);
}

TEST(StreamEventTest, ACapturedStreamIsRefused) {
  World world;
  SimpleCuda::Stream captured;
  captured.captured = true;
  const auto event = StreamEvent::Record(world.worker, &captured);
  EXPECT_EQ(event.status().code(), Code::kInvalidArgument);
  EXPECT_NE(event.status().message().find("CUDA graph"), std::string::npos);
}

}  // namespace
}  // namespace weightcast::device
