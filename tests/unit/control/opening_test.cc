#include "control/opening.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "base/strings.h"

namespace weightcast::control {
namespace {

using ::testing::HasSubstr;

std::string Frame(char type, char flags, char stream, const std::string& payload) {
  const size_t size = payload.size();
  return StrCat(std::string{static_cast<char>(size >> 16), static_cast<char>(size >> 8),
                            static_cast<char>(size), type, flags, 0, 0, 0, stream},
                payload);
}

std::string Text(const std::string& text) { return static_cast<char>(text.size()) + text; }

std::string Header(const std::string& name, const std::string& value) {
  return '\0' + Text(name) + Text(value);
}

const std::string kBeginning = StrCat(kClientPreface, EmptySettings());
const std::string kBlock = StrCat("\x83\x86", Header(":path", "/a/b"), Header("authorization", "Bearer x"));

FirstRequest Read(const std::string& bytes) {
  const auto read = ReadFirstRequest(bytes);
  EXPECT_TRUE(read.ok()) << read.status().ToString();
  return read.ok() && *read ? **read : FirstRequest{};
}

TEST(Opening, FindsTheFirstRequest) {
  const std::string window_update = Frame(8, 0, 0, std::string(4, 'x'));
  const std::string settings_ack = Frame(4, 1, 0, "");
  const auto request = Read(StrCat(kBeginning, window_update, settings_ack, Frame(1, 4, 1, kBlock), "more"));
  EXPECT_EQ(request.stream, 1U);
  EXPECT_EQ(request.path, "/a/b");
  EXPECT_EQ(request.authorization, "Bearer x");
}

TEST(Opening, WaitsForAllOfIt) {
  const std::string whole = StrCat(kBeginning, Frame(1, 4, 1, kBlock));
  for (size_t size = 0; size < whole.size(); ++size) {
    const auto read = ReadFirstRequest(std::string_view(whole).substr(0, size));
    ASSERT_TRUE(read.ok()) << size;
    EXPECT_FALSE(*read) << size;
  }
  EXPECT_EQ(Read(whole).path, "/a/b");
}

TEST(Opening, KnowsEverySpellingOfAHeader) {
  const std::string indexed_name = StrCat("\x44", Text("/a"), "\x0f\x08", Text("Bearer y"));  // 4 and 15 + 8.
  EXPECT_EQ(Read(StrCat(kBeginning, Frame(1, 4, 1, indexed_name))).path, "/a");
  EXPECT_EQ(Read(StrCat(kBeginning, Frame(1, 4, 1, indexed_name))).authorization, "Bearer y");
  const std::string resized = StrCat("\x3f\xe1\x1f", kBlock);
  EXPECT_EQ(Read(StrCat(kBeginning, Frame(1, 4, 1, resized))).path, "/a/b");
  const std::string padded = StrCat(std::string{2}, std::string(5, 'p'), kBlock, "xx");
  EXPECT_EQ(Read(StrCat(kBeginning, Frame(1, 4 | 8 | 32, 1, padded))).path, "/a/b");
  const std::string huffman = StrCat(std::string{0}, Text("authorization"), "\x81", "x");
  EXPECT_EQ(Read(StrCat(kBeginning, Frame(1, 4, 1, huffman))).authorization, "");
}

TEST(Opening, RefusesWhatNoClientSays) {
  const auto refused = [](const std::string& bytes) {
    return ReadFirstRequest(bytes).status().code() == Code::kProtocol;
  };
  EXPECT_TRUE(refused("GET / HTTP/1.1\r\n"));
  EXPECT_TRUE(refused(StrCat(kBeginning, Frame(0, 0, 1, "data"))));
  EXPECT_TRUE(refused(StrCat(kBeginning, Frame(3, 0, 1, "rst!"))));
  EXPECT_TRUE(refused(StrCat(kBeginning, Frame(1, 0, 1, kBlock)))) << "more headers follow";
  EXPECT_TRUE(refused(StrCat(kBeginning, Frame(1, 4, 1, kBlock.substr(0, kBlock.size() - 1)))));
  EXPECT_TRUE(refused(StrCat(kBeginning, Frame(1, 4 | 8, 1, "\xff"))));
  EXPECT_TRUE(refused(StrCat(kBeginning, Frame(1, 4, 1, "\x7f\xff\xff\xff\xff\xff\xff"))));
}

TEST(Opening, ARefusalIsOneAnswerAndTheEnd) {
  const std::string refusal = RefusalOf(5, 16, std::string(300, 'w'));
  EXPECT_THAT(refusal, HasSubstr(Header("grpc-status", "16")));
  EXPECT_THAT(refusal, HasSubstr(std::string("\x7f\xad\x01") + std::string(300, 'w')));
  EXPECT_EQ(refusal[3], 1) << "HEADERS";
  EXPECT_EQ(refusal[4], 5) << "the last of the stream";
  EXPECT_EQ(refusal.substr(refusal.size() - 8), std::string("\0\0\0\5\0\0\0\0", 8)) << "GOAWAY";
}

}  // namespace
}  // namespace weightcast::control
