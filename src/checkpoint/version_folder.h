#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "base/fd.h"
#include "checkpoint/json.h"
#include "checkpoint/writer.h"
#include "weightcast/status.h"
#include "weightcast/tensor.h"

namespace weightcast::checkpoint {

/// Who writes: one rank of an engine. All ranks of the engine name the same (shared) folder.
struct OutputRank {
  std::filesystem::path output;
  std::string engine;  ///< A plain name: see CheckPlainName.
  int rank = 0;
  int ranks = 1;
};

/// "model.safetensors" for an engine of one rank, else "model-rank-00000-of-00002.safetensors".
std::string RankFileName(int rank, int ranks);

/// OUTPUT/<engine>/<version>/ in the making: the folder appears in one instant, with the files of
/// all ranks, or not at all.
///
/// Every rank, in a process of its own, writes its file into the hidden staging folder
/// `OUTPUT/<engine>/.<version>@<attempt>.partial`. Files are only ever added to it (by rename), so
/// whoever sees all of them may complete it; several may see that at once. Completing is a rename
/// to `.complete`, in which one of them alone succeeds, and a second one to `<version>`. An older
/// folder of that version is exchanged for the new one and deleted.
///
/// `attempt` keeps files of different updates apart: it must be the same at all ranks of the engine,
/// and another one whenever a version is sent again (the update id serves). So the files of a rank
/// that died can never come together with those of its successor's update.
///
/// A rank that gives up deletes the staging folder, since without its file it is of no use; what
/// dead processes left is deleted by RemoveLeftovers. No step waits for another process, and none
/// needs a lock: it works on network file systems too.
class VersionFolder {
 public:
  /// Makes the staging folder. `version` ("80", "2:80"; no '@') and `attempt` are plain names.
  /// Errors: kInvalidArgument, kPermission, kExhausted: with the path.
  static Result<VersionFolder> Begin(OutputRank rank, std::string_view version, std::string_view attempt,
                                     WriteOptions options = {});
  VersionFolder(VersionFolder&&) = default;
  VersionFolder& operator=(VersionFolder&&) = delete;
  /// Without a Commit() gives up: see above.
  ~VersionFolder();

  /// Where this rank's file goes: the path for SafetensorsWriter.
  [[nodiscard]] std::filesystem::path file() const;
  /// Where the folder will stand.
  [[nodiscard]] std::filesystem::path final_path() const { return engine_ / version_; }

  /// Says that file() is finished. True: the version's folder stands in its place. False: other
  /// ranks have still to finish theirs; the last one completes it.
  /// Errors: kInvalidArgument when file() is not there; kCancelled when another rank has given up,
  /// or has started again and cleared up; as Begin.
  Result<bool> Commit();

 private:
  VersionFolder(OutputRank rank, std::string_view version, std::string_view attempt, WriteOptions options);
  [[nodiscard]] bool AllRanksThere() const;
  /// Whether the folder that this rank writes into is now found under `path`.
  [[nodiscard]] bool StandsAt(const std::filesystem::path& path) const;
  Result<bool> Complete();
  /// Outcome when the staging folder has gone from its place.
  [[nodiscard]] Result<bool> OutcomeOfOthers() const;

  OutputRank rank_;
  std::filesystem::path engine_;  ///< OUTPUT/<engine>
  std::string version_;
  std::string staged_;  ///< ".<version>@<attempt>", without its ending.
  WriteOptions options_;
  UniqueFd folder_;  ///< The staging folder, whatever it is called.
  bool committed_ = false;
};

/// Deletes what earlier processes of this very rank left unfinished. To be called once, when the
/// process starts: a version that other ranks are about to complete with the old process' file is
/// lost to them (kCancelled), and never appears without it.
Status RemoveLeftovers(const OutputRank& rank);

/// A tensor of which a rank's file holds one box.
struct StoredShard {
  TensorInfo tensor;  ///< As a whole.
  Box box;            ///< What the file has of it; the shape of the file's tensor is box.size.
};

/// The __metadata__ of a rank's file: key "weightcast.shards", value a JSON object
/// {"<tensor>":{"shape":[whole],"offset":[where the file's part begins]},…} for all its tensors,
/// "weightcast.rank" and "weightcast.ranks", and "format":"pt" as transformers expects it.
Metadata ShardMetadata(const OutputRank& rank, const std::vector<StoredShard>& shards);

}  // namespace weightcast::checkpoint
