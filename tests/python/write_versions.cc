// Writes what an inference side would write, for tests/python/test_verify_outputs.py:
//
//   write_versions generated OUTPUT RANKS VERSIONS DTYPE...
//   write_versions changed CHECKPOINT OUTPUT VERSIONS
//
// Prints the reason and exits with 1 when anything fails.

#include <cstdio>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

#include "base/strings.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/generate.h"
#include "checkpoint/version_folder.h"
#include "checkpoint/writer.h"

namespace weightcast::checkpoint {
namespace {

using Bytes = std::vector<std::byte>;
using Data = std::vector<std::span<const std::byte>>;

Status WriteOne(const OutputRank& rank, int version, const Header& header, const Data& data) {
  WC_ASSIGN_OR_RETURN(auto folder,
                      VersionFolder::Begin(rank, std::to_string(version), "test", {.sync = false}));
  WC_RETURN_IF_ERROR(WriteSafetensors(folder.file(), header, data, {.sync = false}));
  return folder.Commit().status();
}

// A matrix, a vector that ends inside a word, a name that is not ASCII and an empty tensor.
std::vector<TensorInfo> TensorsOf(std::string_view name, DType dtype) {
  return {{StrCat(name, ".matrix"), dtype, {24, 16}},
          {StrCat(name, ".vector"), dtype, {1004}},
          {StrCat(name, ".größe"), dtype, {3, 4}},
          {StrCat(name, ".empty"), dtype, {0, 4}}};
}

// How rank `rank` of `ranks` holds a tensor: rows or columns of matrices, replicas of the rest.
Box BoxOf(const TensorInfo& tensor, int rank, int ranks) {
  Box box = WholeOf(tensor.shape);
  if (!tensor.name.ends_with(".matrix")) return box;
  const size_t dim = tensor.name.size() % 2;
  box.size[dim] = tensor.shape[dim] / ranks;
  box.offset[dim] = rank * box.size[dim];
  return box;
}

Status WriteRank(const OutputRank& rank, int version, const std::vector<TensorInfo>& tensors) {
  std::vector<TensorInfo> parts;
  std::vector<StoredShard> shards;
  std::vector<Bytes> bytes;
  for (const auto& tensor : ReferenceOrder(tensors)) {
    const Box box = BoxOf(tensor, rank.rank, rank.ranks);
    parts.push_back({tensor.name, tensor.dtype, box.size});
    shards.push_back({tensor, box});
    bytes.emplace_back(BytesOf(tensor.dtype, ElementsOf(box.size)));
    WC_RETURN_IF_ERROR(FillBox(tensor, box, version, bytes.back()));
  }
  Metadata metadata = {{"format", "pt"}};
  if (rank.ranks > 1) metadata = ShardMetadata(rank, shards);
  WC_ASSIGN_OR_RETURN(const auto header, MakeHeader(parts, metadata));
  return WriteOne(rank, version, header, Data(bytes.begin(), bytes.end()));
}

Status Generated(const std::vector<std::string>& arguments) {
  const int ranks = std::stoi(arguments.at(1));
  std::vector<TensorInfo> tensors;
  for (size_t i = 3; i < arguments.size(); ++i) {
    const auto dtype = DTypeFromName(arguments[i]);
    if (!dtype) return {Code::kInvalidArgument, StrCat("no dtype ", arguments[i])};
    for (auto& tensor : TensorsOf(arguments[i], *dtype)) tensors.push_back(std::move(tensor));
  }
  for (int version = 1; version <= std::stoi(arguments.at(2)); ++version)
    for (int rank = 0; rank < ranks; ++rank)
      WC_RETURN_IF_ERROR(WriteRank(
          {.output = arguments.at(0), .engine = "engine-0", .rank = rank, .ranks = ranks}, version, tensors));
  return Status::Ok();
}

Status Changed(const std::vector<std::string>& arguments) {
  WC_ASSIGN_OR_RETURN(const auto source, Checkpoint::Open(arguments.at(0)));
  // A checkpoint of one file is copied with its header; one of several gets a header of its own.
  auto header = source.single_header() != nullptr ? *source.single_header()
                                                  : MakeHeader(source.tensors(), {{"format", "pt"}}).value();
  for (int version = 1; version <= std::stoi(arguments.at(2)); ++version) {
    std::vector<Bytes> bytes;
    for (size_t i = 0; i < source.tensors().size(); ++i) {
      const auto& info = source.tensors()[i];
      bytes.emplace_back(static_cast<size_t>(BytesOf(info.dtype, ElementsOf(info.shape))));
      WC_RETURN_IF_ERROR(source.Read(i, 0, bytes.back()));
      ChangeRange(info.name, info.dtype, version, 0, bytes.back());
    }
    WC_RETURN_IF_ERROR(WriteOne({.output = arguments.at(1), .engine = "engine-0"}, version, header,
                                Data(bytes.begin(), bytes.end())));
  }
  return Status::Ok();
}

}  // namespace

int Run(int argc, char** argv) {
  const std::vector<std::string> arguments(argv + 2, argv + argc);
  const Status status = std::strcmp(argv[1], "generated") == 0 ? Generated(arguments) : Changed(arguments);
  if (status.ok()) return 0;
  std::fprintf(stderr, "%s\n", status.ToString().c_str());
  return 1;
}

}  // namespace weightcast::checkpoint

int main(int argc, char** argv) { return weightcast::checkpoint::Run(argc, argv); }
