#include "tools/worker/file_shards.h"

#include <algorithm>

#include "base/strings.h"
#include "checkpoint/boxes.h"
#include "plan/box.h"

namespace weightcast::tools {
namespace {

constexpr size_t kAlignment = 64;
constexpr size_t kFilePiece = size_t{16} << 20;  ///< Of a file, on its way to a GPU.

size_t Padded(size_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

}  // namespace

Result<std::shared_ptr<FileShards>> FileShards::Open(checkpoint::Checkpoint file, const plan::Layout& layout,
                                                     int rank) {
  std::shared_ptr<FileShards> result(new FileShards(std::move(file)));
  for (int i = 0; i < layout.tensors(); ++i) {
    const TensorInfo& tensor = layout.tensor(i);
    for (Box& box : layout.BoxesOf(i, rank)) {
      const auto bytes = static_cast<size_t>(BytesOf(tensor.dtype, plan::ElementsOf(box)));
      WC_ASSIGN_OR_RETURN(const auto runs, checkpoint::RunsOf(tensor, box, bytes));
      if (runs.count() > 1) {
        return Error(Code::kInvalidArgument, "the shard ", ToString(box), " of tensor '", tensor.name,
                     "' is not contiguous in its file; give --layout ddp, which sends whole tensors");
      }
      const auto offset = static_cast<uint64_t>(runs.count() == 1 ? runs.At(0).src_offset : 0);
      const auto index = result->file_.Find(tensor.name);
      if (!index)
        return Error(Code::kInvalidArgument, "--checkpoint has no tensor '", tensor.name,
                     "'; give a checkpoint of the same model");
      result->shards_.push_back({.tensor = tensor, .part = std::move(box)});
      result->places_.push_back({.tensor = *index, .offset = offset, .bytes = bytes});
    }
  }
  return result;
}

Status FileShards::CopyToMemory() {
  const size_t total = TotalBytes();
  if (total == 0) return Status::Ok();
  WC_ASSIGN_OR_RETURN(auto copy, Allocate(total));
  auto rest = copy->bytes();
  for (size_t i = 0; i < places_.size(); ++i) {
    WC_RETURN_IF_ERROR(Read(i, 0, rest.first(places_[i].bytes)));
    shards_[i].memory = HostMemory(rest.first(places_[i].bytes));
    rest = rest.subspan(Padded(places_[i].bytes));
  }
  WC_RETURN_IF_ERROR(Check());
  copy_ = std::move(copy);
  return Status::Ok();
}

Status FileShards::CopyToDevice(const ShardPlace& place, const Settings& settings) {
  const size_t total = TotalBytes();
  if (total == 0) return Status::Ok();
  WC_ASSIGN_OR_RETURN(auto block, MakeBlock(place, settings, total));
  std::vector<std::byte> piece(std::min(total, kFilePiece));
  size_t first = 0;
  for (size_t i = 0; i < places_.size(); ++i) {
    const size_t bytes = places_[i].bytes;
    for (size_t at = 0; at < bytes; at += piece.size()) {
      const std::span<std::byte> part(piece.data(), std::min(piece.size(), bytes - at));
      WC_RETURN_IF_ERROR(Read(i, at, part));
      WC_RETURN_IF_ERROR(block->Write(first + at, part));
    }
    shards_[i].memory = block->memory();
    shards_[i].memory.address += first;
    shards_[i].memory.length = bytes;
    first += Padded(bytes);
  }
  WC_RETURN_IF_ERROR(Check());
  block_ = std::move(block);
  return Status::Ok();
}

size_t FileShards::TotalBytes() const {
  size_t total = 0;
  for (const Place& place : places_) total += Padded(place.bytes);
  return total;
}

Status FileShards::Read(size_t shard, uint64_t offset, std::span<std::byte> out) {
  const Place& place = places_[shard];
  return file_.Read(place.tensor, place.offset + offset, out);
}

}  // namespace weightcast::tools
