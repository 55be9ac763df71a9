#include "tools/worker/versions.h"

#include <algorithm>
#include <cstring>
#include <unordered_map>
#include <variant>

#include "base/strings.h"
#include "checkpoint/generate.h"
#include "checkpoint/version_folder.h"
#include "checkpoint/writer.h"
#include "plan/box.h"

namespace weightcast::tools {
namespace {

constexpr int64_t kPieceBytes = 1 << 20;

const Box& BoxOf(const Shard& shard) { return std::get<Box>(shard.part); }

/// Rows (of dimension 0) that make a piece of about kPieceBytes and of whole bytes.
int64_t RowsPerPiece(const TensorInfo& tensor, const Box& box) {
  const int64_t rows = box.size[0];
  const int64_t row_bytes = std::max<int64_t>(1, BytesOf(tensor.dtype, plan::ElementsOf(box)) / rows);
  return std::max<int64_t>(1, kPieceBytes / row_bytes / 8) * 8;
}

size_t SizeOf(const Shard& shard) {
  return static_cast<size_t>(BytesOf(shard.tensor.dtype, plan::ElementsOf(BoxOf(shard))));
}

}  // namespace

Result<Versions> Versions::Open(const std::filesystem::path& path, bool generated) {
  Versions versions;
  WC_ASSIGN_OR_RETURN(auto file, checkpoint::Checkpoint::Open(path));
  versions.file_ = std::make_shared<const checkpoint::Checkpoint>(std::move(file));
  versions.generated_ = generated;
  return versions;
}

Status Versions::Fill(const Shard& shard, int64_t version) const {
  const std::span<std::byte> out(shard.memory.address, SizeOf(shard));
  if (version > 1) return Make(shard.tensor, BoxOf(shard), version, out);
  return Read(shard.tensor, BoxOf(shard), out);
}

Status Versions::Read(const TensorInfo& tensor, const Box& box, std::span<std::byte> out) const {
  const auto index = file_->Find(tensor.name);
  if (!index)
    return Error(Code::kInvalidArgument, "--checkpoint has no tensor '", tensor.name,
                 "'; give a checkpoint of the same model");
  return file_->ReadBox(*index, box, out);
}

Status Versions::Make(const TensorInfo& tensor, const Box& box, int64_t version,
                      std::span<std::byte> out) const {
  if (generated_) return checkpoint::FillBox(tensor, box, version, out);
  WC_RETURN_IF_ERROR(Read(tensor, box, out));
  return checkpoint::ChangeBox(tensor, box, version, out);
}

Status Versions::Check(const Shard& shard, int64_t version) const {
  std::vector<std::byte> expected;
  Box piece = BoxOf(shard);
  const bool cut = !piece.size.empty() && piece.size[0] > 0;
  const int64_t rows = cut ? BoxOf(shard).size[0] : 1;
  const int64_t step = cut ? RowsPerPiece(shard.tensor, BoxOf(shard)) : 1;
  size_t at = 0;
  for (int64_t row = 0; row < rows; row += step) {
    if (cut) {
      piece.offset[0] = BoxOf(shard).offset[0] + row;
      piece.size[0] = std::min(step, rows - row);
    }
    expected.resize(static_cast<size_t>(BytesOf(shard.tensor.dtype, plan::ElementsOf(piece))));
    WC_RETURN_IF_ERROR(Make(shard.tensor, piece, version, expected));
    if (std::memcmp(expected.data(), shard.memory.address + at, expected.size()) != 0) {
      return Error(Code::kCorrupt, "version ", version, " of tensor '", shard.tensor.name, "' differs in ",
                   ToString(piece), " from what was published; please report this as a bug");
    }
    at += expected.size();
  }
  return Status::Ok();
}

Status WriteVersion(const VersionOutput& output, const Version& version, const std::vector<Shard>& shards,
                    const checkpoint::Header* original) {
  const checkpoint::OutputRank rank{output.folder, output.engine, output.rank, output.ranks};
  std::vector<TensorInfo> tensors;
  std::vector<checkpoint::StoredShard> stored;
  std::unordered_map<std::string_view, std::span<const std::byte>> data;
  for (const Shard& shard : shards) {
    tensors.push_back({shard.tensor.name, shard.tensor.dtype, BoxOf(shard).size});
    stored.push_back({shard.tensor, BoxOf(shard)});
    data.emplace(shard.tensor.name, std::span<const std::byte>(shard.memory.address, SizeOf(shard)));
  }
  checkpoint::Metadata metadata{{"format", "pt"}};
  if (output.ranks > 1) metadata = checkpoint::ShardMetadata(rank, stored);
  WC_ASSIGN_OR_RETURN(const auto made,
                      checkpoint::MakeHeader(checkpoint::ReferenceOrder(std::move(tensors)), metadata));
  const checkpoint::Header& header = output.ranks == 1 && original != nullptr ? *original : made;
  std::vector<std::span<const std::byte>> in_order;
  in_order.reserve(header.tensors.size());
  for (const auto& tensor : header.tensors) in_order.push_back(data[tensor.info.name]);
  // Ranks of an engine write the same attempt; all bytes of a version of a run are the same, whoever sent
  // them.
  const checkpoint::WriteOptions options{.sync = output.sync};
  WC_ASSIGN_OR_RETURN(auto folder, checkpoint::VersionFolder::Begin(rank, ToString(version),
                                                                    StrCat("run", version.run), options));
  WC_RETURN_IF_ERROR(checkpoint::WriteSafetensors(folder.file(), header, in_order, options));
  return folder.Commit().status();
}

}  // namespace weightcast::tools
