#include "endpoint/transfers/progress.h"

#include <gtest/gtest.h>
#include <sys/eventfd.h>
#include <sys/resource.h>

#include <deque>
#include <thread>
#include <vector>

#include "base/fd.h"
#include "endpoint/transfers/spin.h"
#include "endpoint/transfers/timers.h"
#include "unit/endpoint/party.h"

namespace weightcast::endpoint {
namespace {

TEST(Flag, SleepersWakeAndDeadlinesPass) {
  Flag flag;
  EXPECT_FALSE(flag.SleepUntil(1, Clock::now() + FromSeconds(0.01)));
  std::thread other([&] { flag.Set(2); });
  EXPECT_TRUE(flag.SleepUntil(1, kNever));
  other.join();
  EXPECT_EQ(flag.value(), 2U);
}

TEST(TaskQueue, KeepsTheOrderOfEachProducer) {
  TaskQueue queue;
  constexpr int kProducers = 4;
  constexpr int kTasks = 5000;
  std::vector<int> last(kProducers, -1);
  std::vector<std::thread> producers;
  for (int p = 0; p < kProducers; ++p) {
    producers.emplace_back([&, p] {
      for (int i = 0; i < kTasks; ++i) {
        queue.Push(MakeTask([&last, p, i] {
          EXPECT_EQ(last[p], i - 1);
          last[p] = i;
        }));
      }
    });
  }
  size_t ran = 0;
  while (ran < kProducers * kTasks) ran += queue.RunAll();
  for (auto& producer : producers) producer.join();
  EXPECT_TRUE(queue.empty());
  EXPECT_TRUE(queue.Push(MakeTask([] {}))) << "the first one has to be announced";
  EXPECT_FALSE(queue.Push(MakeTask([] {})));
  EXPECT_EQ(queue.RunAll(), 2U);
  queue.Push(MakeTask([] { FAIL() << "what is left is dropped"; }));
}

TEST(Timers, FireInOrderAndCanBeCancelled) {
  Timers timers;
  const TimePoint now = Clock::now();
  std::vector<int> fired;
  TimerId second = timers.Add(now + FromSeconds(2), [&] { fired.push_back(2); });
  timers.Add(now + FromSeconds(1), [&] {
    fired.push_back(1);
    timers.Cancel(second);
    timers.Add(now, [&] { fired.push_back(4); });
  });
  timers.Add(now + FromSeconds(3), [&] { fired.push_back(3); });
  EXPECT_EQ(*timers.next(), now + FromSeconds(1));
  EXPECT_FALSE(timers.RunDue(now));
  EXPECT_TRUE(timers.RunDue(now + FromSeconds(10)));
  EXPECT_EQ(fired, (std::vector<int>{1, 3}));
  EXPECT_TRUE(timers.RunDue(now + FromSeconds(10)));
  EXPECT_EQ(fired, (std::vector<int>{1, 3, 4}));
  EXPECT_FALSE(timers.next().has_value());
  EXPECT_LT(In(Duration::max()), TimePoint::max());
}

/// Work that another thread hands in through a descriptor, as a transport's peer does. Checks that
/// one thread at a time drives it, and that nobody sleeps on work.
class Mill final : public Work {
 public:
  Mill() : fd_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
    auto created = Progress::Create(*this);
    EXPECT_TRUE(created.ok());
    progress = std::move(created).value();
    EXPECT_TRUE(progress->poller().Add(fd_.get(), EPOLLIN, Progress::kFirstKey).ok());
    EXPECT_TRUE(progress->Start(nullptr).ok());
  }
  Mill(const Mill&) = delete;
  Mill& operator=(const Mill&) = delete;
  ~Mill() override { progress->Stop(); }

  /// Any thread: sets the flag, soon.
  void Grind(std::shared_ptr<Flag> grain) {
    {
      const std::lock_guard lock(mutex_);
      grains_.push_back(std::move(grain));
    }
    if (!armed_.load()) return;
    const uint64_t one = 1;
    ASSERT_EQ(write(fd_.get(), &one, sizeof one), static_cast<ssize_t>(sizeof one));
  }

