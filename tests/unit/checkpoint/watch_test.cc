#include "checkpoint/watch.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <string>
#include <thread>
#include <vector>

#include "unit/checkpoint/scratch.h"

namespace weightcast::checkpoint {
namespace {

using std::chrono::seconds;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

// A folder with a checkpoint of one tensor of this name, where `path` says.
void MakeCheckpoint(const std::filesystem::path& path, std::string_view tensor = "w") {
  std::filesystem::create_directory(path);
  WriteText(path / "model.safetensors", FileOf(std::string("{\"").append(tensor) +
                                                   R"(":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}})",
                                               "x"));
}

class FolderWatcherTest : public testing::Test {
 protected:
  void Publish(std::string_view name, std::string_view tensor = "w") {
    MakeCheckpoint(scratch_ / ".new", tensor);
    std::filesystem::rename(scratch_ / ".new", scratch_ / name);
  }
  FolderWatcher Open() {
    auto watcher = FolderWatcher::Open(scratch_.path());
    EXPECT_TRUE(watcher.ok()) << watcher.status().ToString();
    return std::move(watcher).value();
  }
  // Names of all that has come so far.
  static std::vector<std::string> Names(FolderWatcher& watcher) {
    std::vector<std::string> names;
    while (true) {
      auto arrival = watcher.Next(Duration(0));
      EXPECT_TRUE(arrival.ok()) << arrival.status().ToString();
      if (!arrival.ok() || !*arrival) return names;
      EXPECT_TRUE((*arrival)->checkpoint.ok()) << (*arrival)->checkpoint.status().ToString();
      names.push_back((*arrival)->name);
    }
  }
  Scratch scratch_;
};

TEST_F(FolderWatcherTest, GivesWhatIsThereInNaturalOrder) {
  for (const char* name : {"step-10", "step-9", "2", "10", "step-009b", "1", "2:1"}) Publish(name);
  WriteText(scratch_ / "5", "a file");
  MakeCheckpoint(scratch_ / ".hidden");
  auto watcher = Open();
  EXPECT_THAT(Names(watcher), ElementsAre("1", "2", "2:1", "10", "step-9", "step-009b", "step-10"));
  EXPECT_THAT(Names(watcher), IsEmpty());
}

TEST_F(FolderWatcherTest, GivesWhatIsRenamedIntoPlaceInThatOrder) {
  auto watcher = Open();
  EXPECT_THAT(Names(watcher), IsEmpty());
  for (const char* name : {"3", "1", ".2", "2"}) Publish(name);
  std::filesystem::create_directory(scratch_ / "made-in-place");
  WriteText(scratch_ / ".f", "");
  std::filesystem::rename(scratch_ / ".f", scratch_ / "file");
  EXPECT_THAT(Names(watcher), ElementsAre("3", "1", "2"));
}

TEST_F(FolderWatcherTest, GivesAReplacedFolderAgainAndAnUnchangedOneOnce) {
  Publish("1");
  auto watcher = Open();
  EXPECT_THAT(Names(watcher), ElementsAre("1"));
  std::filesystem::rename(scratch_ / "1", scratch_ / ".away");
  EXPECT_THAT(Names(watcher), IsEmpty());
  Publish("1", "other");
  auto arrival = watcher.Next(Duration(0));
  ASSERT_TRUE(arrival.ok() && arrival->has_value());
  EXPECT_TRUE((*arrival)->checkpoint->Find("other").has_value());
  EXPECT_THAT(Names(watcher), IsEmpty());
}

TEST_F(FolderWatcherTest, ReportsWhatIsNoCheckpointAndGoesOn) {
  std::filesystem::create_directory(scratch_ / ".empty");
  auto watcher = Open();
  std::filesystem::rename(scratch_ / ".empty", scratch_ / "1");
  Publish("2");
  Publish("3");
  WriteText(scratch_ / "3" / "model.safetensors", "garbage, too long for a length");
  auto first = watcher.Next(Duration(0));
  ASSERT_TRUE(first.ok() && first->has_value());
  EXPECT_EQ((*first)->name, "1");
  EXPECT_THAT((*first)->checkpoint.status().message(), HasSubstr("is not a checkpoint"));
  auto second = watcher.Next(Duration(0));
  ASSERT_TRUE(second.ok() && second->has_value());
  EXPECT_TRUE((*second)->checkpoint.ok());
  EXPECT_EQ((*second)->path, scratch_ / "2");
  auto third = watcher.Next(Duration(0));
  ASSERT_TRUE(third.ok() && third->has_value());
  EXPECT_EQ((*third)->checkpoint.status().code(), Code::kCorrupt);
}

TEST_F(FolderWatcherTest, WaitsForWhatIsToCome) {
  auto watcher = Open();
  std::thread publisher([&] { Publish("1"); });
  const auto arrival = watcher.Next(std::nullopt);
  publisher.join();
  ASSERT_TRUE(arrival.ok() && arrival->has_value());
  EXPECT_EQ((*arrival)->name, "1");
}

TEST_F(FolderWatcherTest, EndsAtTheTimeOut) {
  auto watcher = Open();
  const auto arrival = watcher.Next(std::chrono::milliseconds(20));
  ASSERT_TRUE(arrival.ok());
  EXPECT_FALSE(arrival->has_value());
  Publish("1");
  const auto found = watcher.Next(Duration::max());
  ASSERT_TRUE(found.ok() && found->has_value());
}

TEST_F(FolderWatcherTest, CanBeInterrupted) {
  auto watcher = Open();
  std::thread other([&] { watcher.Interrupt(); });
  EXPECT_EQ(watcher.Next(std::nullopt).status().code(), Code::kCancelled);
  other.join();
  Publish("1");
  EXPECT_EQ(watcher.Next(seconds(10)).status().code(), Code::kCancelled) << "for good";
}

TEST_F(FolderWatcherTest, EndsWhenTheFolderItselfGoes) {
  const auto folder = scratch_ / "watched";
  std::filesystem::create_directory(folder);
  auto watcher = FolderWatcher::Open(folder);
  ASSERT_TRUE(watcher.ok());
  std::filesystem::remove(folder);
  for (int i = 0; i < 2; ++i) {
    const Status status = watcher->Next(seconds(10)).status();
    EXPECT_EQ(status.code(), Code::kUnavailable);
    EXPECT_THAT(status.message(), HasSubstr("was removed or moved"));
  }
}

TEST_F(FolderWatcherTest, RefusesWhatIsNoFolder) {
  EXPECT_EQ(FolderWatcher::Open(scratch_ / "none").status().code(), Code::kInvalidArgument);
  WriteText(scratch_ / "file", "");
  EXPECT_THAT(FolderWatcher::Open(scratch_ / "file").status().message(), HasSubstr("cannot watch"));
}

}  // namespace
}  // namespace weightcast::checkpoint
