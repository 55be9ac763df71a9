#include "device/worker.h"

#include <algorithm>
#include <array>
#include <filesystem>
#include <fstream>
#include <future>
#include <random>
#include <string>
#include <thread>

#include "unit/device/fake/bytes.h"
#include "unit/device/fake/fake_world.h"

namespace weightcast::device {
namespace {

TEST(WorkerTest, TasksRunInOrderInsideTheContext) {
  FakeWorld world("", Worker::Mode::kThread);
  std::vector<int> ran;
  std::promise<void> done;
  for (int i = 0; i < 100; ++i) {
    world.worker->Run([&, i] {
      int least = 0;
      int greatest = 0;
      world.host.cuda->CtxGetStreamPriorityRange(&least,
                                                 &greatest);  // Without a context it ends the program.
      ran.push_back(i);
      if (i == 99) done.set_value();
    });
  }
  done.get_future().wait();
  ASSERT_EQ(ran.size(), 100U);
  EXPECT_TRUE(std::is_sorted(ran.begin(), ran.end()));
}

/// Whether the thread of that name sleeps in the kernel.
bool Asleep(const std::string& name) {
  for (const auto& task : std::filesystem::directory_iterator("/proc/self/task")) {
    std::ifstream file(task.path() / "stat");
    const std::string stat((std::istreambuf_iterator<char>(file)), {});
    if (stat.find("(" + name + ") S") != std::string::npos) return true;
  }
  return false;
}

TEST(WorkerTest, WhatIsLeftForASleepingWorkerWakesIt) {
  FakeWorld world("", Worker::Mode::kThread);
  for (int i = 0; i < 20; ++i) {
    while (!Asleep("wc-device")) std::this_thread::yield();
    std::promise<void> done;
    world.worker->Run([&] { done.set_value(); });
    done.get_future().wait();
  }
}

// It ends between two looks of a thread that is about to sleep, some of the times.
TEST(WorkerTest, OneThatIsEndedAsItFallsAsleepEnds) {
  FakeWorld world("", Worker::Mode::kCalled);
  const auto context = world.gpus->Retain(0);
  ASSERT_TRUE(context.ok()) << context.status().ToString();
  std::mt19937 random(1);
  for (int i = 0; i < 3000; ++i) {
    auto worker = Worker::Create(*context, Worker::Mode::kThread);
    ASSERT_TRUE(worker.ok()) << worker.status().ToString();
    std::promise<TimePoint> began;
    (*worker)->Run([&] { began.set_value(Clock::now()); });
    // It spins for 200 us after its last task.
    const TimePoint end = began.get_future().get() + std::chrono::nanoseconds(195'000 + random() % 10'000);
    while (Clock::now() < end) {
    }
    worker->reset();
  }
}

TEST(WorkerTest, TasksThatAreLeftRunBeforeItEnds) {
  int ran = 0;
  {
    FakeWorld world("", Worker::Mode::kThread);
    for (int i = 0; i < 1000; ++i) world.worker->Run([&] { ++ran; });
  }
  EXPECT_EQ(ran, 1000);
}

/// A task may hold the last handle: the thread cannot wait for itself.
TEST(WorkerTest, MayGoOnItsOwnThread) {
  Host host;
  auto second = std::make_unique<SecondDevice>(host);
  {
    const auto gpus = Gpus::Create(host.cuda).value();
    std::promise<void> done;
    auto worker = Worker::Create(gpus->Retain(1).value()).value();
    std::promise<void> let_go;
    std::shared_ptr<Worker> last = worker;
    worker->Run([&let_go, &done, last]() mutable {
      let_go.get_future().wait();
      last->Run([&done] { done.set_value(); });
      last.reset();
    });
    last.reset();
    worker.reset();
    let_go.set_value();
    done.get_future().wait();
  }
  second.reset();  // What holds the context now is the worker.
  while (fake_cuda_live(0).contexts > 1) std::this_thread::yield();
}

TEST(WorkerTest, RingsWhoIsArmedWhenSomethingIsOver) {
  FakeWorld world;
  const auto signal = WakeSignal::Create().value();
  world.worker->AddSignal(signal);
  {
    const Bytes bytes(world.host, 1);
    CopyQueue queue(world.worker);
    const std::array copies{bytes.At(0, 1)};
    queue.Submit(copies);
    world.Settle();
    EXPECT_FALSE(Readable(signal->fd())) << "nobody sleeps";
    EXPECT_TRUE(queue.TakeFinished());

    queue.Submit(copies);
    signal->Arm();
    EXPECT_FALSE(queue.HasFinished());
    world.Settle();
    EXPECT_TRUE(Readable(signal->fd()));
    signal->Disarm();
    EXPECT_FALSE(Readable(signal->fd()));
    EXPECT_TRUE(queue.TakeFinished());
    world.worker->RemoveSignal(signal);
    signal->Arm();
    queue.Submit(copies);
    world.Settle();
    EXPECT_FALSE(Readable(signal->fd()));
  }
  world.Settle();
}

}  // namespace
}  // namespace weightcast::device
