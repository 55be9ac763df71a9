#pragma once

#include <string>
#include <vector>

#include "protocol/observer_messages.h"

/// One of each message, with something in every member.
namespace weightcast::protocol {

inline const Term kTerm{.number = 7, .id = 0xfedcba9876543210};
inline const UpdateId kUpdate{.term = kTerm, .epoch = 3, .sequence = 12, .attempt = 2};
inline const Version kVersion{.run = 2, .number = 80, .origin = 77, .label = "step-80"};
inline const WorkerName kTrainer{.role = Role::kTrainer, .engine = "", .rank = 3};
inline const WorkerName kRank{.role = Role::kInference, .engine = "rollout-1", .rank = 1};
inline const weightcast::Status kReason(Code::kPeerDead, "trainer 1 is lost \xff");
inline const LandingMap kMap{.epoch = 4,
                             .regions = {std::string("\0key", 4), "b"},
                             .places = {{.region = 1, .offset = uint64_t{1} << 40, .shard = ~uint64_t{0}}}};
inline const ShardInfo kShard{.tensor = {.name = "h.0.attn.w", .dtype = DType::kU64, .shape = {768, 2304}},
                              .box = {.offset = {0, 1152}, .size = {768, 1152}},
                              .declared = true};

inline std::vector<WorkerMessage> WorkerMessages() {
  return {
      Hello{.job = "j",
            .model = "policy",
            .name = kRank,
            .world_size = 4,
            .incarnation = 99,
            .secret = std::string(kSecretBytes, 's'),
            .addresses = {"10.0.0.1:4711", "[fe80::1%eth0]:4711"},
            .host = "node-3",
            .state = EngineState::kServing,
            .version = kVersion,
            .newest = {.run = 2, .number = 81},
            .run = {.number = 3, .origin = 77},
            .term = kTerm},
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
      EngineCommandResult{.order = 7, .status = kReason},
      Cancel{.number = 81},
      Heartbeat{},
      Leave{},
      AskOffered{},
      SentDigests{.update = kUpdate, .destination = 2, .part = 1, .digests = {{1, 2}, {(1ULL << 61) - 2, 0}}},
      Spans{.update = kUpdate,
            .spans = {{.kind = SpanKind::kSwitch, .seconds = 0.25, .stalled = 0.125},
                      {.kind = SpanKind::kWrite,
                       .peer = 3,
                       .part = 1,
                       .seconds = 1.5,
                       .bytes = uint64_t{1} << 41,
                       .pieces = 99,
                       .chunk = 1 << 20,
                       .lanes = 4,
                       .path = "tcp, 4 lanes"}}},
  };
}

inline std::vector<ControllerMessage> ControllerMessages() {
  return {
      Welcome{.term = kTerm, .run = {.number = 2, .origin = 77}, .lease_seconds = 0.5},
      Refused{.reason = kReason},
      Plan{.epoch = 3,
           .run = {.number = 2, .origin = 77},
           .table = std::string(1000, '\xaa'),
           .table_file = "/shared/epoch-3/t",
           .peers = {{.name = kTrainer, .incarnation = 5, .addresses = {"a:1"}, .key = "k"},
                     {.name = kRank, .incarnation = 0, .addresses = {}}},
           .gives = true},
      PeerLanding{.destination = 4, .map = kMap},
      Superseded{.version = kVersion},
      GrantRequest{.update = kUpdate, .version = kVersion},
      Start{.update = kUpdate, .version = kVersion, .grants = {{.destination = 4, .slot = 2, .grant = 78}}},
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
           .seconds = 5,
           .bytes = 3,
           .compared = 9,
           .compared_ranks = 1},
      Lost{.name = kRank, .reason = kReason},
      EngineCommand{.order = 7, .command = Command::kDrain, .version = kVersion, .reason = kReason},
      Controlled{},
      Heartbeat{},
      Offered{.tensors = {kShard.tensor, {.name = "s", .dtype = DType::kF32, .shape = {}}}},
      SourceDigests{.update = kUpdate, .source = 3, .part = 1, .digests = {{1, 2}, {3, (1ULL << 61) - 2}}},
  };
}

inline ClusterView View() {
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

inline Trace SampleTrace() {
  return {.first = 70,
          .messages = {{.microseconds = 1'700'000'000'000'000,
                        .model = "policy",
                        .worker = kRank,
                        .received = true,
                        .number = 3,
                        .bytes = 27,
                        .name = "Granted",
                        .fields = "{update: update 12.2 (term 7, epoch 3)}"}}};
}

inline std::vector<ObserverMessage> ObserverMessages() {
  return {AskTrace{.from = 70}, AskUpdates{.model = "m", .number = 81, .last = 200}};
}

inline std::vector<ObserverReply> ObserverReplies() {
  return {View(), SampleTrace(), Updates{.reason = kReason, .json = "[{}]"}};
}

}  // namespace weightcast::protocol
