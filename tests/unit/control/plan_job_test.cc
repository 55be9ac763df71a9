#include "control/plan_job.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <set>
#include <tuple>

#include "base/strings.h"
#include "plan/table_format.h"
#include "protocol/codec.h"
#include "protocol/identity.h"
#include "scratch_folder.h"

namespace weightcast::control {
namespace {

using ::testing::HasSubstr;

protocol::ShardInfo Whole(const std::string& name, Shape shape) {
  return {.tensor = {.name = name, .dtype = DType::kF32, .shape = shape},
          .box = {.offset = Shape(shape.size()), .size = shape},
          .declared = false};
}

PlanMember MemberOf(SessionId session, protocol::WorkerName name, std::vector<protocol::ShardInfo> shards,
                    const std::string& rules = {}) {
  return {.session = session,
          .member = {.name = std::move(name), .incarnation = 1000 + session, .addresses = {"10.0.0.1:1"}},
          .registration = std::make_shared<protocol::Register>(
              protocol::Register{.shards = std::move(shards), .rules = rules}),
          .landing = std::make_shared<protocol::LandingMap>(
              protocol::LandingMap{.epoch = 0, .regions = {"key"}, .places = {{.region = 0, .offset = 64}}})};
}

PlanJob TwoToTwo() {
  PlanJob job;
  job.job = "default";
  job.model = "policy";
  job.term = {.number = 5, .id = 7};
  job.epoch = 3;
  job.run.number = 2;
  for (uint32_t rank = 0; rank < 2; ++rank)
    job.sources.push_back(MemberOf(1 + rank, {.role = protocol::Role::kTrainer, .engine = "", .rank = rank},
                                   {Whole("w", {64, 4})}));
  for (const char* engine : {"a", "b"})
    job.engines.push_back(
        {MemberOf(static_cast<SessionId>(3 + job.engines.size()),
                  {.role = protocol::Role::kInference, .engine = engine, .rank = 0}, {Whole("w", {64, 4})})});
  return job;
}

std::vector<protocol::ControllerMessage> MessagesFor(const PlanOutput& output, SessionId session) {
  std::vector<protocol::ControllerMessage> messages;
  for (const auto& handout : output.handouts) {
    if (handout.session != session) continue;
    for (const SharedPacket& packet : handout.packets)
      messages.push_back(*protocol::DecodeControllerMessage(packet->parts[0]));
  }
  return messages;
}

TEST(PlanJob, EveryMemberGetsItsTableItsPeersAndItsLandings) {
  const PlanOutput output = RunPlan(TwoToTwo());
  ASSERT_TRUE(output.status.ok()) << output.status.ToString();
  EXPECT_THAT(output.summary, HasSubstr("epoch 3, 1 tensors, 2 trainers to 2 engines"));
  ASSERT_EQ(output.handouts.size(), 4U);
  const auto messages = MessagesFor(output, 1);
  const auto& plan = std::get<protocol::Plan>(messages[0]);
  EXPECT_EQ(plan.epoch, 3U);
  EXPECT_EQ(plan.run.number, 2U);
  ASSERT_EQ(plan.peers.size(), 2U);
  const auto table = plan::DecodeRankTable(plan.table);
  ASSERT_TRUE(table.ok()) << table.status().ToString();
  EXPECT_EQ(messages.size(), 1 + table->peers.size());
  for (size_t peer = 0; peer < plan.peers.size(); ++peer) {
    const bool meets =
        std::find(table->peers.begin(), table->peers.end(), static_cast<int>(peer)) != table->peers.end();
    EXPECT_EQ(plan.peers[peer].incarnation, meets ? 1003 + peer : 0);
  }
  for (size_t i = 1; i < messages.size(); ++i) {
    const auto& landing = std::get<protocol::PeerLanding>(messages[i]);
    EXPECT_EQ(landing.map.epoch, 3U);
    EXPECT_EQ(landing.map.places[0].offset, 64U);
  }
  const auto source = MessagesFor(output, 4);
  ASSERT_EQ(source.size(), 1U);
  const auto source_table = plan::DecodeRankTable(std::get<protocol::Plan>(source[0]).table);
  ASSERT_TRUE(source_table.ok());
  EXPECT_EQ(source_table->role, plan::RankTable::Role::kInference);
  EXPECT_EQ(source_table->rank, 1);
}

TEST(PlanJob, ASourceGetsTheKeysOfItsDestinationsAndADestinationNone) {
  PlanJob job = TwoToTwo();
  for (auto& engine : job.engines) engine[0].secret = "secret of " + engine[0].member.name.engine;
  const PlanOutput output = RunPlan(job);
  ASSERT_TRUE(output.status.ok()) << output.status.ToString();
  size_t keys = 0;
  for (SessionId session = 1; session <= 4; ++session) {
    const auto plan = std::get<protocol::Plan>(MessagesFor(output, session)[0]);
    for (size_t peer = 0; peer < plan.peers.size(); ++peer) {
      if (plan.peers[peer].key.empty()) continue;
      ASSERT_LE(session, 2U) << "a destination";
      const protocol::Member& source = job.sources[session - 1].member;
      EXPECT_EQ(plan.peers[peer].key,
                protocol::PairKey(job.engines[peer][0].secret,
                                  protocol::IdentityOf("default", source.name, source.incarnation)));
      EXPECT_NE(plan.peers[peer].incarnation, 0U);
      ++keys;
    }
  }
  EXPECT_GE(keys, 2U);
}

TEST(PlanJob, TheEngineThatDoesNotFitIsTheOneConcerned) {
  PlanJob job = TwoToTwo();
  job.engines[1][0].registration =
      std::make_shared<protocol::Register>(protocol::Register{.shards = {Whole("w", {64, 5})}, .rules = {}});
  PlanOutput output = RunPlan(job);
  EXPECT_FALSE(output.status.ok());
  EXPECT_THAT(output.status.message(), HasSubstr("[64, 5]"));
  EXPECT_EQ(output.concerned, std::vector<SessionId>{4});

  job.engines[1][0].registration = std::make_shared<protocol::Register>(
      protocol::Register{.shards = {Whole("w", {64, 4}), Whole("extra", {3})}, .rules = {}});
  output = RunPlan(job);
  EXPECT_THAT(output.status.message(), HasSubstr("extra"));
  EXPECT_EQ(output.concerned, std::vector<SessionId>{4});
}

TEST(PlanJob, AnEngineDoesNotGetAPartOfAFusedTensorFromOthersEither) {
  PlanJob job = TwoToTwo();
  const std::string rules = R"({"rules": [{"fuse": ["q", "k"], "to": "w"}]})";
  for (PlanMember& trainer : job.sources)
    trainer =
        MemberOf(trainer.session, trainer.member.name, {Whole("q", {32, 4}), Whole("k", {32, 4})}, rules);
  const PlanOutput planned = RunPlan(job);
  ASSERT_TRUE(planned.status.ok()) << planned.status.ToString();
  ASSERT_TRUE(planned.fused != nullptr);
  EXPECT_EQ(*planned.fused, (plan::FusedTensors{{"w", {.dim = 0, .starts = {0, 32}}}}));

  const auto half = [](SessionId session, uint32_t rank) {
    protocol::ShardInfo shard = Whole("w", {64, 4});
    shard.box = {.offset = {32 * rank, 0}, .size = {32, 4}};
    return MemberOf(session, {.role = protocol::Role::kInference, .engine = "b", .rank = rank}, {shard});
  };
  job.engines[1] = {half(7, 0), half(8, 1)};
  const PlanOutput refused = RunPlan(job);
  EXPECT_THAT(refused.status.message(), HasSubstr("its parts of 'q', 'k' as several shards of 'w'"));
  EXPECT_EQ(refused.concerned, (std::vector<SessionId>{7, 8}));

  // Engine a gives to b.
  PlanJob refill = job;
  refill.from_engines = true;
  refill.sources = refill.engines[0];
  refill.engines.erase(refill.engines.begin());
  refill.fused = planned.fused;
  EXPECT_THAT(RunPlan(refill).status.message(), HasSubstr("'w' is fused along dimension 0"));
  refill.fused = nullptr;  // A controller that has planned no trainers yet.
  EXPECT_THAT(RunPlan(refill).status.message(), HasSubstr("no engine holds as it is"));
  refill.fused = std::make_shared<const plan::FusedTensors>();
  EXPECT_TRUE(RunPlan(refill).status.ok());

  // A box in q and one in k at each rank.
  const auto of_each = [](SessionId session, uint32_t rank) {
    protocol::ShardInfo q = Whole("w", {64, 4});
    q.box = {.offset = {16 * rank, 0}, .size = {16, 4}};
    protocol::ShardInfo k = q;
    k.box.offset[0] += 32;
    return MemberOf(session, {.role = protocol::Role::kInference, .engine = "b", .rank = rank}, {k, q});
  };
  job.engines[1] = refill.engines[0] = {of_each(7, 0), of_each(8, 1)};
  refill.fused = planned.fused;
  EXPECT_EQ(RunPlan(job).status.ToString(), "ok");
  EXPECT_EQ(RunPlan(refill).status.ToString(), "ok");
}

TEST(PlanJob, EnginesOfSeveralTensorParallelismsFillOneThatLacksAVersion) {
  const auto engine = [](SessionId first, const std::string& name, uint32_t ranks) {
    std::vector<PlanMember> members;
    for (uint32_t rank = 0; rank < ranks; ++rank) {
      protocol::ShardInfo part = Whole("w", {64, 4});
      part.box = {.offset = {64 / ranks * rank, 0}, .size = {64 / ranks, 4}};
      members.push_back(MemberOf(first + rank,
                                 {.role = protocol::Role::kInference, .engine = name, .rank = rank},
                                 {part, Whole("norm", {8})}));
    }
    return members;
  };
  PlanJob job;
  job.job = "default";
  job.model = "policy";
  job.term = {.number = 5, .id = 7};
  job.from_engines = true;
  job.fused = std::make_shared<const plan::FusedTensors>();
  for (const auto& [first, name, ranks] : {std::tuple{1, "a", 1}, {2, "b", 2}, {4, "c", 2}})
    std::ranges::move(engine(static_cast<SessionId>(first), name, static_cast<uint32_t>(ranks)),
                      std::back_inserter(job.sources));
  job.engines = {engine(6, "d", 4)};
  const PlanOutput output = RunPlan(job);
  ASSERT_EQ(output.status.ToString(), "ok");
  // Of w two halves, each held twice, and not the whole; of norm five replicas.
  std::set<int> of_w;
  for (SessionId session = 6; session < 10; ++session) {
    const auto messages = MessagesFor(output, session);
    ASSERT_EQ(messages.size(), 1U);
    const auto table = plan::DecodeRankTable(std::get<protocol::Plan>(messages[0]).table);
    ASSERT_TRUE(table.ok()) << table.status().ToString();
    of_w.insert(table->peers.begin(), table->peers.end());
  }
  EXPECT_GE(of_w.size(), 2U);
}

TEST(PlanJob, APlanThatIsTooLargeIsNobodysFault) {
  PlanJob job = TwoToTwo();
  job.memory = 1;
  const PlanOutput output = RunPlan(job);
  EXPECT_EQ(output.status.code(), Code::kExhausted);
  EXPECT_THAT(output.status.message(), HasSubstr("has 2 routes"));
  EXPECT_TRUE(output.concerned.empty());
  EXPECT_TRUE(output.handouts.empty());
}

TEST(PlanJob, ANewcomerThatDoesNotFitDoesNotEvictThoseThatServe) {
  PlanJob job = TwoToTwo();
  job.engines[0] = {
      MemberOf(9, {.role = protocol::Role::kInference, .engine = "a", .rank = 0}, {Whole("w", {64, 5})})};
  EXPECT_EQ(RunPlan(job).concerned, std::vector<SessionId>{9});
  job.engines.pop_back();
  EXPECT_EQ(RunPlan(job).concerned, std::vector<SessionId>{9}) << "the trainers stay";
}

TEST(PlanJob, WhenNoEngineFitsTheTrainersStay) {
  PlanJob job = TwoToTwo();
  for (auto& trainer : job.sources)
    trainer.registration = std::make_shared<protocol::Register>(
        protocol::Register{.shards = {Whole("v", {64, 4})}, .rules = {}});
  const PlanOutput output = RunPlan(job);
  EXPECT_EQ(output.status.code(), Code::kInvalidArgument);
  EXPECT_EQ(output.concerned, (std::vector<SessionId>{3, 4}));
}

TEST(PlanJob, TrainersMustAgreeOnRulesAndRulesAreChecked) {
  PlanJob job = TwoToTwo();
  job.sources[1] =
      MemberOf(2, {.role = protocol::Role::kTrainer, .engine = "", .rank = 1}, {Whole("w", {64, 4})}, "{}");
  PlanOutput output = RunPlan(job);
  EXPECT_THAT(output.status.message(), HasSubstr("different name rules"));
  EXPECT_EQ(output.concerned, (std::vector<SessionId>{1, 2}));
  for (auto& trainer : job.sources)
    trainer.registration = std::make_shared<protocol::Register>(
        protocol::Register{.shards = {Whole("w", {64, 4})}, .rules = "no json"});
  output = RunPlan(job);
  EXPECT_FALSE(output.status.ok());
  EXPECT_EQ(output.concerned, (std::vector<SessionId>{1, 2}));
}

TEST(PlanJob, DeclaredTensorsNeedNoPartner) {
  PlanJob job = TwoToTwo();
  protocol::ShardInfo declared = Whole("optimizer", {7});
  declared.declared = true;
  for (auto& trainer : job.sources)
    trainer.registration = std::make_shared<protocol::Register>(
        protocol::Register{.shards = {Whole("w", {64, 4}), declared}, .rules = {}});
  EXPECT_TRUE(RunPlan(job).status.ok());
}

class TableFolder : public ::testing::Test {
 protected:
  const test::ScratchFolder scratch_;
  const std::string folder_ = scratch_.path();
};

TEST_F(TableFolder, TablesGoThroughTheFolderWhole) {
  PlanJob job = TwoToTwo();
  job.tables = folder_;
  const PlanOutput output = RunPlan(job);
  ASSERT_TRUE(output.status.ok());
  EXPECT_TRUE(output.warning.empty()) << output.warning;
  const auto messages = MessagesFor(output, 2);
  const auto& plan = std::get<protocol::Plan>(messages[0]);
  EXPECT_TRUE(plan.table.empty());
  EXPECT_EQ(plan.table_file, "default/policy/term-5-7/epoch-3/trainer-1.table");
  std::ifstream file(folder_ + "/" + plan.table_file);
  const std::string bytes((std::istreambuf_iterator<char>(file)), {});
  const auto table = plan::DecodeRankTable(bytes);
  ASSERT_TRUE(table.ok()) << table.status().ToString();
  EXPECT_EQ(table->epoch, 3U);
  int files = 0;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(folder_)) {
    if (!entry.is_regular_file()) continue;
    ++files;
    EXPECT_EQ(entry.path().extension(), ".table") << "nothing half-written stays";
  }
  EXPECT_EQ(files, 4);
}

TEST_F(TableFolder, OldTablesGoAndAllElseStays) {
  PlanJob job = TwoToTwo();
  job.tables = folder_;
  const auto path = [&](const char* name) {
    return std::filesystem::path(folder_) / "default/policy" / name;
  };
  for (const char* name : {"term-4-9/epoch-9", "term-4-8/epoch-1", "term-5-7/epoch-1", "term-5-7/epoch-2",
                           "term-6-1/epoch-1", "notes"})
    std::filesystem::create_directories(path(name));
  const auto long_ago = std::filesystem::last_write_time(path("notes")) - std::chrono::hours(2);
  for (const char* name : {"term-4-9/epoch-9", "term-4-9", "term-4-8", "notes"})
    std::filesystem::last_write_time(path(name), long_ago);
  ASSERT_TRUE(RunPlan(job).status.ok());
  const auto there = [&](const char* name) { return std::filesystem::exists(path(name)); };
  EXPECT_FALSE(there("term-4-9"));
  EXPECT_TRUE(there("term-4-8/epoch-1")) << "its controller may still run: it has written lately";
  EXPECT_TRUE(there("term-6-1/epoch-1"));
  EXPECT_FALSE(there("term-5-7/epoch-1"));
  EXPECT_TRUE(there("term-5-7/epoch-2"));
  EXPECT_TRUE(there("notes"));
}

TEST_F(TableFolder, TwoControllersOfOneNameKeepTheirTables) {
  PlanJob one = TwoToTwo();
  PlanJob other = TwoToTwo();
  one.tables = other.tables = folder_;
  other.term = {.number = 6, .id = 8};
  other.epoch = 9;
  const PlanOutput first = RunPlan(one);
  ASSERT_TRUE(RunPlan(other).status.ok());
  const auto plan = std::get<protocol::Plan>(MessagesFor(first, 2)[0]);
  EXPECT_TRUE(std::filesystem::exists(folder_ + "/" + plan.table_file));
}

TEST_F(TableFolder, ABadFolderMeansByNetworkAndAWarning) {
  PlanJob job = TwoToTwo();
  job.tables = folder_ + "/file";
  std::ofstream(job.tables) << "not a folder";
  const PlanOutput output = RunPlan(job);
  ASSERT_TRUE(output.status.ok());
  EXPECT_THAT(output.warning, HasSubstr("tables go by network"));
  EXPECT_FALSE(std::get<protocol::Plan>(MessagesFor(output, 1)[0]).table.empty());
}

TEST_F(TableFolder, NamesCannotLeaveTheFolder) {
  PlanJob job = TwoToTwo();
  job.model = "../../x";
  job.tables = folder_;
  const auto path = WriteTable(job, protocol::Role::kTrainer, 0, "bytes");
  ASSERT_TRUE(path.ok());
  for (const auto& part : std::filesystem::path(*path)) EXPECT_NE(part, "..") << *path;
}

}  // namespace
}  // namespace weightcast::control
