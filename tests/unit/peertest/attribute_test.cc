#include "peertest/attribute.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>

namespace weightcast::peertest {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using Kind = Culprit::Kind;

std::vector<HostPair> Mesh(size_t hosts, const std::function<bool(size_t from, size_t to)>& wanted) {
  std::vector<HostPair> pairs;
  for (size_t from = 0; from < hosts; ++from)
    for (size_t to = 0; to < hosts; ++to)
      if (from != to && wanted(from, to)) pairs.emplace_back(from, to);
  return pairs;
}

std::vector<Culprit> Blame(size_t hosts, const std::function<bool(size_t from, size_t to)>& bad) {
  return Attribute(hosts, Mesh(hosts, [](size_t, size_t) { return true; }), Mesh(hosts, bad));
}

TEST(Attribute, BlamesNobodyForNothing) {
  EXPECT_THAT(Blame(4, [](size_t, size_t) { return false; }), IsEmpty());
}

TEST(Attribute, BlamesALinkForItsPairAlone) {
  for (size_t hosts = 2; hosts <= 8; ++hosts) {
    EXPECT_THAT(Blame(hosts, [](size_t from, size_t to) { return from + to == 1; }),
                ElementsAre(Culprit{Kind::kLinkBoth, 0, 1}));
    EXPECT_THAT(Blame(hosts, [](size_t from, size_t to) { return from == 1 && to == 0; }),
                ElementsAre(Culprit{Kind::kLink, 1, 0}));
  }
}

TEST(Attribute, BlamesAHostForAllItsPairs) {
  for (size_t hosts = 3; hosts <= 8; ++hosts) {
    EXPECT_THAT(Blame(hosts, [](size_t from, size_t to) { return from == 2 || to == 2; }),
                ElementsAre(Culprit{Kind::kHost, 2, 0}));
    EXPECT_THAT(Blame(hosts, [](size_t from, size_t) { return from == 2; }),
                ElementsAre(Culprit{Kind::kHostOut, 2, 0}));
    EXPECT_THAT(Blame(hosts, [](size_t, size_t to) { return to == 2; }),
                ElementsAre(Culprit{Kind::kHostIn, 2, 0}));
  }
}

TEST(Attribute, BlamesTwoHosts) {
  EXPECT_THAT(Blame(6, [](size_t from, size_t to) { return from == 1 || to == 4; }),
              ElementsAre(Culprit{Kind::kHostOut, 1, 0}, Culprit{Kind::kHostIn, 4, 0}));
}

TEST(Attribute, BlamesAHostAndALink) {
  const auto bad = [](size_t from, size_t to) {
    return from == 0 || (from == 3 && to == 5) || (from == 5 && to == 3);
  };
  EXPECT_THAT(Blame(6, bad), ElementsAre(Culprit{Kind::kHostOut, 0, 0}, Culprit{Kind::kLinkBoth, 3, 5}));
}

TEST(Attribute, ForgivesAHostOnePairThatIsFine) {
  // Noise has made one of its pairs look well.
  EXPECT_THAT(Blame(6, [](size_t from, size_t to) { return from == 2 && to != 5; }),
              ElementsAre(Culprit{Kind::kHostOut, 2, 0}));
}

TEST(Attribute, CountsOnlyWhatWasTested) {
  const std::vector<HostPair> tested = {{0, 1}, {0, 2}, {1, 2}};
  EXPECT_THAT(Attribute(5, tested, {{0, 1}, {0, 2}}), ElementsAre(Culprit{Kind::kHostOut, 0, 0}));
}

}  // namespace
}  // namespace weightcast::peertest
