#include "checkpoint/version_folder.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/json.h"
#include "base/random.h"
#include "base/strings.h"
#include "checkpoint/files.h"

namespace weightcast::checkpoint {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kPartial = ".partial";
constexpr std::string_view kComplete = ".complete";
constexpr std::string_view kTrash = ".trash-";
constexpr char kSeparator = '@';  // between version and attempt

std::string FiveDigits(int number) {
  const std::string digits = std::to_string(number);
  return std::string(digits.size() < 5 ? 5 - digits.size() : 0, '0') + digits;
}

// Takes a folder out of everybody's sight in one step, then deletes it at leisure. Nothing may be
// there any more: somebody else was faster.
void Discard(const fs::path& folder) {
  const fs::path trash = folder.parent_path() / StrCat(kTrash, RandomId());
  if (rename(folder.c_str(), trash.c_str()) != 0) return;
  std::error_code ignored;
  fs::remove_all(trash, ignored);
}

// Gives `from`, which belongs to the caller alone, the name `to`; a folder of that name goes.
Status PutInPlace(const fs::path& from, const fs::path& to) {
  if (renameat2(AT_FDCWD, from.c_str(), AT_FDCWD, to.c_str(), RENAME_NOREPLACE) == 0) return Status::Ok();
  if (errno == EEXIST && renameat2(AT_FDCWD, from.c_str(), AT_FDCWD, to.c_str(), RENAME_EXCHANGE) == 0) {
    Discard(from);
    return Status::Ok();
  }
  // Network file systems know neither flag: the older folder is away for a moment.
  if (errno == EINVAL || errno == ENOSYS || errno == EOPNOTSUPP) {
    Discard(to);
    if (rename(from.c_str(), to.c_str()) == 0) return Status::Ok();
  }
  return FileError(StrCat("rename ", from.native(), " to"), to, errno);
}

// Folders directly below `folder` whose names begin with '.'.
std::vector<fs::path> HiddenFolders(const fs::path& folder) {
  std::vector<fs::path> found;
  std::error_code error;
  for (fs::directory_iterator at(folder, error), end; !error && at != end; at.increment(error)) {
    std::error_code ignored;
    if (at->path().filename().native().front() == '.' && at->is_directory(ignored))
      found.push_back(at->path());
  }
  return found;
}

// Whether a staging folder holds a file, finished or not, of this rank in an engine of any size.
bool HoldsFileOf(const fs::path& folder, const OutputRank& rank) {
  const std::string prefix = StrCat("model-rank-", FiveDigits(rank.rank), "-of-");
  std::error_code error;
  for (fs::directory_iterator at(folder, error), end; !error && at != end; at.increment(error)) {
    std::string name = at->path().filename();
    if (name.starts_with('.')) name.erase(0, 1);
    if (name.starts_with(prefix) || (rank.rank == 0 && name.starts_with("model.safetensors"))) return true;
  }
  return false;
}

Status CheckRank(const OutputRank& rank) {
  WC_RETURN_IF_ERROR(CheckPlainName("engine name", rank.engine));
  if (rank.ranks < 1 || rank.rank < 0 || rank.rank >= rank.ranks)
    return Error(Code::kInvalidArgument, "engine ", rank.engine, ": rank is ", rank.rank, " of ", rank.ranks,
                 "; give a --rank from 0 to --world-size - 1");
  return Status::Ok();
}

}  // namespace

std::string RankFileName(int rank, int ranks) {
  if (ranks == 1) return "model.safetensors";
  return StrCat("model-rank-", FiveDigits(rank), "-of-", FiveDigits(ranks), ".safetensors");
}

VersionFolder::VersionFolder(OutputRank rank, std::string_view version, std::string_view attempt,
                             WriteOptions options)
    : rank_(std::move(rank)),
      engine_(rank_.output / rank_.engine),
      version_(version),
      staged_(StrCat(".", version, kSeparator, attempt)),
      options_(options) {}

Result<VersionFolder> VersionFolder::Begin(OutputRank rank, std::string_view version,
                                           std::string_view attempt, WriteOptions options) {
  WC_RETURN_IF_ERROR(CheckRank(rank));
  WC_RETURN_IF_ERROR(CheckPlainName("version", version));
  WC_RETURN_IF_ERROR(CheckPlainName("attempt", attempt));
  if (version.find(kSeparator) != std::string_view::npos)
    return Error(Code::kInvalidArgument, "version ", version, " holds a '", kSeparator,
                 "'; give a version without it");
  VersionFolder folder(std::move(rank), version, attempt, options);
  const fs::path staging = folder.file().parent_path();
  WC_RETURN_IF_ERROR(MakeFolders(staging, options.sync));
  WC_ASSIGN_OR_RETURN(folder.folder_, OpenFolder(staging));
  return folder;
}

