#include "control/kept_places.h"

#include <gtest/gtest.h>

namespace weightcast::control {
namespace {

constexpr TimePoint kNow = TimePoint() + std::chrono::hours(1);
constexpr TimePoint kLater = kNow + std::chrono::seconds(5);

protocol::Hello HelloOf(const std::string& engine, uint32_t rank, uint64_t incarnation,
                        const std::string& model = "policy") {
  protocol::Hello hello;
  hello.model = model;
  hello.name = {.role = engine.empty() ? protocol::Role::kTrainer : protocol::Role::kInference,
                .engine = engine,
                .rank = rank};
  hello.incarnation = incarnation;
  return hello;
}

TEST(KeptPlaces, ARankIsKeptForItsProcess) {
  KeptPlaces places;
  places.Keep(HelloOf("a", 0, 7), kLater);
  EXPECT_FALSE(places.Bars(HelloOf("a", 0, 7), kNow));
  EXPECT_TRUE(places.Bars(HelloOf("a", 0, 8), kNow));
  EXPECT_TRUE(places.Bars(HelloOf("a", 1, 8), kNow)) << "its world size may be another";
  EXPECT_FALSE(places.Bars(HelloOf("b", 0, 8), kNow));
  EXPECT_FALSE(places.Bars(HelloOf("", 0, 8), kNow));
  EXPECT_FALSE(places.Bars(HelloOf("a", 0, 8, "draft"), kNow));
}

TEST(KeptPlaces, UntilItIsBack) {
  KeptPlaces places;
  places.Keep(HelloOf("a", 0, 7), kLater);
  places.Keep(HelloOf("a", 1, 9), kLater);
  places.Release(HelloOf("a", 0, 7));
  EXPECT_TRUE(places.Bars(HelloOf("a", 1, 8), kNow));
  places.Release(HelloOf("a", 1, 9));
  EXPECT_FALSE(places.Bars(HelloOf("a", 1, 8), kNow)) << "who holds it is the machine's to know";
}

TEST(KeptPlaces, OrUntilTheTimeIsOver) {
  KeptPlaces places;
  places.Keep(HelloOf("a", 0, 7), kLater);
  EXPECT_TRUE(places.Bars(HelloOf("a", 0, 8), kLater - std::chrono::nanoseconds(1)));
  EXPECT_FALSE(places.Bars(HelloOf("a", 0, 8), kLater));
}

}  // namespace
}  // namespace weightcast::control