  bool Step(bool) override {
    EXPECT_FALSE(stepping_.exchange(true)) << "two drive at once";
    std::deque<std::shared_ptr<Flag>> grains;
    {
      const std::lock_guard lock(mutex_);
      grains.swap(grains_);
    }
    for (const auto& grain : grains) grain->Set(1);
    ++steps;
    stepping_ = false;
    return !grains.empty();
  }
  bool Arm() override {
    ++arms;
    armed_.store(true);
    const std::lock_guard lock(mutex_);
    return grains_.empty();
  }
  void Disarm() override {
    armed_.store(false);
    uint64_t count = 0;
    [[maybe_unused]] const ssize_t ignored = read(fd_.get(), &count, sizeof count);
  }
  [[nodiscard]] bool ArmingIsCostly() const override { return true; }
  void Mask(bool on) override {
    EXPECT_TRUE(progress->poller().Modify(fd_.get(), on ? 0U : uint32_t{EPOLLIN}, Progress::kFirstKey).ok());
  }
  [[nodiscard]] std::optional<TimePoint> NextDeadline() const override { return std::nullopt; }

  std::unique_ptr<Progress> progress;
  std::atomic<uint64_t> steps = 0;
  std::atomic<uint64_t> arms = 0;

 private:
  const UniqueFd fd_;
  std::mutex mutex_;
  std::deque<std::shared_ptr<Flag>> grains_;
  std::atomic<bool> armed_{false};
  std::atomic<bool> stepping_{false};
};

TEST(Progress, NothingIsLostBetweenDrivers) {
  Mill mill;
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < 3000; ++i) {
        const auto flag = std::make_shared<Flag>();
        switch ((t + i) % 3) {
          case 0:  // Work that comes from outside.
            mill.Grind(flag);
            break;
          case 1:  // Work that is handed in.
            mill.progress->Submit(MakeTask([flag] { flag->Set(1); }), i % 2 == 0);
            if (i % 4 == 1) mill.progress->WatchAgain();
            break;
          default:
            mill.progress->Call([flag] { flag->Set(1); });
            EXPECT_EQ(flag->value(), 1U);
        }
        // Half of them wait by driving, half only sleep: somebody else must drive.
        if (i % 2 == 0) {
          EXPECT_TRUE(mill.progress->WaitFor(*flag, 1, Soon()));
        } else {
          EXPECT_TRUE(flag->SleepUntil(1, Soon())) << "lost";
        }
      }
    });
  }
  for (auto& thread : threads) thread.join();
}

TEST(Progress, CallbacksComeInOrderOnTheThreadWithoutProgress) {
  Mill mill;
  std::vector<int> order;
  std::set<std::thread::id> ids;
  const auto done = std::make_shared<Flag>();
  for (int i = 0; i < 1000; ++i) {
    mill.progress->Call([&, i] {
      mill.progress->Later([&, i, done] {
        order.push_back(i);
        ids.insert(std::this_thread::get_id());
        mill.progress->Call([] {});  // Progress is free.
        if (i == 999) done->Set(1);
      });
    });
  }
  ASSERT_TRUE(done->SleepUntil(1, Soon()));
  EXPECT_TRUE(std::is_sorted(order.begin(), order.end()));
  EXPECT_EQ(ids.size(), 1U);
  EXPECT_FALSE(ids.contains(std::this_thread::get_id()));
}

TEST(Progress, WaitersDriveWhileACallbackHoldsUpTheThread) {
  Mill mill;
  const auto release = std::make_shared<Flag>();
  const auto entered = std::make_shared<Flag>();
  mill.progress->Call([&] {
    mill.progress->Later([entered, release] {
      entered->Set(1);
      release->SleepUntil(1, kNever);
    });
  });
  ASSERT_TRUE(entered->SleepUntil(1, Soon()));
  const auto flag = std::make_shared<Flag>();
  mill.Grind(flag);
  EXPECT_TRUE(mill.progress->WaitFor(*flag, 1, Soon()));
  release->Set(1);
}

uint64_t StepsWithin(const Mill& mill, int milliseconds) {
  const uint64_t before = mill.steps;
  std::this_thread::sleep_for(std::chrono::milliseconds(milliseconds));
  return mill.steps - before;
}

TEST(Progress, AnIdleOneUsesNoCpu) {
  Mill mill;
  mill.progress->Call([] {});
  ASSERT_TRUE(Eventually([&] { return StepsWithin(mill, 10) == 0; })) << "it does not fall asleep";
  EXPECT_EQ(StepsWithin(mill, 200), 0U);
}

