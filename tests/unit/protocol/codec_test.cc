#include "protocol/codec.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <set>

#include "base/strings.h"
#include "field_hash.h"
#include "protocol/field_text.h"
#include "protocol/limits.h"
#include "unit/protocol/samples.h"

namespace weightcast::protocol {
namespace {

using ::testing::HasSubstr;

struct Text : FieldText<Text> {};
template <typename... Messages>
std::string TextOf(const std::variant<Messages...>& message) {
  return Text()(message);
}
template <HasFields T>
std::string TextOf(const T& message) {
  return Text().Of(message);
}

/// Every message there is, as its own kind: call(message, its decoder).
template <typename Call>
void ForAll(Call call) {
  for (const auto& message : WorkerMessages()) call(message, DecodeWorkerMessage);
  for (const auto& message : ControllerMessages()) call(message, DecodeControllerMessage);
  for (const auto& message : ObserverMessages()) call(message, DecodeObserverMessage);
  for (const auto& message : ObserverReplies()) call(message, DecodeObserverReply);
}

/// Of a Hello of another version little is read.
bool IsOfAnotherVersion(const WorkerMessage& message) {
  const auto* hello = std::get_if<Hello>(&message);
  return hello != nullptr && hello->protocol != kProtocolVersion;
}
template <typename Message>
bool IsEncoded(const Message& message, const std::string& bytes) {
  if constexpr (std::is_same_v<Message, WorkerMessage>) {
    if (IsOfAnotherVersion(message)) return true;
  }
  return Encode(message) == bytes;
}

TEST(Codec, EveryMessageSurvivesAndHasOneForm) {
  const auto workers = WorkerMessages();
  const auto controllers = ControllerMessages();
  ASSERT_EQ(workers.size(), std::variant_size_v<WorkerMessage>);
  ASSERT_EQ(controllers.size(), std::variant_size_v<ControllerMessage>);
  ASSERT_EQ(ObserverMessages().size(), std::variant_size_v<ObserverMessage>);
  ASSERT_EQ(ObserverReplies().size(), std::variant_size_v<ObserverReply>);
  for (size_t i = 0; i < workers.size(); ++i) ASSERT_EQ(workers[i].index(), i);
  for (size_t i = 0; i < controllers.size(); ++i) ASSERT_EQ(controllers[i].index(), i);
  ForAll([](const auto& message, auto decode) {
    const std::string bytes = Encode(message);
    const auto decoded = decode(bytes);
    ASSERT_TRUE(decoded.ok()) << TextOf(message) << ": " << decoded.status().ToString();
    EXPECT_TRUE(*decoded == message) << TextOf(message) << " became " << TextOf(*decoded);
    EXPECT_EQ(Encode(*decoded), bytes);
  });
}

// Encoding, decoding and comparing all go by Fields, so none of them would miss a member whose place another
// has.
TEST(Codec, NoMemberIsNamedTwice) {
  ForAll([](const auto& message, auto /*decode*/) {
    std::visit(
        [&](const auto& one) {
          Fields(one, [&](const auto&... fields) {
            std::set<const void*> seen;
            (seen.insert(&fields.value), ...);
            EXPECT_EQ(seen.size(), sizeof...(fields)) << TextOf(message);
            return seen.size();
          });
        },
        message);
  });
}

TEST(Codec, EveryEmptyMessageSurvives) {
  for (const WorkerMessage& message : {WorkerMessage(Register{}), WorkerMessage(LandingMap{}),
                                       WorkerMessage(Ready{}), WorkerMessage(EngineCommandResult{})}) {
    const auto decoded = DecodeWorkerMessage(Encode(message));
    ASSERT_TRUE(decoded.ok()) << decoded.status().ToString();
    EXPECT_TRUE(*decoded == message);
  }
  EXPECT_TRUE(*DecodeObserverReply(Encode(ObserverReply(ClusterView{}))) == ObserverReply(ClusterView{}));
}

TEST(Codec, TheOriginAndTheLabelOfAVersionTravel) {
  const WorkerMessage message = Serving{.update = kUpdate, .version = kVersion};
  const auto decoded = DecodeWorkerMessage(Encode(message));
  ASSERT_TRUE(decoded.ok());
  EXPECT_EQ(std::get<Serving>(*decoded).version, kVersion);
  EXPECT_EQ(std::get<Serving>(*decoded).version.label, "step-80");
}

TEST(Codec, BytesAreThoseOfTheDocument) {
  const WorkerMessage granted = Granted{.update = {.term = {.number = 300, .id = 0x0807060504030201}},
                                        .grants = {{.source = 1, .slot = 2, .id = 3}},
                                        .part = 4,
                                        .compares = true};
  EXPECT_EQ(Encode(granted), std::string("\x25"                                                  // Kind.
                                         "\xac\x02\x01\x02\x03\x04\x05\x06\x07\x08\x00\x00\x00"  // Update.
                                         "\x01\x01\x02\x03\x00\x00\x00\x00\x00\x00\x00"          // Grants.
                                         "\x04\x01",
                                         27));
  const WorkerMessage cancel = Cancel{.number = -2};
  EXPECT_EQ(Encode(cancel), "\x2d\x03");
  const ControllerMessage lost = Lost{.name = kRank, .reason = {Code::kPeerDead, "x"}};
  EXPECT_EQ(Encode(lost), std::string("\x4d\x01\x09rollout-1\x01\x02\x01x"));
}

void ExpectRefused(const WorkerMessage& message, const std::string& why) {
  const auto decoded = DecodeWorkerMessage(Encode(message));
  ASSERT_FALSE(decoded.ok()) << why;
  EXPECT_EQ(decoded.status().code(), Code::kProtocol);
  EXPECT_EQ(decoded.status().message(), StrCat("a ", NameOf(message), " from the network: ", why,
                                               "; use the same weightcast on all hosts"));
}

TEST(Codec, RefusesWhatIsBeyondTheLimits) {
  Hello hello = std::get<Hello>(WorkerMessages()[0]);
  hello.job = std::string(kMaxNameBytes + 1, 'x');
  ExpectRefused(hello, "job has 257 bytes; at most 256 are allowed");
  hello.job = "two\nlines";
  ExpectRefused(hello, "job has control characters");
  hello.job = "j";
  hello.addresses.assign(kMaxAddresses + 1, "a:1");
  ExpectRefused(hello, "addresses has 65 entries; at most 64 are allowed");
  hello.addresses.clear();
  hello.incarnation = 0;
  ExpectRefused(hello, "incarnation is 0");

  ShardInfo shard = kShard;
  shard.tensor.shape.assign(kMaxDims + 1, 1);
  shard.box = {.offset = Shape(kMaxDims + 1), .size = shard.tensor.shape};
  ExpectRefused(Register{.shards = {shard}, .rules = ""},
                "shards.tensor.shape has 9 entries; at most 8 are allowed");
  shard = kShard;
  shard.box.size.pop_back();
  ExpectRefused(Register{.shards = {shard}, .rules = ""},
                "shards: box and shape of h.0.attn.w differ in dimensions");
  shard = kShard;
  shard.tensor.dtype = static_cast<DType>(kDTypeCount);
  ExpectRefused(Register{.shards = {shard}, .rules = ""},
                StrCat("shards.tensor.dtype ", kDTypeCount, " is unknown"));
  ExpectRefused(Register{.shards = {}, .rules = "", .parts = 0}, "parts 0 is not between 1 and 4096");

  LandingMap map = kMap;
  map.places[0].region = 2;
  ExpectRefused(map, "places name a region that the map does not hold");
  ExpectRefused(Ready{.update = kUpdate, .bytes = 1, .seconds = -1},
                "seconds is not a number of seconds from 0");
  ExpectRefused(Ready{.update = kUpdate, .bytes = 1, .seconds = std::nan("")},
                "seconds is not a number of seconds from 0");
  ExpectRefused(Ready{.update = kUpdate, .sources = {{.seconds = HUGE_VAL}}},
                "sources.seconds is not a number of seconds from 0");
  ExpectRefused(Ready{.update = kUpdate, .part = kMaxParts}, "part 4096 is not between 0 and 4095");
  ExpectRefused(Published{.number = -1}, StrCat("number -1 is not between 0 and ", kMaxVersionNumber));
  ExpectRefused(Published{.number = INT64_MAX},
                StrCat("number ", INT64_MAX, " is not between 0 and ", kMaxVersionNumber));
  ExpectRefused(Published{.number = 1, .label = "\xff"},
                "label is refused: the label of a version is not UTF-8; use printable text");
  ExpectRefused(Published{.number = 1, .label = std::string(257, 'x')},
                "label has 257 bytes; at most 256 are allowed");
  ExpectRefused(
      Serving{.update = kUpdate, .version = {.number = 1, .label = "a\tb"}},
      "version.label is refused: the label of a version has control characters; use printable text");
  ExpectRefused(Serving{.update = kUpdate, .version = {.run = 1, .number = -2}},
                StrCat("version.number -2 is not between -1 and ", kMaxVersionNumber));
  const std::string too_large =
      StrCat(" is too large; at most ", kMaxTerm, " is allowed: use the same weightcast on all hosts");
  ExpectRefused(Committed{.update = {.term = {.number = UINT64_MAX, .id = 1}}},
                StrCat("update.term: number ", UINT64_MAX, too_large));
  ExpectRefused(Failed{.update = kUpdate, .destination = -2, .reason = kReason},
                "destination -2 is not between -1 and 1048575");
  ExpectRefused(Failed{.update = kUpdate, .destination = -1, .reason = {}}, "the reason is 'ok'");
  ExpectRefused(SentDigests{.update = kUpdate, .digests = {{(1ULL << 61) - 1, 0}}},
                "digests: a half of a digest is out of range");
  EXPECT_EQ(DecodeControllerMessage(Encode(Refused{})).status().message(),
            "a Refused from the network: reason.code 0 is unknown; use the same weightcast on all hosts");
}

/// All values of an enum come back; the one behind the last does not.
template <typename Enum, typename Make>
void ExpectOnlyKnown(const std::string& field, Make make) {
  const auto last = static_cast<int>(LastOf(Enum{}));
  for (int value = 0; value <= last; ++value) {
    const WorkerMessage message = make(static_cast<Enum>(value));
    const auto decoded = DecodeWorkerMessage(Encode(message));
    ASSERT_TRUE(decoded.ok()) << decoded.status().ToString();
    EXPECT_TRUE(*decoded == message);
  }
  for (const int value : {last + 1, 255})
    ExpectRefused(make(static_cast<Enum>(value)), StrCat(field, " ", value, " is unknown"));
}

TEST(Codec, EnumsAreChecked) {
  const auto hello = [](auto change) {
    Hello message = std::get<Hello>(WorkerMessages()[0]);
    change(message);
    return message;
  };
  ExpectOnlyKnown<Role>("name.role",
                        [&](Role value) { return hello([&](Hello& h) { h.name.role = value; }); });
  ExpectOnlyKnown<Landing>("landing", [](Landing value) {
    Register message;
    message.landing = value;
    return message;
  });
  ExpectOnlyKnown<EngineState>("state",
                               [&](EngineState value) { return hello([&](Hello& h) { h.state = value; }); });
  ExpectOnlyKnown<DType>("shards.tensor.dtype", [](DType value) {
    return Register{.shards = {{.tensor = {.name = "w", .dtype = value, .shape = {}}, .box = {}}},
                    .rules = ""};
  });
  ExpectOnlyKnown<Code>("status.code", [](Code value) {
    return EngineCommandResult{.status = value == Code::kOk ? Status() : Status(value, "why")};
  });
  for (const int value : {0, 1, 2, 3, 4}) {
    const ControllerMessage message =
        EngineCommand{.order = 1, .command = static_cast<Command>(value), .version = {}};
    EXPECT_EQ(DecodeControllerMessage(Encode(message)).ok(), value <= static_cast<int>(Command::kDrain));
  }
}

TEST(Codec, AnEndlessReasonIsCut) {
  const Lost lost{.name = kRank, .reason = {Code::kInternal, std::string(1 << 20, 'e')}};
  const auto decoded = DecodeControllerMessage(Encode(lost));
  ASSERT_TRUE(decoded.ok()) << decoded.status().ToString();
  EXPECT_EQ(std::get<Lost>(*decoded).reason.message().size(), kMaxStatusBytes);
  const auto refused = DecodeControllerMessage(Encode(Refused{lost.reason}));
  ASSERT_TRUE(refused.ok()) << refused.status().ToString();
  EXPECT_EQ(std::get<Refused>(*refused).reason.message().size(), kMaxStatusBytes);
}

TEST(Codec, WhatIsCutShortOrTooLongIsRefused) {
  ForAll([](const auto& message, auto decode) {
    const std::string bytes = Encode(message);
    for (size_t size = 0; size < bytes.size(); ++size) {
      const Status status = decode(std::string_view(bytes).substr(0, size)).status();
      EXPECT_EQ(status.code(), Code::kProtocol) << TextOf(message) << " cut to " << size << " bytes";
      EXPECT_THAT(status.message(), HasSubstr("; use the same weightcast on all hosts"));
    }
    EXPECT_THAT(decode(bytes + '\0').status().message(), HasSubstr("is longer than its fields"));
  });
}

TEST(Codec, NumbersOf2To60AnywhereAreRefusedOrMeanThemselves) {
  const std::string huge = "\x80\x80\x80\x80\x80\x80\x80\x80\x10";
  size_t entries = 0;
  ForAll([&](const auto& message, auto decode) {
    const std::string bytes = Encode(message);
    for (size_t at = 1; at < bytes.size(); ++at) {
      const std::string bad = bytes.substr(0, at) + huge + bytes.substr(at + 1);
      const auto decoded = decode(bad);
      EXPECT_TRUE(!decoded.ok() || IsEncoded(*decoded, bad));
      entries += decoded.status().message().find("1152921504606846976 entries") != std::string::npos ? 1 : 0;
    }
  });
  EXPECT_GT(entries, 20U);
}

TEST(Codec, ListsLongerThanTheirBytesCostNoMemory) {
  // A Register with as many shards as are allowed, in a few bytes.
  const std::string bytes = std::string("\x21\x80\x80\x80\x02", 5) + std::string(100, '\0');
  EXPECT_EQ(
      DecodeWorkerMessage(bytes).status().message(),
      "a Register from the network: shards has 4194304 entries, more than there are bytes for; use the same "
      "weightcast on all hosts");
}

TEST(Codec, UnknownKindsAreRefused) {
  EXPECT_EQ(DecodeWorkerMessage("").status().message(),
            "it sent an empty message; use the same weightcast on all hosts");
  for (int kind = 0; kind < 256; ++kind) {
    const std::string bytes(1, static_cast<char>(kind));
    const bool worker =
        kind == 0x0a || (kind > 0x20 && kind < 0x20 + int{std::variant_size_v<WorkerMessage>});
    const bool controller = kind == 0x12 || (kind >= 0x40 && kind != 0x41 &&
                                             kind < 0x40 + int{std::variant_size_v<ControllerMessage>});
    const auto unknown = [&](const Status& status) {
      return status.message().find(StrCat("the unknown kind ", kind, ";")) != std::string::npos;
    };
    EXPECT_EQ(unknown(DecodeWorkerMessage(bytes).status()), !worker) << kind;
    EXPECT_EQ(unknown(DecodeControllerMessage(bytes).status()), !controller) << kind;
    const auto among = [&](int first, size_t count) {
      return kind >= first && kind < first + static_cast<int>(count);
    };
    EXPECT_EQ(unknown(DecodeObserverReply(bytes).status()), !among(0x60, std::variant_size_v<ObserverReply>))
        << kind;
    EXPECT_EQ(unknown(DecodeObserverMessage(bytes).status()),
              !among(0x70, std::variant_size_v<ObserverMessage>))
        << kind;
  }
}

TEST(Codec, FlippedBytesNeverCrash) {
  std::mt19937 random(1);
  int refused = 0;
  ForAll([&](const auto& message, auto decode) {
    const std::string bytes = Encode(message);
    for (int round = 0; round < 200; ++round) {
      std::string bad = bytes;
      bad[random() % bad.size()] = static_cast<char>(random());
      const auto decoded = decode(bad);
      if (!decoded.ok()) ++refused;
      EXPECT_TRUE(!decoded.ok() || IsEncoded(*decoded, bad));
    }
  });
  EXPECT_GT(refused, 1000);
}

// --- In brief -----------------------------------------------------------------------------------

TEST(Brief, NamesMembersAndKeepsWhatOpensMemory) {
  const WorkerMessage granted = Granted{.update = kUpdate, .grants = {{.source = 1, .slot = 3, .id = 77}}};
  EXPECT_EQ(BriefOf(granted), "{update: update 12.2 (term 7, epoch 3), grants: 1 [{source: 1, slot: 3}]}");
  EXPECT_EQ(BriefOf(WorkerMessage(kMap)),
            "{epoch: 4, regions: 2, places: 1 [{region: 1, offset: 1099511627776}]}");
  EXPECT_EQ(BriefOf(WorkerMessage(Heartbeat{})), "");
}

TEST(Brief, IsOnePrintableLineWithinItsLimit) {
  const WorkerMessage failed = Failed{.update = kUpdate, .reason = {Code::kInternal, "two\nlines"}};
  EXPECT_THAT(BriefOf(failed), HasSubstr("two lines"));
  std::string accents;
  for (int i = 0; i < 1000; ++i) accents += "\xc3\xa9";
  const std::string cut =
      BriefOf(WorkerMessage(EngineCommandResult{.order = 1, .status = {Code::kInternal, accents}}));
  EXPECT_LE(cut.size(), kMaxTracedBytes);
  EXPECT_GE(cut.size(), kMaxTracedBytes - 1);
  EXPECT_TRUE(cut.ends_with("...") && IsUtf8(cut)) << cut;
}

// --- Versions -----------------------------------------------------------------------------------

TEST(Greeting, AHelloOfVersion2IsToldThatItIsOne) {
  // As version 2 wrote it: protobuf.
  const std::string old(
      "\x0a\x2c\x08\x02\x12\x01j\x1a\x06policy\x22\x05\x08\x01\x12\x01"
      "a\x28\x01\x31\x07\0\0\0\0\0\0\0\x42\x01h\x5a\x02\x10\x01\x62\x02\x10\x01\x6a\0",
      46);
  const auto decoded = DecodeWorkerMessage(old);
  ASSERT_TRUE(decoded.ok()) << decoded.status().ToString();
  EXPECT_EQ(std::get<Hello>(*decoded).protocol, 2U);
  EXPECT_EQ(
      CheckProtocol(2).message(),
      "the controller speaks protocol version 7, and the worker 2; use the same weightcast on all hosts");
  EXPECT_TRUE(CheckProtocol(kProtocolVersion).ok());
}

TEST(Greeting, AHelloOfALaterVersionIsToldThatItIsOne) {
  std::string later("\x0a\x05\x08\x00what", 8);
  later[3] = kProtocolVersion + 1;
  const auto decoded = DecodeWorkerMessage(later);
  ASSERT_TRUE(decoded.ok()) << decoded.status().ToString();
  EXPECT_EQ(std::get<Hello>(*decoded).protocol, kProtocolVersion + 1);
}

TEST(Greeting, ARefusalIsAsInVersion2) {
  EXPECT_EQ(Encode(Refused{{Code::kProtocol, "no"}}), "\x12\x08\x0a\x06\x08\x0a\x12\x02no");
}

TEST(Greeting, WhatVersion2ReadsOfAHelloComesFirst) {
  Hello hello = std::get<Hello>(WorkerMessages()[0]);
  hello.protocol = kProtocolVersion;
  const std::string bytes = Encode(WorkerMessage(hello));
  const std::string first("\x08\x07\x1a\x06policy\x31\x63\0\0\0\0\0\0\0\x7a", 20);
  EXPECT_EQ(bytes.find(first), bytes.size() > 129 ? 3U : 2U) << "behind 0x0a and the length";
}

TEST(Greeting, WhatAHelloSaysTwiceMustBeTheSame) {
  std::string bytes = Encode(WorkerMessages()[0]);
  const size_t at = bytes.find("policy");
  bytes[at] = 'P';
  EXPECT_THAT(DecodeWorkerMessage(bytes).status().message(),
              HasSubstr("its first bytes differ from its fields"));
}

// --- Visitors -----------------------------------------------------------------------------------

struct Forgetful {
  int first = 0;
  std::string second;
  std::vector<Status> third;
};
constexpr auto Fields(Is<Forgetful> auto& m, auto&& visit) {
  return visit(F("first", m.first), F("second", m.second));
}
static_assert(MembersOf<Forgetful>() == 3 && kFields<Forgetful> == 2);
static_assert(!kComplete<Forgetful> && kComplete<Hello> && kComplete<LandingMap> && kComplete<Suspended>);

struct Hasher : FieldHash<Hasher> {
  using FieldHash::Add;
};
template <typename Message>
uint64_t HashOf(const Message& message) {
  Hasher hash;
  std::visit([&](const auto& what) { hash(message.index(), what); }, message);
  return hash.Hash();
}

TEST(Visitors, AMemberThatDiffersMakesAnotherHash) {
  std::set<uint64_t> seen;
  size_t made = 0;
  const auto see = [&](const WorkerMessage& message) {
    seen.insert(HashOf(message));
    ++made;
  };
  for (const auto& message : WorkerMessages()) see(message);
  Ready ready = std::get<Ready>(WorkerMessages()[6]);
  ready.update.term.id += 1;
  see(ready);
  ready.sources[0].bytes += 1;
  see(ready);
  ready.sources.pop_back();
  see(ready);
  EXPECT_EQ(seen.size(), made);
  // Labels are not compared.
  Serving serving{.update = kUpdate, .version = kVersion};
  const uint64_t before = HashOf(WorkerMessage(serving));
  serving.version.label = "other";
  EXPECT_EQ(HashOf(WorkerMessage(serving)), before);
}

TEST(Visitors, MessagesReadAsWords) {
  EXPECT_EQ(
      TextOf(WorkerMessage(Failed{.update = kUpdate, .destination = 5, .reason = {Code::kFenced, "late"}})),
      "Failed{update: update 12.2 (term 7, epoch 3), destination: 5, reason: fenced: late}");
  EXPECT_EQ(TextOf(WorkerMessage(Heartbeat{})), "Heartbeat");
  EXPECT_EQ(TextOf(ControllerMessage(Offered{.tensors = {kShard.tensor}})),
            "Offered{tensors: 1 [{name: h.0.attn.w, dtype: U64, shape: 2 [768, 2304]}]}");
}

TEST(Names, AreThoseOfTheDocuments) {
  EXPECT_EQ(ToString(kTrainer), "trainer 3");
  EXPECT_EQ(ToString(kRank), "engine rollout-1 rank 1");
  EXPECT_EQ(ToString(kUpdate), "update 12.2 (term 7, epoch 3)");
  EXPECT_EQ(NameOf(WorkerMessages()[0]), "Hello");
  EXPECT_EQ(NameOf(ControllerMessages()[5]), "GrantRequest");
  EXPECT_EQ(NameOf(EngineState::kJoining), "JOINING");
  EXPECT_EQ(NameOf(EngineState::kFailed), "FAILED");
  EXPECT_EQ(NameOf(Landing::kInPlace), "in_place");
}

}  // namespace
}  // namespace weightcast::protocol
