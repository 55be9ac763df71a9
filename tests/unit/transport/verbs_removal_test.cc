#include <gmock/gmock.h>
#include <poll.h>

#include "unit/transport/verbs_world.h"

// A device that is taken out of the machine while it is in use.

namespace weightcast::transport::verbs {
namespace {

using ::testing::HasSubstr;

bool Sleeps(Transport& transport) {
  if (!transport.Arm()) return false;
  pollfd entry{.fd = transport.fd(), .events = POLLIN, .revents = 0};
  const bool quiet = poll(&entry, 1, 0) == 0;
  transport.Disarm();
  return quiet;
}

/// Whether its port was down when it was removed.
class VerbsRemovalTest : public VerbsPairTest, public ::testing::WithParamInterface<bool> {};

TEST_P(VerbsRemovalTest, TheOthersGoOnAndWhoWaitsSleeps) {
  Join(Nics(2));
  testing::internal::CaptureStderr();
  if (GetParam()) {
    world.fabric.SetLink(*a.host, 0, fake::Link::kDown);
    EXPECT_TRUE(Until([&] { return a.side->lanes_down.size() == 2; }));
  }
  world.fabric.Remove(*a.host, 0);
  // Once it is noticed: every so many turns of one who does not sleep.
  int turns = 0;
  const bool gone = Until(
      [&] { return ++turns > 2000 && a.side->lanes_down.size() == 2 && b.side->lanes_down.size() == 2; });
  EXPECT_THAT(testing::internal::GetCapturedStderr(), HasSubstr("nic0"));
  ASSERT_TRUE(gone);
  EXPECT_TRUE(Until([&] { return Sleeps(a.side->transport()); })) << "it is woken without end";
  ExpectWorks(1);
  const TestMemory memory(4096, false);
  const Described region = a.side->Register(memory, Access::kReadWrite);
  a.side->transport().Deregister(region.name.id);
  EXPECT_TRUE(Until([&] { return a.side->deregistered.contains(region.name.id); }));
}

/// The kernel has destroyed what was there, though each call that would says EIO.
TEST_P(VerbsRemovalTest, ItsRegionsEnd) {
  Join(Nics(2));
  testing::internal::CaptureStderr();
  if (GetParam()) world.fabric.SetLink(*a.host, 0, fake::Link::kDown);
  world.fabric.Remove(*a.host, 0);
  a.side->transport().Deregister(a.region.name.id);
  EXPECT_TRUE(Until([&] { return a.side->deregistered.contains(a.region.name.id); }));
  testing::internal::GetCapturedStderr();
}
/// A queue pair that can be neither destroyed nor stopped still leads to a region that is not let go.
TEST_F(VerbsPairTest, ARegionBehindAQueuePairThatStaysIsNotSaidToBeDeregistered) {
  for (const bool stops : {true, false}) {
    SCOPED_TRACE(stops);
    Join(Nics(2));
    testing::internal::CaptureStderr();
    world.fabric.Fail(*a.host, fake::Call::kDestroyQp, 1, EBUSY, 1000);
    if (!stops) world.fabric.Fail(*a.host, fake::Call::kModifyQp, 1, EBUSY, 1000);
    world.fabric.Fail(*a.host, fake::Call::kDeregMr, 1, EBUSY);
    world.fabric.SetLink(*a.host, 0, fake::Link::kDown);
    int turns = 0;
    EXPECT_TRUE(Until([&] { return ++turns > 2000 && a.side->lanes_down.size() >= 2; }));
    a.side->transport().Deregister(a.region.name.id);
    turns = 0;
    EXPECT_TRUE(Until([&] { return ++turns > 2000; }));
    EXPECT_EQ(a.side->deregistered.contains(a.region.name.id), stops);
    world.fabric.Fail(*a.host, fake::Call::kDestroyQp, 1, 0, 0);
    world.fabric.Fail(*a.host, fake::Call::kModifyQp, 1, 0, 0);
    Drop();
    testing::internal::GetCapturedStderr();
  }
}

INSTANTIATE_TEST_SUITE_P(Ports, VerbsRemovalTest, ::testing::Bool(),
                         [](const auto& down) { return down.param ? "Down" : "Up"; });

}  // namespace
}  // namespace weightcast::transport::verbs
