#include "wire/codec.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "base/strings.h"
#include "wire/limits.h"

namespace weightcast::wire {
namespace {

using ::testing::HasSubstr;

const Term kTerm{.number = 7, .id = 0xfedcba9876543210};
const UpdateId kUpdate{.term = kTerm, .epoch = 3, .sequence = 12, .attempt = 2};
const Version kVersion{.run = 2, .number = 80, .origin = 77, .label = "step-80"};
const WorkerName kTrainer{.role = Role::kTrainer, .engine = "", .rank = 3};
const WorkerName kRank{.role = Role::kInference, .engine = "rollout-1", .rank = 1};
const weightcast::Status kReason(Code::kPeerDead, "trainer 1 is lost \xff");
const LandingMap kMap{.epoch = 4,
                      .regions = {std::string("\0key", 4), "b"},
                      .places = {{.region = 1, .offset = uint64_t{1} << 40, .shard = ~uint64_t{0}}}};
const ShardInfo kShard{.tensor = {.name = "h.0.attn.w", .dtype = DType::kU64, .shape = {768, 2304}},
                       .box = {.offset = {0, 1152}, .size = {768, 1152}},
                       .declared = true};

std::vector<WorkerMessage> WorkerMessages() {
  return {
      Hello{.protocol = 9,
            .job = "j",
            .model = "policy",
            .name = kRank,
            .world_size = 4,
            .incarnation = 99,
            .addresses = {"10.0.0.1:4711", "[fe80::1%eth0]:4711"},
            .host = "node-3",
            .landing = Landing::kShadow,
            .state = EngineState::kServing,
            .version = kVersion,
            .newest = {.run = 2, .number = 81},
            .run = {.number = 3, .origin = 77}},
      Register{.shards = {kShard, {.tensor = {.name = "s", .dtype = DType::kF32, .shape = {}}, .box = {}}},
               .rules = "{}",
               .landing = Landing::kShadow,
               .state = EngineState::kServing,
               .version = kVersion,
               .shares = false,
               .landed = {.run = 2, .number = 5},
               .controlled = true,
               .newest = {.run = 2, .number = 81},
               .unwanted = {"lm_head.weight", "{**}.bias"},
               .group_model = "draft"},
      kMap,
      Prepared{.epoch = 5, .connections = {"trainer 0: shm", "trainer 1: tcp"}},
      Published{.number = 81, .run = {.number = 3, .origin = 77}, .hold = true, .label = "step-81"},
      Granted{.update = kUpdate, .grants = {{.source = 1, .slot = 3, .id = 77}}},
      Ready{.update = kUpdate,
            .bytes = 17,
            .seconds = 1.5,
            .sources = {{.source = 3, .bytes = uint64_t{1} << 41, .seconds = 0.5}, {.source = 9}}},
      Committed{.update = kUpdate},
      Serving{.update = kUpdate, .version = kVersion},
      Aborted{.update = kUpdate, .lost = true, .landed = kVersion},
      Failed{.update = kUpdate, .destination = 5, .reason = kReason},
      Suspended{},
      Steered{.order = 7, .status = kReason},
      Cancel{.number = 81},
      Heartbeat{},
      Goodbye{},
      AskOffered{},
      SentDigests{.update = kUpdate, .destination = 2, .part = 1, .digests = {{1, 2}, {(1ULL << 61) - 2, 0}}},
  };
}

std::vector<ControllerMessage> ControllerMessages() {
  return {
      Welcome{.term = kTerm, .run = {.number = 2, .origin = 77}, .lease_seconds = 0.5},
      Refused{.reason = kReason},
      Plan{.epoch = 3,
           .run = {.number = 2, .origin = 77},
           .table = std::string(1000, '\xaa'),
           .table_file = "/shared/epoch-3/t",
           .peers = {{.name = kTrainer, .incarnation = 5, .addresses = {"a:1"}},
                     {.name = kRank, .incarnation = 0, .addresses = {}}},
           .gives = true},
      PeerLanding{.destination = 4, .map = kMap},
      Superseded{.version = kVersion},
      GrantRequest{.update = kUpdate, .version = kVersion},
      Start{.update = kUpdate, .version = kVersion, .destination = 4, .slot = 2, .grant = 78},
      Commit{.update = kUpdate},
      Serve{.update = kUpdate},
      Stop{.update = kUpdate, .destination = 9},
      Abort{.update = kUpdate, .reason = kReason, .version = kVersion, .started = true},
      Release{.update = kUpdate, .version = kVersion},
      Done{.update = kUpdate,
           .version = kVersion,
           .met_policy = true,
           .reason = kReason,
           .engines = {{.engine = "rollout-1", .committed = true, .reason = kReason, .rank = 2}},
           .senders = {{.name = kTrainer, .bytes = 1, .seconds = 2}},
           .receivers = {{.name = kRank, .bytes = 3, .seconds = 4}},
           .routes = {{.sender = kTrainer, .receiver = kRank, .bytes = 7, .seconds = 8}},
           .seconds = 5},
      Lost{.name = kRank, .reason = kReason},
      Steer{.order = 7, .move = Move::kEvict, .version = kVersion, .reason = kReason},
      Controlled{},
      Heartbeat{},
      Offered{.tensors = {kShard.tensor, {.name = "s", .dtype = DType::kF32, .shape = {}}}},
      SourceDigests{.update = kUpdate, .source = 3, .part = 1, .digests = {{1, 2}, {3, (1ULL << 61) - 2}}},
  };
}

ClusterView View() {
  return {.term = kTerm,
          .job = "j",
          .models = {{.model = "policy",
                      .epoch = 3,
                      .phase = "writing",
                      .version = kVersion,
                      .update = kUpdate,
                      .workers = {{.name = kRank,
                                   .host = "h",
                                   .incarnation = 4,
                                   .alive = true,
                                   .prepared = true,
                                   .state = EngineState::kReady,
                                   .version = kVersion,
                                   .addresses = {"a:1"},
                                   .connections = {"trainer 0: shm"}}},
                      .engines = {{.name = "rollout-1",
                                   .incarnation = 77,
                                   .ranks = 2,
                                   .state = EngineState::kFailed,
                                   .version = kVersion,
                                   .last_error = "e"}},
                      .last_error = "x",
                      .senders = {{.name = kTrainer, .bytes = 1, .seconds = 2}},
                      .routes = {{.sender = kTrainer, .receiver = kRank, .bytes = 7, .seconds = 8}}}}};
}

TEST(Codec, EveryWorkerMessageSurvives) {
  const auto messages = WorkerMessages();
  ASSERT_EQ(messages.size(), std::variant_size_v<WorkerMessage>);
  for (size_t i = 0; i < messages.size(); ++i) {
    ASSERT_EQ(messages[i].index(), i);
    const auto decoded = DecodeWorkerMessage(Encode(messages[i]));
    ASSERT_TRUE(decoded.ok()) << NameOf(messages[i]) << ": " << decoded.status().ToString();
    EXPECT_TRUE(*decoded == messages[i]) << NameOf(messages[i]);
  }
}

TEST(Codec, TheOriginAndTheLabelOfAVersionTravel) {
  const WorkerMessage message = Serving{.update = kUpdate, .version = kVersion};
  const auto decoded = DecodeWorkerMessage(Encode(message));
  ASSERT_TRUE(decoded.ok());
  EXPECT_EQ(std::get<Serving>(*decoded).version, kVersion);
  EXPECT_EQ(std::get<Serving>(*decoded).version.label, "step-80");
}

TEST(Codec, EveryControllerMessageSurvives) {
  const auto messages = ControllerMessages();
  ASSERT_EQ(messages.size(), std::variant_size_v<ControllerMessage>);
  for (size_t i = 0; i < messages.size(); ++i) {
    ASSERT_EQ(messages[i].index(), i);
    const auto decoded = DecodeControllerMessage(Encode(messages[i]));
    ASSERT_TRUE(decoded.ok()) << NameOf(messages[i]) << ": " << decoded.status().ToString();
    EXPECT_TRUE(*decoded == messages[i]) << NameOf(messages[i]);
  }
}

TEST(Codec, AnAbortSaysWhetherSourcesWereTold) {
  for (const bool started : {false, true}) {
    const ControllerMessage abort = Abort{.update = kUpdate, .reason = kReason, .started = started};
    EXPECT_TRUE(*DecodeControllerMessage(Encode(abort)) == abort);
  }
}

TEST(Codec, AViewSurvives) {
  const auto decoded = DecodeClusterView(Encode(View()));
  ASSERT_TRUE(decoded.ok()) << decoded.status().ToString();
  EXPECT_TRUE(*decoded == View());
}

void ExpectRefused(const WorkerMessage& message, const std::string& why) {
  const auto decoded = DecodeWorkerMessage(Encode(message));
  ASSERT_FALSE(decoded.ok()) << why;
  EXPECT_EQ(decoded.status().code(), Code::kProtocol);
  EXPECT_THAT(decoded.status().message(), HasSubstr(why));
}

TEST(Codec, RefusesWhatIsBeyondTheLimits) {
  Hello hello = std::get<Hello>(WorkerMessages()[0]);
  hello.job = std::string(kMaxNameBytes + 1, 'x');
  ExpectRefused(hello, "job has 257 bytes");
  hello.job = "two\nlines";
  ExpectRefused(hello, "control characters");
  hello.job = "j";
  hello.addresses.assign(kMaxAddresses + 1, "a:1");
  ExpectRefused(hello, "addresses has 65 entries");
  hello.addresses.clear();
  hello.incarnation = 0;
  ExpectRefused(hello, "incarnation is 0");

  ShardInfo shard = kShard;
  shard.tensor.shape.assign(kMaxDims + 1, 1);
  shard.box = {.offset = Shape(kMaxDims + 1), .size = shard.tensor.shape};
  ExpectRefused(Register{.shards = {shard}, .rules = ""}, "shape has 9 entries");
  shard = kShard;
  shard.box.size.pop_back();
  ExpectRefused(Register{.shards = {shard}, .rules = ""}, "differ in dimensions");
  shard = kShard;
  shard.tensor.dtype = static_cast<DType>(kDTypeCount);
  ExpectRefused(Register{.shards = {shard}, .rules = ""}, StrCat("dtype ", kDTypeCount, " is unknown"));

  LandingMap map = kMap;
  map.places[0].region = 2;
  ExpectRefused(map, "does not hold");
  ExpectRefused(Ready{.update = kUpdate, .bytes = 1, .seconds = -1}, "not a length of time");
  ExpectRefused(Ready{.update = kUpdate, .bytes = 1, .seconds = std::nan("")}, "not a length of time");
  ExpectRefused(Published{.number = -1}, "not between 0 and");
  ExpectRefused(Published{.number = INT64_MAX}, "not between 0 and");
  ExpectRefused(Published{.number = 1, .label = "\xff"}, "is not UTF-8");
  ExpectRefused(Published{.number = 1, .label = std::string(257, 'x')}, "has 257 bytes");
  ExpectRefused(Serving{.update = kUpdate, .version = {.number = 1, .label = "a\tb"}}, "control characters");
  ExpectRefused(Serving{.update = kUpdate, .version = {.run = 1, .number = INT64_MAX}}, "is above");
  ExpectRefused(Committed{.update = {.term = {.number = UINT64_MAX, .id = 1}}}, "is no time");
  const ControllerMessage welcome = Welcome{.term = {.number = kMaxTerm + 1, .id = 1}};
  EXPECT_THAT(DecodeControllerMessage(Encode(welcome)).status().message(), HasSubstr("is no time"));
  ExpectRefused(Failed{.update = kUpdate, .destination = -2, .reason = kReason}, "no number of a rank");
  ExpectRefused(Failed{.update = kUpdate, .destination = -1, .reason = {}}, "is 'ok'");
}

TEST(Codec, AnEndlessReasonIsCut) {
  const Lost lost{.name = kRank, .reason = {Code::kInternal, std::string(1 << 20, 'e')}};
  const auto decoded = DecodeControllerMessage(Encode(lost));
  ASSERT_TRUE(decoded.ok()) << decoded.status().ToString();
  EXPECT_EQ(std::get<Lost>(*decoded).reason.message().size(), kMaxStatusBytes);
}

TEST(Codec, EveryTruncationIsRefusedOrHarmless) {
  for (const auto& message : WorkerMessages()) {
    const std::string bytes = Encode(message);
    for (size_t size = 0; size < bytes.size(); ++size) {
      const auto decoded = DecodeWorkerMessage(std::string_view(bytes).substr(0, size));
      if (decoded.ok()) {
        EXPECT_FALSE(*decoded == message) << NameOf(message) << " cut to " << size << " bytes";
      } else {
        EXPECT_EQ(decoded.status().code(), Code::kProtocol);
      }
    }
  }
}

TEST(Codec, NothingAndUnknownMessagesAreRefused) {
  EXPECT_EQ(DecodeWorkerMessage("").status().code(), Code::kProtocol);
  EXPECT_EQ(DecodeControllerMessage("").status().code(), Code::kProtocol);
  EXPECT_EQ(DecodeWorkerMessage("\xfa\x07\x00").status().code(), Code::kProtocol);  // Field 127.
}

TEST(Codec, ManyElementsInFewBytesAreRefusedBeforeTheyCostMemory) {
  // registration (2) { shards (1) {} {} {} ... }: two bytes each.
  std::string inner;
  for (size_t i = 0; i < 5 * kMaxShards; ++i) inner += std::string("\x0a\x00", 2);
  std::string bytes = "\x12";
  for (size_t rest = inner.size(); rest != 0; rest >>= 7)
    bytes += static_cast<char>((rest & 0x7f) | (rest >= 0x80 ? 0x80 : 0));
  bytes += inner;
  const auto decoded = DecodeWorkerMessage(bytes);
  ASSERT_FALSE(decoded.ok());
  EXPECT_THAT(decoded.status().message(), HasSubstr("holds more than"));
}

TEST(Codec, FlippedBytesNeverCrash) {
  std::mt19937 random(1);
  int refused = 0;
  for (const auto& message : ControllerMessages()) {
    const std::string bytes = Encode(message);
    if (bytes.empty()) continue;
    for (int round = 0; round < 200; ++round) {
      std::string bad = bytes;
      bad[random() % bad.size()] = static_cast<char>(random());
      const auto decoded = DecodeControllerMessage(bad);
      if (!decoded.ok()) ++refused;
      if (decoded.ok()) {
        EXPECT_TRUE(DecodeControllerMessage(Encode(*decoded)).ok());
      }
    }
  }
  EXPECT_GT(refused, 100);
}

TEST(Names, AreThoseOfTheDocuments) {
  EXPECT_EQ(ToString(kTrainer), "trainer 3");
  EXPECT_EQ(ToString(kRank), "engine rollout-1 rank 1");
  EXPECT_EQ(ToString(kUpdate), "update 12.2 (term 7, epoch 3)");
  EXPECT_EQ(NameOf(EngineState::kJoining), "JOINING");
  EXPECT_EQ(NameOf(EngineState::kFailed), "FAILED");
  EXPECT_EQ(NameOf(Landing::kInPlace), "in_place");
}

}  // namespace
}  // namespace weightcast::wire
