#include "control/session_link.h"

#include <gtest/gtest.h>

#include <random>

#include "base/strings.h"
#include "control/envelope.h"
#include "protocol/codec.h"
#include "protocol/limits.h"
#include "stream/frame.h"

namespace weightcast::control {
namespace {

SharedPacket Text(const std::string& text) {
  auto packet = std::make_shared<Packet>();
  packet->parts.push_back(text);
  return packet;
}
SharedPacket Pieces(std::vector<std::string> parts) {
  auto packet = std::make_shared<Packet>();
  packet->parts = std::move(parts);
  packet->pieces = true;
  return packet;
}

TEST(SessionLink, NumbersAndKeepsUntilAcknowledged) {
  SessionLink link;
  EXPECT_FALSE(link.Next());
  EXPECT_TRUE(link.Push(Text("a")));
  EXPECT_TRUE(link.Push(Text("b")));
  EXPECT_EQ(link.Next()->number, 1U);
  EXPECT_FALSE(link.drained());
  EXPECT_FALSE(link.Acknowledge(2)) << "2 has not been sent";
  EXPECT_TRUE(link.Acknowledge(1));
  EXPECT_EQ(link.Next()->number, 2U);
  EXPECT_TRUE(link.Acknowledge(2));
  EXPECT_TRUE(link.Acknowledge(1)) << "an old word";
  EXPECT_TRUE(link.drained());
}

TEST(SessionLink, UrgentMessagesGoFirstButNotBetweenPieces) {
  SessionLink link;
  link.Push(Pieces({"x", "y", "z"}));
  EXPECT_EQ(link.Next()->kind, PartKind::kPiece);
  link.PushUrgent(Text("!"), 7);
  EXPECT_EQ(link.Next()->kind, PartKind::kPiece);
  EXPECT_EQ(link.Next()->kind, PartKind::kLast);
  const auto urgent = link.Next();
  EXPECT_EQ(urgent->number, 0U);
  EXPECT_EQ(urgent->session, 7U);
}

TEST(SessionLink, HeartbeatsDoNotPileUp) {
  SessionLink link;
  for (int i = 0; i < 1000; ++i) link.PushUrgent(Text("beat"));
  int count = 0;
  while (link.Next()) ++count;
  EXPECT_LE(count, 8);
}

TEST(SessionLink, ABrokenStreamBeginsWhereTheOtherSideIs) {
  SessionLink link;
  for (const char* text : {"a", "b", "c", "d"}) link.Push(Text(text));
  for (int i = 0; i < 3; ++i) link.Next();
  EXPECT_TRUE(link.Acknowledge(1));
  link.Hold();
  EXPECT_FALSE(link.Next()) << "not before it is known what the other side has";
  link.PushUrgent(Text("hello"));
  EXPECT_EQ(link.Next()->number, 0U);
  EXPECT_TRUE(link.Rewind(2));
  EXPECT_EQ(link.Next()->number, 3U) << "c was lost with the stream";
  EXPECT_EQ(link.Next()->number, 4U);
  EXPECT_FALSE(link.Rewind(1)) << "2 was acknowledged already";
  EXPECT_FALSE(link.Rewind(5)) << "5 was never pushed";
}

TEST(SessionLink, ReceivesEachOnceAndSeesGaps) {
  SessionLink link;
  bool duplicate = false;
  EXPECT_TRUE(link.Receive(1, duplicate));
  EXPECT_FALSE(duplicate);
  EXPECT_TRUE(link.Receive(1, duplicate));
  EXPECT_TRUE(duplicate);
  EXPECT_FALSE(link.Receive(3, duplicate));
  EXPECT_EQ(link.received(), 1U);
}

TEST(SessionLink, RefusesToKeepWithoutEnd) {
  SessionLink link;
  size_t kept = 0;
  const auto packet = Text(std::string(1 << 20, 'x'));
  while (kept < 5000 && link.Push(packet)) ++kept;
  EXPECT_GE(kept, 320U) << "the largest message must fit";
  EXPECT_LT(kept, 2000U);
}

/// Two links over streams that break anywhere: everything arrives once and in order.
TEST(SessionLink, NothingIsLostRepeatedOrReordered) {
  std::mt19937 random(3);
  SessionLink sender;
  SessionLink receiver;
  std::vector<std::string> got;
  std::deque<Outgoing> flying;
  std::string partial;
  int pushed = 0;
  for (int i = 0; i < 20000 || got.size() < static_cast<size_t>(pushed); ++i) {
    if (pushed < 2000 && random() % 4 == 0) {
      const std::string text = StrCat(pushed++);
      ASSERT_TRUE(sender.Push(random() % 3 == 0 ? Pieces({text, "|", "x"}) : Text(text)));
    }
    if (const auto out = sender.Next()) flying.push_back(*out);
    if (!flying.empty() && random() % 2 == 0) {
      const Outgoing out = flying.front();
      flying.pop_front();
      partial += out.packet->parts[out.part];
      if (out.kind != PartKind::kPiece) {
        bool duplicate = false;
        ASSERT_TRUE(receiver.Receive(out.number, duplicate));
        if (!duplicate) got.push_back(partial);
        partial.clear();
      }
    }
    if (random() % 10 == 0) {
      ASSERT_TRUE(sender.Acknowledge(receiver.received()));
    }
    if (random() % 50 == 0) {
      flying.clear();
      partial.clear();
      sender.Hold();
      ASSERT_TRUE(sender.Rewind(receiver.received()));
    }
  }
  ASSERT_EQ(got.size(), 2000U);
  for (int i = 0; i < 2000; ++i)
    EXPECT_EQ(got[static_cast<size_t>(i)].substr(0, StrCat(i).size()), StrCat(i));
}

TEST(Packets, LargeMessagesTravelInPieces) {
  protocol::Plan plan;
  std::mt19937 random(5);
  plan.table.resize(5 << 20);
  for (char& c : plan.table) c = static_cast<char>(random());
  const auto packet = MakePacket(protocol::ControllerMessage(plan));
  ASSERT_TRUE(packet.ok());
  EXPECT_GE((*packet)->parts.size(), 5U);
  Assembler assembler;
  std::optional<EncodedMessage> whole;
  for (size_t part = 0; part < (*packet)->parts.size(); ++part) {
    EXPECT_LE((*packet)->parts[part].size() + kEnvelopeHead, stream::kMostFrameBytes);
    EXPECT_FALSE(whole);
    auto added = assembler.Add((*packet)->kind(part), (*packet)->parts[part]);
    ASSERT_TRUE(added.ok()) << added.status().ToString();
    whole = *added;
  }
  ASSERT_TRUE(whole);
  const auto encoded = Unpack(std::move(*whole));
  ASSERT_TRUE(encoded.ok()) << encoded.status().ToString();
  const auto decoded = protocol::DecodeControllerMessage(*encoded);
  ASSERT_TRUE(decoded.ok());
  EXPECT_TRUE(std::get<protocol::Plan>(*decoded) == plan);
}

TEST(Packets, BadPiecesAreRefused) {
  EXPECT_EQ(Unpack({.parts = {"no piece"}, .pieces = true}).status().code(), Code::kCorrupt);
  Assembler mixed;
  EXPECT_TRUE(mixed.Add(PartKind::kPiece, "piece").ok());
  EXPECT_EQ(mixed.Add(PartKind::kWhole, "whole").status().code(), Code::kProtocol);
  Assembler endless;
  Status status;
  for (int i = 0; i < 1000 && status.ok(); ++i)
    status = endless.Add(PartKind::kPiece, std::string(1 << 20, 'x')).status();
  EXPECT_EQ(status.code(), Code::kProtocol);
}

}  // namespace
}  // namespace weightcast::control
