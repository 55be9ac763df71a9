#include <gtest/gtest.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <string>
#include <vector>

#include "contract/side.h"
#include "transport/shm/ptracer.h"
#include "transport/shm/shm_transport.h"
#include "weightcast/settings.h"

namespace weightcast::transport::shm {
namespace {

using Policy = Ptracer::Policy;
using Calls = std::vector<unsigned long>;

/// Records what a process would permit under Yama's scope 1.
struct Recorded {
  Calls calls;
  bool reserved = true;
  Ptracer ptracer{[this](unsigned long tracer) { calls.push_back(tracer); }, [this] { return reserved; }};
};

TEST(ShmPtracer, NobodyIsPermittedByDefault) {
  Recorded process;
  EXPECT_EQ(Ptracer::PolicyOf(Settings().ptracer), Policy::kOff);
  {
    const auto right = process.ptracer.Allow(Policy::kOff, 7);
  }
  EXPECT_EQ(process.calls, Calls{});
}

TEST(ShmPtracer, NothingIsPermittedWhereNothingIsReserved) {
  Recorded process;
  process.reserved = false;
  {
    const auto right = process.ptracer.Allow(Policy::kAny, 7);
  }
  EXPECT_EQ(process.calls, Calls{});
}

TEST(ShmPtracer, OnePeerAtATimeUntilItsLastLinkEnds) {
  Recorded process;
  auto first = process.ptracer.Allow(Policy::kPeer, 7);
  auto again = process.ptracer.Allow(Policy::kPeer, 7);
  auto other = process.ptracer.Allow(Policy::kPeer, 8);
  EXPECT_EQ(process.calls, Calls{7});
  first.Reset();
  other.Reset();
  EXPECT_EQ(process.calls, Calls{7});
  again.Reset();
  EXPECT_EQ(process.calls, (Calls{7, 0}));
  const auto next = process.ptracer.Allow(Policy::kPeer, 8);
  EXPECT_EQ(process.calls, (Calls{7, 0, 8}));
}

TEST(ShmPtracer, AnyCoversAllUntilTheLastLinkEnds) {
  Recorded process;
  auto peer = process.ptracer.Allow(Policy::kPeer, 7);
  auto any = process.ptracer.Allow(Policy::kAny, 8);
  auto more = process.ptracer.Allow(Policy::kPeer, 9);
  peer.Reset();
  any.Reset();
  EXPECT_EQ(process.calls, (Calls{7, PR_SET_PTRACER_ANY}));
  more.Reset();
  EXPECT_EQ(process.calls, (Calls{7, PR_SET_PTRACER_ANY, 0}));
}

Recorded* recorded = nullptr;

Calls CallsOfALink(const std::string& policy) {
  Recorded process;
  recorded = &process;
  const TransportFactory factory{"shm", [](const TransportOptions& options) {
                                   return ShmTransport::Create(options, CrossCopies::kEither,
                                                               recorded->ptracer);
                                 }};
  Settings settings = TestSettings();
  if (!policy.empty()) {
    EXPECT_TRUE(settings.Set("ptracer", policy).ok());
  }
  {
    Pair pair(factory, settings);
    EXPECT_TRUE(pair.Connect());
  }
  return process.calls;
}

TEST(ShmPtracer, ALinkPermitsWhatTheSettingSaysAsLongAsItLives) {
  const auto self = static_cast<unsigned long>(getpid());
  EXPECT_EQ(CallsOfALink(""), Calls{});
  EXPECT_EQ(CallsOfALink("off"), Calls{});
  EXPECT_EQ(CallsOfALink("peer"), (Calls{self, 0}));
  EXPECT_EQ(CallsOfALink("any"), (Calls{PR_SET_PTRACER_ANY, 0}));
}

TEST(ShmPtracer, TheSettingTakesItsThreeValues) {
  Settings settings;
  for (const char* value : {"off", "peer", "any"}) EXPECT_TRUE(settings.Set("ptracer", value).ok()) << value;
  EXPECT_EQ(settings.Set("ptracer", "all").code(), Code::kInvalidArgument);
}

}  // namespace
}  // namespace weightcast::transport::shm
