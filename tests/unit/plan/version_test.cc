#include "weightcast/version.h"

#include <gtest/gtest.h>

namespace weightcast {
namespace {

TEST(VersionTest, ReadsAsTheUserCountsIt) {
  EXPECT_EQ(ToString(Version{}), "none");
  EXPECT_EQ(ToString(Version{1, 80}), "80");
  EXPECT_EQ(ToString(Version{2, 80}), "2:80");
  EXPECT_STREQ(LibraryVersion(), "0.1.0");
}

TEST(VersionTest, EqualityIsEqualityOfBytes) {
  const Version version{.run = 1, .number = 3, .origin = 7};
  EXPECT_EQ(version, (Version{.run = 1, .number = 3, .origin = 7}));
  EXPECT_NE(version, (Version{.run = 1, .number = 3, .origin = 8}))
      << "the same label, by another controller";
}

TEST(VersionTest, NewerIsDefinedWithinAnOrigin) {
  const Version version{.run = 2, .number = 80, .origin = 7};
  EXPECT_EQ(Newer(version, {.run = 1, .number = 100, .origin = 7}), true);
  EXPECT_EQ(Newer({.run = 2, .number = 79, .origin = 7}, version), false);
  EXPECT_EQ(Newer(version, version), false);
  EXPECT_EQ(Newer({.run = 3, .number = 1, .origin = 8}, version), std::nullopt);
  EXPECT_EQ(Newer({.run = 3, .number = 1}, version), true) << "an origin that is not said is the other's";
}

TEST(VersionTest, AnyVersionIsNewerThanNone) {
  const Version version{.run = 1, .number = 0, .origin = 7};
  EXPECT_EQ(Newer(version, {}), true);
  EXPECT_EQ(Newer({}, version), false);
  EXPECT_EQ(Newer({}, {}), false);
}

}  // namespace
}  // namespace weightcast
