#include "plan/segments.h"

#include <gtest/gtest.h>
#include <rapidcheck.h>
#include <rapidcheck/gtest.h>

#include <vector>

namespace weightcast::plan {
namespace {

std::vector<Segment> All(const Segments& segments) {
  std::vector<Segment> out;
  segments.ForEach([&](const Segment& segment) { out.push_back(segment); });
  return out;
}

Segments Must(const Box& src_shard, const Box& dst_shard, const Box& box, const Shape& to,
              DType from = DType::kF32, DType into = DType::kF32) {
  auto segments = Segments::Of(src_shard, from, dst_shard, into, box, to);
  EXPECT_TRUE(segments.ok()) << segments.status().ToString();
  return segments.ok() ? *segments : Segments();
}

TEST(SegmentsTest, WholeShardIsOneRun) {
  const Box whole{{0, 0}, {4, 6}};
  EXPECT_EQ(All(Must(whole, whole, whole, {0, 0})), (std::vector<Segment>{{0, 0, 96, 96}}));
}

TEST(SegmentsTest, RowsThatAreWholeOnBothSidesMerge) {
  const Segments segments = Must({{0, 0}, {4, 6}}, {{2, 0}, {4, 6}}, {{2, 0}, {2, 6}}, {2, 0});
  EXPECT_EQ(All(segments), (std::vector<Segment>{{48, 0, 48, 48}}));
}

TEST(SegmentsTest, ColumnsAreARunPerRow) {
  // Columns 2..4 of a 3 x 6 shard into a shard that is just them.
  const Segments segments = Must({{0, 0}, {3, 6}}, {{0, 2}, {3, 2}}, {{0, 2}, {3, 2}}, {0, 2});
  EXPECT_EQ(All(segments), (std::vector<Segment>{{8, 0, 8, 8}, {32, 8, 8, 8}, {56, 16, 8, 8}}));
  EXPECT_EQ(segments.src_bytes(), 24);
}

TEST(SegmentsTest, OneColumnIsARunPerElement) {
  const Segments segments = Must({{0, 0}, {3, 6}}, {{0, 0}, {3, 6}}, {{0, 5}, {3, 1}}, {0, 5});
  EXPECT_EQ(segments.count(), 3);
  EXPECT_EQ(segments.At(2), (Segment{68, 68, 4, 4}));
}

TEST(SegmentsTest, CastGivesTheBytesOfBothSides) {
  const Segments segments = Must({{0}, {8}}, {{4}, {4}}, {{4}, {4}}, {4}, DType::kF32, DType::kBF16);
  EXPECT_EQ(All(segments), (std::vector<Segment>{{16, 0, 16, 8}}));
}

TEST(SegmentsTest, ScalarsAndEmptyBoxes) {
  EXPECT_EQ(All(Must({}, {}, {}, {})), (std::vector<Segment>{{0, 0, 4, 4}}));
  EXPECT_EQ(Must({{0}, {4}}, {{0}, {4}}, {{1}, {0}}, {1}).count(), 0);
}

TEST(SegmentsTest, RefusesRoutesThatLeaveAShard) {
  const Box shard{{4}, {4}};
  const auto of = [&](const Box& box, const Shape& to) {
    return Segments::Of(shard, DType::kF32, shard, DType::kF32, box, to).status().code();
  };
  EXPECT_EQ(of({{4}, {4}}, {4}), Code::kOk);
  EXPECT_EQ(of({{3}, {1}}, {4}), Code::kOutOfBounds);
  EXPECT_EQ(of({{4}, {4}}, {5}), Code::kOutOfBounds);
  EXPECT_EQ(of({{4, 0}, {4, 1}}, {4, 0}), Code::kOutOfBounds);
}

TEST(SegmentsTest, SubByteTypesMoveInWholeBytesOrNotAtAll) {
  const Box whole{{0, 0}, {4, 6}};
  const auto of = [&](const Box& box) {
    return Segments::Of(whole, DType::kF4, whole, DType::kF4, box, box.offset);
  };
  ASSERT_TRUE(of({{1, 2}, {2, 4}}).ok());
  EXPECT_EQ(All(*of({{1, 2}, {2, 4}})), (std::vector<Segment>{{4, 4, 2, 2}, {7, 7, 2, 2}}));
  EXPECT_EQ(of({{0, 1}, {1, 2}}).status().code(), Code::kInvalidArgument);
  EXPECT_EQ(of({{0, 0}, {1, 3}}).status().code(), Code::kInvalidArgument);
  // A whole shard may end inside a byte.
  EXPECT_EQ(All(Must({{0}, {3}}, {{0}, {3}}, {{0}, {3}}, {0}, DType::kF4, DType::kF4)),
            (std::vector<Segment>{{0, 0, 2, 2}}));
}

/// The bytes that a route moves, element by element: (source byte, destination byte).
std::vector<std::pair<int64_t, int64_t>> ByElement(const Box& src, const Box& dst, const Box& box,
                                                   const Shape& to, int64_t bytes) {
  std::vector<std::pair<int64_t, int64_t>> out;
  for (int64_t i = 0; i < ElementsOf(box); ++i) {
    int64_t rest = i;
    int64_t from_at = 0;
    int64_t to_at = 0;
    int64_t from_stride = 1;
    int64_t to_stride = 1;
    for (size_t d = box.size.size(); d-- > 0;) {
      const int64_t index = rest % box.size[d];
      rest /= box.size[d];
      from_at += (box.offset[d] + index - src.offset[d]) * from_stride;
      to_at += (to[d] + index - dst.offset[d]) * to_stride;
      from_stride *= src.size[d];
      to_stride *= dst.size[d];
    }
    for (int64_t b = 0; b < bytes; ++b) out.emplace_back(from_at * bytes + b, to_at * bytes + b);
  }
  return out;
}

RC_GTEST_PROP(SegmentsProperty, MoveTheSameBytesAsElementByElement, ()) {
  const auto pick = [](int64_t low, int64_t high) { return *rc::gen::inRange<int64_t>(low, high + 1); };
  Box src;
  Box dst;
  Box box;
  Shape to;
  for (int64_t d = pick(0, 4); d > 0; --d) {
    const int64_t size = pick(1, 4);
    box.size.push_back(size);
    const int64_t before = pick(0, 1);
    src.offset.push_back(pick(0, 3));
    src.size.push_back(size + before + pick(0, 1));
    box.offset.push_back(src.offset.back() + before);
    const int64_t dst_before = pick(0, 1);
    dst.offset.push_back(pick(0, 3));
    dst.size.push_back(size + dst_before + pick(0, 1));
    to.push_back(dst.offset.back() + dst_before);
  }
  const auto segments = Segments::Of(src, DType::kI16, dst, DType::kI16, box, to);
  RC_ASSERT(segments.ok());
  std::vector<std::pair<int64_t, int64_t>> moved;
  int64_t run = 0;
  segments->ForEach([&](const Segment& segment) {
    RC_ASSERT(segment == segments->At(run++));
    for (int64_t b = 0; b < segment.src_bytes; ++b)
      moved.emplace_back(segment.src_offset + b, segment.dst_offset + b);
  });
  RC_ASSERT(run == segments->count());
  RC_ASSERT(moved == ByElement(src, dst, box, to, 2));
  // No two neighbours could have been one.
  for (int64_t i = 1; i < run; ++i) {
    const Segment a = segments->At(i - 1);
    const Segment b = segments->At(i);
    RC_ASSERT(a.src_offset + a.src_bytes != b.src_offset || a.dst_offset + a.dst_bytes != b.dst_offset);
  }
  // A range in the middle is that part of the whole.
  const int64_t first = pick(0, run - 1);
  std::vector<Segment> tail;
  segments->ForEach(first, run, [&](const Segment& segment) { tail.push_back(segment); });
  RC_ASSERT(static_cast<int64_t>(tail.size()) == run - first);
  RC_ASSERT(tail.front() == segments->At(first));
}

}  // namespace
}  // namespace weightcast::plan