TEST(Progress, CallersWhoComeAgainAndAgainArmNothing) {
  Mill mill;
  const auto wait_once = [&](const std::shared_ptr<Flag>& flag) {
    mill.Grind(flag);
    ASSERT_TRUE(mill.progress->WaitFor(*flag, 1, Soon()));
  };
  // A machine with other work may keep them from it for longer than what is soon.
  EXPECT_TRUE(Eventually([&] {
    const uint64_t before = mill.arms;
    for (int i = 0; i < 50; ++i) wait_once(std::make_shared<Flag>());
    return mill.arms == before;
  }));
  const auto flag = std::make_shared<Flag>();
  mill.Grind(flag);
  EXPECT_TRUE(flag->SleepUntil(1, Soon())) << "nobody looks after they have gone";
  ASSERT_TRUE(Eventually([&] { return StepsWithin(mill, 10) == 0; })) << "it does not fall asleep";
  EXPECT_GT(mill.arms, 0U);
}

/// Nothing of its own to do, and quick about it.
class Lookout final : public Work {
 public:
  bool Step(bool sockets) override {
    if (!sockets) return false;
    const TimePoint now = Clock::now();
    longest_blind = std::max(longest_blind, now - looked_);
    looked_ = now;
    return false;
  }
  bool Arm() override { return true; }
  void Disarm() override {}
  [[nodiscard]] bool ArmingIsCostly() const override { return false; }
  void Mask(bool) override {}
  [[nodiscard]] std::optional<TimePoint> NextDeadline() const override { return Clock::now(); }

  Duration longest_blind{};  ///< Between two looks at the sockets. The holder's.

 private:
  TimePoint looked_ = Clock::now();
};

TEST(Progress, SocketsAndDeadlinesAreLookedAtHoweverMuchCallersLeave) {
  constexpr Duration kWork = std::chrono::microseconds(50);
  constexpr Duration kRun = std::chrono::milliseconds(1500);
  Lookout lookout;
  auto progress = Progress::Create(lookout).value();
  ASSERT_TRUE(progress->Start(nullptr).ok());
  std::atomic<bool> late = false;
  std::vector<std::thread> threads;
  for (int t = 0; t < 8; ++t) {
    threads.emplace_back([&] {
      for (const TimePoint end = Clock::now() + kRun; Clock::now() < end;) {
        const auto flag = std::make_shared<Flag>();
        const TimePoint deadline = Clock::now() + FromSeconds(0.05);
        progress->Submit(MakeTask([=] {
                           for (const TimePoint done = Clock::now() + kWork; Clock::now() < done;) {
                           }
                           flag->Set(1);
                         }),
                         /*now=*/true);
        progress->WaitFor(*flag, 1, deadline);
        if (Clock::now() > deadline + kRun / 2) late = true;
      }
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_FALSE(late) << "a caller was kept by what others left";
  Duration blind{};
  progress->Call([&] { blind = lookout.longest_blind; });
  EXPECT_LT(blind, kRun / 2);
  progress->Stop();
}

TEST(Spin, EndsSoon) {
  Spin spin;
  EXPECT_FALSE(spin.GoOn(false));  // Nothing has moved yet: nothing to wait for.
  EXPECT_TRUE(spin.GoOn(true));
  const TimePoint begin = Clock::now();
  while (spin.GoOn(false)) {
  }
  EXPECT_LT(Clock::now() - begin, kPatience);
}

TEST_F(EndpointTest, AnIdleConnectionOnlyBeats) {
  const PartyOptions slow_beat{.settings = {{"lease", "60"}}};
  Pair pair(4096, Access::kReadWrite, slow_beat, {.rank = 1, .settings = {{"lease", "60"}}});
  ASSERT_TRUE(pair.WriteAll()->Wait().ok());
  const auto switches_within = [](int milliseconds) {
    rusage before{};
    rusage after{};
    getrusage(RUSAGE_SELF, &before);
    std::this_thread::sleep_for(std::chrono::milliseconds(milliseconds));
    getrusage(RUSAGE_SELF, &after);
    return after.ru_nvcsw - before.ru_nvcsw;
  };
  // One of them is ours.
  ASSERT_TRUE(Eventually([&] { return switches_within(20) <= 1; })) << "somebody does not fall asleep";
  EXPECT_LE(switches_within(300), 5) << "somebody wakes without need";
}

}  // namespace
}  // namespace weightcast::endpoint
