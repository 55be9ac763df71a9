#include "checkpoint/version_folder.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <barrier>
#include <string>
#include <thread>
#include <vector>

#include "base/strings.h"
#include "checkpoint/safetensors.h"
#include "child_process.h"
#include "unit/checkpoint/scratch.h"

namespace weightcast::checkpoint {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

// What a rank writes: eight bytes that name the attempt.
Header HeaderOf() { return MakeHeader(std::vector<TensorInfo>{{"w", DType::kU8, {8}}}, {}).value(); }

Status WriteRank(const VersionFolder& folder, std::string content) {
  content.resize(8, ' ');
  const std::vector<std::span<const std::byte>> data = {BytesOf(content)};
  return WriteSafetensors(folder.file(), HeaderOf(), data, {.sync = false});
}

Result<bool> WriteAndCommit(const OutputRank& rank, std::string_view version, std::string_view attempt) {
  auto folder = VersionFolder::Begin(rank, version, attempt, {.sync = false});
  if (!folder.ok()) return folder.status();
  WC_RETURN_IF_ERROR(WriteRank(*folder, std::string(attempt)));
  return folder->Commit();
}

std::string ContentOf(const std::filesystem::path& path) {
  const auto file = SafetensorsFile::Open(path);
  if (!file.ok()) return file.status().ToString();
  std::string all;
  for (size_t i = 0; i < file->header().tensors.size(); ++i) {
    const StoredTensor& tensor = file->header().tensors[i];
    all += ReadTensor(*file, i, static_cast<size_t>(tensor.end - tensor.begin));
  }
  return all;
}

TEST(VersionFolder, OfOneRankAppearsAtCommit) {
  const Scratch scratch;
  const OutputRank rank{.output = scratch / "out" / "deep", .engine = "rollout-0"};
  auto folder = VersionFolder::Begin(rank, "2:80", "7.1");
  ASSERT_TRUE(folder.ok()) << folder.status().ToString();
  EXPECT_EQ(folder->final_path(), scratch / "out" / "deep" / "rollout-0" / "2:80");
  ASSERT_TRUE(WriteRank(*folder, "a").ok());
  EXPECT_FALSE(std::filesystem::exists(folder->final_path()));
  const auto there = folder->Commit();
  ASSERT_TRUE(there.ok()) << there.status().ToString();
  EXPECT_TRUE(*there);
  EXPECT_THAT(Everything(scratch / "out"), ElementsAre("deep", "deep/rollout-0", "deep/rollout-0/2:80",
                                                       "deep/rollout-0/2:80/model.safetensors"));
}

TEST(VersionFolder, OfSeveralRanksAppearsWithTheLast) {
  const Scratch scratch;
  const auto rank = [&](int r) {
    return OutputRank{.output = scratch.path(), .engine = "e", .rank = r, .ranks = 3};
  };
  EXPECT_FALSE(WriteAndCommit(rank(2), "1", "x").value());
  EXPECT_FALSE(WriteAndCommit(rank(0), "1", "x").value());
  EXPECT_FALSE(std::filesystem::exists(scratch / "e" / "1"));
  EXPECT_TRUE(WriteAndCommit(rank(1), "1", "x").value());
  EXPECT_THAT(Everything(scratch / "e"), ElementsAre("1", "1/model-rank-00000-of-00003.safetensors",
                                                     "1/model-rank-00001-of-00003.safetensors",
                                                     "1/model-rank-00002-of-00003.safetensors"));
}

TEST(VersionFolder, NeverMixesAttempts) {
  const Scratch scratch;
  const auto rank = [&](int r) {
    return OutputRank{.output = scratch.path(), .engine = "e", .rank = r, .ranks = 2};
  };
  EXPECT_FALSE(WriteAndCommit(rank(0), "1", "first").value());
  EXPECT_FALSE(WriteAndCommit(rank(1), "1", "second").value()) << "rank 0 has nothing of the second attempt";
  EXPECT_FALSE(std::filesystem::exists(scratch / "e" / "1"));
  EXPECT_TRUE(WriteAndCommit(rank(0), "1", "second").value());
  EXPECT_EQ(ContentOf(scratch / "e" / "1" / "model-rank-00000-of-00002.safetensors"), "second  ");
  EXPECT_EQ(ContentOf(scratch / "e" / "1" / "model-rank-00001-of-00002.safetensors"), "second  ");
  EXPECT_EQ(Everything(scratch / "e").size(), 3u) << "what is left of the first attempt goes";
}

TEST(VersionFolder, ReplacesAnOlderOneOfTheSameVersion) {
  const Scratch scratch;
  const OutputRank rank{.output = scratch.path(), .engine = "e"};
  ASSERT_TRUE(WriteAndCommit(rank, "1", "old").value());
  WriteText(scratch / "e" / "1" / "extra", "");
  ASSERT_TRUE(WriteAndCommit(rank, "1-b", "b").value());
  ASSERT_TRUE(WriteAndCommit(rank, "1", "new").value());
  EXPECT_THAT(Everything(scratch / "e"),
              ElementsAre("1", "1-b", "1-b/model.safetensors", "1/model.safetensors"));
  EXPECT_EQ(ContentOf(scratch / "e" / "1" / "model.safetensors"), "new     ");
}

TEST(VersionFolder, LeavesNothingWhenGivenUp) {
  const Scratch scratch;
  const OutputRank rank{.output = scratch.path(), .engine = "e"};
  {
    auto folder = VersionFolder::Begin(rank, "1", "x");
    ASSERT_TRUE(folder.ok());
    ASSERT_TRUE(WriteRank(*folder, "x").ok());
  }
  EXPECT_THAT(Everything(scratch.path()), ElementsAre("e"));
}

TEST(VersionFolder, TellsTheOthersThatARankGaveUp) {
  const Scratch scratch;
  auto rank0 =
      VersionFolder::Begin({.output = scratch.path(), .engine = "e", .rank = 0, .ranks = 2}, "1", "x");
  ASSERT_TRUE(rank0.ok());
  ASSERT_TRUE(WriteRank(*rank0, "x").ok());
  ASSERT_TRUE(
      VersionFolder::Begin({.output = scratch.path(), .engine = "e", .rank = 1, .ranks = 2}, "1", "x").ok());
  const auto outcome = rank0->Commit();
  EXPECT_EQ(outcome.status().code(), Code::kCancelled);
  EXPECT_THAT(outcome.status().message(), HasSubstr("version 1 of engine e"));
  EXPECT_FALSE(std::filesystem::exists(scratch / "e" / "1"));
}

TEST(VersionFolder, RefusesCommitWithoutAFileAndNamesThatLeaveTheFolder) {
  const Scratch scratch;
  const OutputRank rank{.output = scratch.path(), .engine = "e"};
  EXPECT_THAT(VersionFolder::Begin(rank, "1", "x")->Commit().status().message(),
              HasSubstr("has not been written"));
  EXPECT_FALSE(VersionFolder::Begin(rank, "../1", "x").ok());
  EXPECT_FALSE(VersionFolder::Begin(rank, "1@2", "x").ok());
  EXPECT_FALSE(VersionFolder::Begin(rank, "1", "x/y").ok());
  EXPECT_FALSE(VersionFolder::Begin({.output = scratch.path(), .engine = ".."}, "1", "x").ok());
  EXPECT_FALSE(
      VersionFolder::Begin({.output = scratch.path(), .engine = "e", .rank = 2, .ranks = 2}, "1", "x").ok());
}

TEST(VersionFolder, RanksThatFinishAtOnceMakeItAppearOnce) {
  constexpr int kRanks = 4;
  constexpr int kVersions = 40;
  const Scratch scratch;
  std::barrier together(kRanks);
  std::atomic<int> completed = 0;
  std::vector<std::thread> threads;
  for (int r = 0; r < kRanks; ++r)
    threads.emplace_back([&, r] {
      const OutputRank rank{.output = scratch.path(), .engine = "e", .rank = r, .ranks = kRanks};
      for (int v = 0; v < kVersions; ++v) {
        // Every version twice, so that half of them replace one.
        auto folder = VersionFolder::Begin(rank, std::to_string(v / 2), StrCat("try", v), {.sync = false});
        ASSERT_TRUE(folder.ok()) << folder.status().ToString();
        ASSERT_TRUE(WriteRank(*folder, StrCat("try", v)).ok());
        together.arrive_and_wait();
        const auto there = folder->Commit();
        ASSERT_TRUE(there.ok()) << there.status().ToString();
        completed += *there ? 1 : 0;
        together.arrive_and_wait();
        ASSERT_EQ(ContentOf(folder->final_path() / RankFileName(r, kRanks)).substr(0, 3), "try");
      }
    });
  for (auto& thread : threads) thread.join();
  EXPECT_GE(completed, kVersions);
  for (int v = 1; v < kVersions; v += 2)
    for (int r = 0; r < kRanks; ++r)
      EXPECT_EQ(ContentOf(scratch / "e" / std::to_string(v / 2) / RankFileName(r, kRanks)),
                StrCat("try", v).append(8 - StrCat("try", v).size(), ' '));
  EXPECT_EQ(Everything(scratch / "e").size(), static_cast<size_t>(kVersions / 2 * (kRanks + 1)))
      << "no leftovers";
}

// A process that dies in the middle of its file.
void WriteHalfAndDie(const OutputRank& rank, std::string_view version, std::string_view attempt) {
  test::Process child = test::Process::Fork([&]() -> int {
    auto folder = VersionFolder::Begin(rank, version, attempt, {.sync = false});
    auto writer = SafetensorsWriter::Create(folder->file(), HeaderOf(), {.sync = false});
    const bool written = folder.ok() && writer.ok() && writer->Append(BytesOf("half")).ok();
    _exit(written ? 0 : 1);  // Nothing is destroyed.
  });
  ASSERT_EQ(child.Wait(), 0);
}

TEST(RemoveLeftovers, ClearsWhatADeadProcessOfThisRankLeft) {
  const Scratch scratch;
  const auto rank = [&](int r) {
    return OutputRank{.output = scratch.path(), .engine = "e", .rank = r, .ranks = 2};
  };
  ASSERT_TRUE(RemoveLeftovers(rank(0)).ok()) << "there is no folder yet";
  ASSERT_NO_FATAL_FAILURE(WriteHalfAndDie(rank(0), "1", "x"));
  EXPECT_FALSE(WriteAndCommit(rank(1), "2", "x").value());
  ASSERT_TRUE(WriteAndCommit({.output = scratch.path(), .engine = "e"}, "0", "x").value());
  std::filesystem::create_directories(scratch / "e" / ".3@x.complete");
  WriteText(scratch / "e" / ".3@x.complete" / "model.safetensors", "");

  ASSERT_TRUE(RemoveLeftovers(rank(0)).ok());
  EXPECT_THAT(Everything(scratch / "e"),
              ElementsAre(".2@x.partial", ".2@x.partial/model-rank-00001-of-00002.safetensors", "0",
                          "0/model.safetensors"));
  EXPECT_TRUE(WriteAndCommit(rank(0), "2", "x").value()) << "rank 1 is not disturbed";
}

TEST(RemoveLeftovers, MakesTheOtherRanksFailRatherThanCompleteWithAnOldFile) {
  const Scratch scratch;
  const auto rank = [&](int r) {
    return OutputRank{.output = scratch.path(), .engine = "e", .rank = r, .ranks = 2};
  };
  auto survivor = VersionFolder::Begin(rank(1), "1", "x", {.sync = false});
  ASSERT_TRUE(survivor.ok());
  EXPECT_FALSE(WriteAndCommit(rank(0), "1", "x").value());
  ASSERT_TRUE(RemoveLeftovers(rank(0)).ok());  // rank 0 has died and come back
  const Status written = WriteRank(*survivor, "x");
  EXPECT_FALSE(written.ok()) << "its staging folder is gone";
  EXPECT_EQ(survivor->Commit().status().code(), Code::kCancelled);
}

TEST(ShardMetadata, TellsShapeAndOffsetOfEachTensor) {
  const Metadata metadata =
      ShardMetadata({.output = "", .engine = "e", .rank = 1, .ranks = 2},
                    {{{"a\"b", DType::kBF16, {8, 4}}, {{4, 0}, {4, 4}}}, {{"s", DType::kF32, {}}, {{}, {}}}});
  EXPECT_THAT(
      metadata,
      ElementsAre(testing::Pair("format", "pt"), testing::Pair("weightcast.rank", "1"),
                  testing::Pair("weightcast.ranks", "2"),
                  testing::Pair("weightcast.shards",
                                R"({"a\"b":{"offset":[4,0],"shape":[8,4]},"s":{"offset":[],"shape":[]}})")));
}

}  // namespace
}  // namespace weightcast::checkpoint
