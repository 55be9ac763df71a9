#include "checkpoint/header.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <ranges>
#include <tuple>
#include <utility>

#include "base/strings.h"
#include "plan/box.h"

namespace weightcast::checkpoint {
namespace {

static_assert(std::endian::native == std::endian::little, "safetensors data is little-endian");

Status Corrupt(std::string why) { return {Code::kCorrupt, std::move(why)}; }

std::string Described(const TensorInfo& info) {
  return StrCat(NameOf(info.dtype), " ", ToString(info.shape));
}

Status CheckSize(const StoredTensor& entry) {
  const TensorInfo& info = entry.info;
  if (Status status = plan::CheckTensor(info); !status.ok()) return Corrupt(status.message());
  const int64_t bits = ElementsOf(info.shape) * BitsOf(info.dtype);
  if (bits % 8 != 0)
    return Corrupt(
        StrCat("tensor ", Shown(info.name), ": ", Described(info), " does not fill whole bytes; pad it"));
  if (entry.end < entry.begin || entry.end - entry.begin != bits / 8)
    return Corrupt(StrCat("tensor ", Shown(info.name), ": ", Described(info), " takes ", bits / 8,
                          " bytes, but its data_offsets are ", entry.begin, " to ", entry.end));
  return Status::Ok();
}

Status CheckUnique(std::string_view what, std::vector<std::string_view> names) {
  std::ranges::sort(names);
  const auto twice = std::ranges::adjacent_find(names);
  if (twice == names.end()) return Status::Ok();
  return Corrupt(StrCat(what, " ", Shown(*twice), " is given twice; give each name once"));
}

Status CheckUniqueNames(const std::vector<StoredTensor>& tensors, const Metadata& metadata) {
  std::vector<std::string_view> names;
  names.reserve(tensors.size());
  for (const auto& tensor : tensors) names.push_back(tensor.info.name);
  WC_RETURN_IF_ERROR(CheckUnique("tensor", std::move(names)));
  const auto keys = std::views::keys(metadata);
  return CheckUnique("__metadata__ key", {keys.begin(), keys.end()});
}

// `tensors` in the order of their data: no hole, no overlap.
Status CheckSideBySide(const std::vector<StoredTensor>& tensors) {
  int64_t end = 0;
  const StoredTensor* before = nullptr;
  for (const auto& tensor : tensors) {
    if (tensor.begin < end)
      return Corrupt(StrCat("tensors ", Shown(before->info.name), " and ", Shown(tensor.info.name),
                            " overlap at data byte ", tensor.begin));
    if (tensor.begin > end)
      return Corrupt(StrCat("data bytes ", end, " to ", tensor.begin, ", before tensor ",
                            Shown(tensor.info.name), ", belong to no tensor"));
    end = tensor.end;
    before = &tensor;
  }
  return Status::Ok();
}

Status CheckDataBytes(int64_t described, int64_t present) {
  if (present < described)
    return Corrupt(
        StrCat("truncated: the header describes ", described, " bytes of data, but the file has ", present));
  if (present > described)
    return Corrupt(
        StrCat("the file has ", present, " bytes of data, but the header describes only ", described));
  return Status::Ok();
}

}  // namespace

Result<int64_t> ParseHeaderLength(std::span<const std::byte> first, int64_t file_bytes) {
  if (first.size() < kHeaderLengthBytes)
    return Corrupt(StrCat("truncated: ", first.size(), " bytes are too few for a safetensors file"));
  uint64_t length = 0;
  std::memcpy(&length, first.data(), sizeof length);
  if (length > static_cast<uint64_t>(kMaxHeaderBytes))
    return Corrupt(StrCat("not a safetensors file: its header would have ", length, " bytes; at most ",
                          kMaxHeaderBytes, " are allowed"));
  const auto rest = file_bytes - static_cast<int64_t>(kHeaderLengthBytes);
  if (static_cast<int64_t>(length) > rest)
    return Corrupt(StrCat("truncated: the header should have ", length, " bytes, but the file has ", rest));
  return static_cast<int64_t>(length);
}

Result<Header> ParseHeader(std::string json, std::optional<int64_t> data_bytes) {
  if (json.size() > static_cast<size_t>(kMaxHeaderBytes))
    return Corrupt(StrCat("a header of ", json.size(), " bytes; at most ", kMaxHeaderBytes,
                          " are allowed: put fewer tensors into one file"));
  auto text = ParseHeaderText(json);
  if (!text.ok()) return Corrupt(StrCat("bad header: ", text.status().message()));
  auto& tensors = text->tensors;
  for (const auto& tensor : tensors) WC_RETURN_IF_ERROR(CheckSize(tensor));
  WC_RETURN_IF_ERROR(CheckUniqueNames(tensors, text->metadata));
  // Empty tensors before the one that begins where they do.
  std::ranges::sort(tensors, {},
                    [](const StoredTensor& one) { return std::tie(one.begin, one.end, one.info.name); });
  WC_RETURN_IF_ERROR(CheckSideBySide(tensors));

  Header header;
  header.metadata = std::move(text->metadata);
  header.json = std::move(json);
  header.data_bytes = tensors.empty() ? 0 : tensors.back().end;
  if (data_bytes) WC_RETURN_IF_ERROR(CheckDataBytes(header.data_bytes, *data_bytes));
  header.tensors = std::move(tensors);
  return header;
}

Result<Header> MakeHeader(std::span<const TensorInfo> tensors, const Metadata& metadata) {
  HeaderText text{.tensors = {}, .metadata = metadata};
  int64_t end = 0;
  for (const auto& info : tensors) {
    WC_RETURN_IF_ERROR(plan::CheckTensor(info));
    const int64_t begin = end;
    if (__builtin_add_overflow(begin, BytesOf(info.dtype, ElementsOf(info.shape)), &end))
      return Error(Code::kInvalidArgument, "the tensors up to ", Shown(info.name),
                   " are too large for one file together; split them over several");
    text.tensors.push_back({info, begin, end});
  }
  WC_ASSIGN_OR_RETURN(std::string json, WriteHeaderText(text));
  json.resize((json.size() + 7) / 8 * 8, ' ');
  auto header = ParseHeader(std::move(json), std::nullopt);
  if (!header.ok()) return Status(Code::kInvalidArgument, header.status().message());
  return header;
}

std::vector<TensorInfo> ReferenceOrder(std::vector<TensorInfo> tensors) {
  std::sort(tensors.begin(), tensors.end(), [](const TensorInfo& a, const TensorInfo& b) {
    return a.dtype != b.dtype ? a.dtype > b.dtype : a.name < b.name;
  });
  return tensors;
}

}  // namespace weightcast::checkpoint
