#include "stream/frame.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "base/strings.h"

namespace weightcast::stream {
namespace {

std::string FrameOf(FrameKind kind, std::string_view body) {
  std::string bytes;
  AppendFrame(bytes, kind, body);
  return bytes;
}

TEST(FrameDecoder, CutsPiecesOfAnySize) {
  for (const size_t piece : {size_t{1}, size_t{3}, size_t{4096}, 4 * kMostFrameBytes}) {
    const std::string large(std::min(kMostFrameBytes, piece * 4096), 'x');
    const std::string bytes = FrameOf(FrameKind::kProof, "proof") + FrameOf(FrameKind::kData, "") +
                              FrameOf(FrameKind::kData, large) + FrameOf(FrameKind::kClose, "end");
    FrameDecoder decoder;
    std::vector<std::string> bodies;
    for (size_t at = 0; at < bytes.size(); at += piece) {
      decoder.Add(std::string_view(bytes).substr(at, piece));
      while (decoder.HasFrame()) {
        auto frame = decoder.Next();
        ASSERT_TRUE(frame.ok() && *frame);
        bodies.push_back(std::move((*frame)->body));
      }
      const auto none = decoder.Next();
      ASSERT_TRUE(none.ok() && !*none);
    }
    EXPECT_EQ(bodies, (std::vector<std::string>{"proof", "", large, "end"}));
    EXPECT_FALSE(decoder.partial());
  }
}

TEST(FrameDecoder, RefusesAFrameTooLongByItsHeadAlone) {
  std::string bytes = FrameOf(FrameKind::kData, std::string(kMostFrameBytes + 1, 'x'));
  FrameDecoder decoder;
  decoder.Add(bytes.substr(0, kFrameHead));
  EXPECT_TRUE(decoder.HasFrame());
  const auto frame = decoder.Next();
  ASSERT_FALSE(frame.ok());
  EXPECT_EQ(frame.status().code(), Code::kProtocol);
}

TEST(FrameDecoder, RefusesUnknownKinds) {
  for (const int kind : {0, 4, 255}) {
    FrameDecoder decoder;
    decoder.Add(FrameOf(static_cast<FrameKind>(kind), "x"));
    EXPECT_EQ(decoder.Next().status().code(), Code::kProtocol) << kind;
  }
}

TEST(Reason, TravelsAsOneLine) {
  const Status reason(Code::kPermission, "not you");
  EXPECT_EQ(DecodeReason(EncodeReason(reason)), reason);
  EXPECT_EQ(DecodeReason(EncodeReason({Code::kCorrupt, "two\nlines"})), Status(Code::kCorrupt, "two lines"));
  const std::string fits(kMostReasonBytes - 1, 'x');
  const Status cut = DecodeReason(EncodeReason({Code::kInternal, StrCat(fits, "é")}));
  EXPECT_EQ(cut, Status(Code::kInternal, fits));
}

TEST(Reason, IsNeverOkAndNeverHostile) {
  for (const std::string& body :
       {std::string(), std::string("\0x", 2), std::string("\x40x"), std::string("\x01\x1b[2J"),
        std::string("\x01\xff"), "\x01" + std::string(kMostReasonBytes + 1, 'x')}) {
    const Status reason = DecodeReason(body);
    EXPECT_EQ(reason.code(), Code::kProtocol);
    EXPECT_EQ(reason.message().find('\x1b'), std::string::npos);
  }
}

}  // namespace
}  // namespace weightcast::stream