VersionFolder::~VersionFolder() {
  // A moved-from folder has no descriptor.
  if (folder_.valid() && !committed_ && StandsAt(file().parent_path())) Discard(file().parent_path());
}

fs::path VersionFolder::file() const {
  return engine_ / StrCat(staged_, kPartial) / RankFileName(rank_.rank, rank_.ranks);
}

Result<bool> VersionFolder::Commit() {
  const std::string name = RankFileName(rank_.rank, rank_.ranks);
  if (!StandsAt(file().parent_path())) return OutcomeOfOthers();
  if (faccessat(folder_.get(), name.c_str(), F_OK, 0) != 0)
    return Error(Code::kInvalidArgument, file().native(),
                 " has not been written, or was removed; keep other programs out of that folder");
  if (options_.sync) WC_RETURN_IF_ERROR(SyncFile(folder_.get(), file().parent_path()));
  committed_ = true;
  if (!AllRanksThere()) return false;
  return Complete();
}

bool VersionFolder::AllRanksThere() const {
  for (int rank = 0; rank < rank_.ranks; ++rank)
    if (faccessat(folder_.get(), RankFileName(rank, rank_.ranks).c_str(), F_OK, 0) != 0) return false;
  return true;
}

bool VersionFolder::StandsAt(const fs::path& path) const {
  struct stat mine{};
  struct stat there{};
  return fstat(folder_.get(), &mine) == 0 && stat(path.c_str(), &there) == 0 && mine.st_dev == there.st_dev &&
         mine.st_ino == there.st_ino;
}

Result<bool> VersionFolder::Complete() {
  const fs::path partial = engine_ / StrCat(staged_, kPartial);
  const fs::path complete = engine_ / StrCat(staged_, kComplete);
  if (renameat2(AT_FDCWD, partial.c_str(), AT_FDCWD, complete.c_str(), 0) != 0) {
    if (errno == ENOENT) return OutcomeOfOthers();
    if (errno != ENOTEMPTY && errno != EEXIST)
      return FileError(StrCat("rename ", partial.native(), " to"), complete, errno);
    // A process died between the two renames of this very attempt.
    Discard(complete);
    if (rename(partial.c_str(), complete.c_str()) != 0)
      return FileError(StrCat("rename ", partial.native(), " to"), complete, errno);
  }
  if (Status status = PutInPlace(complete, final_path()); !status.ok()) {
    Discard(complete);
    return status;
  }
  // Other attempts at this version have lost their purpose.
  for (const auto& folder : HiddenFolders(engine_))
    if (folder.filename().native().starts_with(StrCat(".", version_, kSeparator))) Discard(folder);
  if (options_.sync) {
    WC_ASSIGN_OR_RETURN(const UniqueFd fd, OpenFolder(engine_));
    WC_RETURN_IF_ERROR(SyncFile(fd.get(), engine_));
  }
  return true;
}

Result<bool> VersionFolder::OutcomeOfOthers() const {
  // A folder moves on from .complete to its final place only, so this order misses no state.
  if (StandsAt(engine_ / StrCat(staged_, kComplete)) || StandsAt(final_path())) return true;
  return Error(
      Code::kCancelled, "version ", version_, " of engine ", rank_.engine, " was not written to ",
      final_path().native(),
      ": another of its ranks aborted or restarted (see its log); the next version is written as usual");
}

Status RemoveLeftovers(const OutputRank& rank) {
  WC_RETURN_IF_ERROR(CheckRank(rank));
  for (const auto& folder : HiddenFolders(rank.output / rank.engine)) {
    const std::string name = folder.filename();
    const bool unowned = name.starts_with(kTrash) || name.ends_with(kComplete);
    if (unowned || (name.ends_with(kPartial) && HoldsFileOf(folder, rank))) Discard(folder);
  }
  return Status::Ok();
}

Metadata ShardMetadata(const OutputRank& rank, const std::vector<StoredShard>& shards) {
  auto json = nlohmann::json::object();
  for (const auto& shard : shards)
    json[shard.tensor.name] = {{"shape", shard.tensor.shape}, {"offset", shard.box.offset}};
  return {{"format", "pt"},
          {"weightcast.rank", std::to_string(rank.rank)},
          {"weightcast.ranks", std::to_string(rank.ranks)},
          {"weightcast.shards", JsonText(json)}};
}

}  // namespace weightcast::checkpoint
