#include "plan/layout_json.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>
#include <vector>

#include "base/advice.h"
#include "base/json.h"
#include "base/strings.h"
#include "plan/cover.h"
#include "plan/json_text.h"
#include "plan/layout_assembler.h"
#include "plan/pattern.h"

namespace weightcast::plan {
namespace {

using Output = nlohmann::ordered_json;  // Members in the order of writing.
using Json = nlohmann::json;            // Finds one of many members quickly, whoever wrote them.

constexpr int kMaxDepth = 9;

Output WritePattern(const Pattern& pattern) {
  const auto placement_of = [](const MeshDim& dim) {
    return dim.shard_dim == kReplicate ? Output("replicate") : Output(dim.shard_dim);
  };
  return {{"first_rank", pattern.first_rank},
          {"mesh", JsonArray(pattern.mesh, &MeshDim::size)},
          {"strides", JsonArray(pattern.mesh, &MeshDim::stride)},
          {"placements", JsonArray(pattern.mesh, placement_of)}};
}

Output WritePart(const Layout& layout, int tensor, const Layout::Part& part) {
  if (part.pattern >= 0) {
    Output out = {{"pattern", part.pattern}};
    if (part.first_rank != 0) out["first_rank"] = part.first_rank;
    return out;
  }
  Output boxes = Output::array();
  layout.ForEachBoxOfPart(tensor, part,
                          [&](int rank, const Box& box) { boxes.push_back({rank, box.offset, box.size}); });
  return {{"boxes", std::move(boxes)}};
}

Output WriteTensor(const Layout& layout, int tensor) {
  const TensorInfo& info = layout.tensor(tensor);
  Output out = {{"name", info.name}, {"dtype", NameOf(info.dtype)}, {"shape", info.shape}};
  out["parts"] =
      JsonArray(layout.parts(tensor), [&](const auto& part) { return WritePart(layout, tensor, part); });
  if (layout.not_sent(tensor)) out["not_sent"] = true;
  return out;
}

/// A whole number between 0 and `limit`.
std::optional<int64_t> WholeNumber(const Json& json, int64_t limit) {
  if (limit < 0 || !json.is_number_unsigned() || json.get<uint64_t>() > static_cast<uint64_t>(limit))
    return std::nullopt;
  return json.get<int64_t>();
}

/// `what` is named in errors.
Result<std::vector<int64_t>> ReadNumbers(std::string_view what, const Json& json, int64_t limit) {
  if (!json.is_array()) return InvalidArgument(what, " must be a list of numbers");
  std::vector<int64_t> out;
  for (const Json& entry : json) {
    const auto number = WholeNumber(entry, limit);
    if (!number) return InvalidArgument(what, " must have integers in [0, ", limit, "] only");
    out.push_back(*number);
  }
  return out;
}

/// A member that is a whole number between 0 and `limit`; `absent` if it is not there, unless that is
/// negative.
Result<int> ReadNumber(const Json& json, const char* key, int limit, int absent) {
  const auto at = json.find(key);
  if (at == json.end() && absent >= 0) return absent;
  const auto number = at == json.end() ? std::nullopt : WholeNumber(*at, limit);
  if (number) return static_cast<int>(*number);
  if (limit < 0) return InvalidArgument("'", key, "' names a pattern, but 'patterns' is empty; add it there");
  return InvalidArgument("'", key, "' must be an integer in [0, ", limit, "]");
}

Status CheckMembers(const Json& json, std::initializer_list<std::string_view> known) {
  if (!json.is_object()) return InvalidArgument("it must be an object with ", Join(known, ", "));
  for (const auto& member : json.items()) {
    if (std::find(known.begin(), known.end(), member.key()) == known.end())
      return InvalidArgument("unknown member '", member.key().substr(0, 64),
                             "'; allowed: ", Join(known, ", "));
  }
  return Status::Ok();
}

/// " ('name')" of a tensor that has a name.
std::string NameIn(const Json& tensor) {
  const bool named = tensor.is_object() && tensor.contains("name") && tensor["name"].is_string();
  return named ? StrCat(" ('", tensor["name"].get_ref<const std::string&>().substr(0, 64), "')") : "";
}

class LayoutReader {
 public:
  Result<Layout> Read(const Json& document);

 private:
  Status ReadPattern(const Json& json);
  Status ReadTensor(const Json& json);
  Result<TensorInfo> ReadInfo(const Json& json);
  /// `next_rank` is the first rank that this part may use, and becomes the one after its last.
  Status ReadPart(const Json& json, const TensorInfo& info, bool not_sent, int64_t& next_rank);
  Status ReadPatternPart(const Json& json, const TensorInfo& info, int64_t& next_rank);
  Status ReadBoxes(const Json& json, const TensorInfo& info, bool not_sent, int64_t& next_rank);

  int ranks_ = 0;
  std::vector<Pattern> patterns_;
  LayoutAssembler out_;
};

Status LayoutReader::ReadPattern(const Json& json) {
  WC_RETURN_IF_ERROR(CheckMembers(json, {"first_rank", "mesh", "strides", "placements"}));
  Pattern pattern;
  WC_ASSIGN_OR_RETURN(pattern.first_rank, ReadNumber(json, "first_rank", kMaxRanks, 0));
  if (!json.contains("mesh") || !json.contains("placements") || !json["placements"].is_array())
    return InvalidArgument("a pattern needs a 'mesh' and a list of 'placements'; give it both");
  WC_ASSIGN_OR_RETURN(const std::vector<int64_t> sizes, ReadNumbers("'mesh'", json["mesh"], kMaxRanks));
  if (sizes.size() > static_cast<size_t>(kMaxMeshDims))
    return InvalidArgument("a mesh has ", sizes.size(), " dimensions; give it at most ", kMaxMeshDims);
  std::vector<int64_t> strides(sizes.size(), 1);
  for (size_t i = sizes.size(); i-- > 1;)
    strides[i - 1] = std::min<int64_t>(strides[i] * sizes[i], kMaxRanks);
  if (json.contains("strides")) {
    WC_ASSIGN_OR_RETURN(strides, ReadNumbers("'strides'", json["strides"], kMaxRanks));
  }
  const Json& placements = json["placements"];
  if (strides.size() != sizes.size() || placements.size() != sizes.size())
    return InvalidArgument("a pattern has a mesh of ", sizes.size(), " dimensions, ", strides.size(),
                           " strides and ", placements.size(), " placements; give one of each per dimension");
  for (size_t i = 0; i < sizes.size(); ++i) {
    const Json& placement = placements[i];
    const auto cut = WholeNumber(placement, kMaxDims - 1);
    if (!cut && placement != "replicate")
      return InvalidArgument("placement ", i,
                             " must be \"replicate\" or the number of the dimension that is cut");
    pattern.mesh.push_back({static_cast<int>(sizes[i]), static_cast<int>(strides[i]),
                            cut ? static_cast<int>(*cut) : kReplicate});
  }
  patterns_.push_back(std::move(pattern));
  return Status::Ok();
}

Result<TensorInfo> LayoutReader::ReadInfo(const Json& json) {
  WC_RETURN_IF_ERROR(CheckMembers(json, {"name", "dtype", "shape", "pattern", "boxes", "parts", "not_sent"}));
  TensorInfo info;
  if (!json.contains("name") || !json["name"].is_string())
    return InvalidArgument("it has no 'name'; give it one, as a text");
  info.name = json["name"].get<std::string>();
  if (!json.contains("dtype") || !json["dtype"].is_string())
    return InvalidArgument("it has no 'dtype'; give it one, as a text");
  const auto dtype = DTypeFromName(json["dtype"].get_ref<const std::string&>());
  if (!dtype)
    return InvalidArgument("its dtype '", json["dtype"].get_ref<const std::string&>().substr(0, 64),
                           "' is unknown; use the names of the safetensors format, such as BF16");
  info.dtype = *dtype;
  if (!json.contains("shape")) return InvalidArgument("it has no 'shape'; give it one, as a list of sizes");
  WC_ASSIGN_OR_RETURN(info.shape, ReadNumbers("'shape'", json["shape"], kMaxTensorBytes));
  WC_RETURN_IF_ERROR(CheckTensor(info));
  return info;
}

Status LayoutReader::ReadPatternPart(const Json& json, const TensorInfo& info, int64_t& next_rank) {
  WC_ASSIGN_OR_RETURN(const int index,
                      ReadNumber(json, "pattern", static_cast<int>(patterns_.size()) - 1, -1));
  WC_ASSIGN_OR_RETURN(const int shift, ReadNumber(json, "first_rank", kMaxRanks, 0));
  const Pattern& pattern = patterns_[static_cast<size_t>(index)];
  WC_RETURN_IF_ERROR(CheckPattern(pattern, static_cast<int>(info.shape.size()), ranks_ - shift));
  if (pattern.first_rank + shift < next_rank)
    return InvalidArgument("a part begins at rank ", pattern.first_rank + shift,
                           ", but the parts before it have ranks up to ", next_rank - 1,
                           "; give parts ranks of their own, in rising order");
  out_.AddPatternPart(pattern, shift);
  next_rank = int64_t{pattern.last_rank()} + shift + 1;
  return Status::Ok();
}

Status LayoutReader::ReadBoxes(const Json& json, const TensorInfo& info, bool not_sent, int64_t& next_rank) {
  const Json& boxes = json["boxes"];
  if (!boxes.is_array()) return InvalidArgument("'boxes' must be a list");
  std::vector<int> ranks;
  std::vector<int64_t> coords;
  int64_t last_rank = next_rank;
  for (size_t at = 0; at < boxes.size(); ++at) {
    const Json& entry = boxes[at];
    const auto rank =
        entry.is_array() && entry.size() == 3 ? WholeNumber(entry[0], ranks_ - 1) : std::nullopt;
    if (!rank || *rank < last_rank)
      return InvalidArgument("box ", at,
                             " must be [rank, offsets, sizes], with ranks of the layout in rising order");
    Box box;
    WC_ASSIGN_OR_RETURN(box.offset, ReadNumbers("the offsets of a box", entry[1], kMaxTensorBytes));
    WC_ASSIGN_OR_RETURN(box.size, ReadNumbers("the sizes of a box", entry[2], kMaxTensorBytes));
    WC_RETURN_IF_ERROR(CheckBox(box, info));
    last_rank = *rank;
    next_rank = *rank + 1;
    if (ElementsOf(box) == 0) continue;
    ranks.push_back(static_cast<int>(*rank));
    coords.insert(coords.end(), box.offset.begin(), box.offset.end());
    coords.insert(coords.end(), box.size.begin(), box.size.end());
  }
  SortBoxesOfRanks(static_cast<int>(info.shape.size()), ranks, coords);
  if (!not_sent) WC_RETURN_IF_ERROR(CheckCover(info, ranks, coords));
  if (!ranks.empty()) out_.AddBoxPart(ranks, coords);
  return Status::Ok();
}

Status LayoutReader::ReadPart(const Json& json, const TensorInfo& info, bool not_sent, int64_t& next_rank) {
  if (json.contains("boxes") == json.contains("pattern"))
    return InvalidArgument("it must have either 'pattern' or 'boxes', or 'parts' that have one of these");
  return json.contains("pattern") ? ReadPatternPart(json, info, next_rank)
                                  : ReadBoxes(json, info, not_sent, next_rank);
}

Status LayoutReader::ReadTensor(const Json& json) {
  WC_ASSIGN_OR_RETURN(const TensorInfo info, ReadInfo(json));
  const bool not_sent = json.contains("not_sent") && json["not_sent"] == true;
  out_.AddTensor(info, not_sent);
  int64_t next_rank = 0;
  if (!json.contains("parts")) return ReadPart(json, info, not_sent, next_rank);
  if (!json["parts"].is_array()) return InvalidArgument("'parts' must be a list");
  for (size_t i = 0; i < json["parts"].size(); ++i) {
    const Json& part = json["parts"][i];
    Status status = CheckMembers(part, {"pattern", "first_rank", "boxes"});
    if (status.ok()) status = ReadPart(part, info, not_sent, next_rank);
    if (!status.ok()) return InvalidArgument("part ", i, ": ", status.message());
  }
  if (next_rank == 0 && !not_sent) return CheckCover(info, {}, {});
  return Status::Ok();
}

Result<Layout> LayoutReader::Read(const Json& document) {
  WC_RETURN_IF_ERROR(CheckMembers(document, {"version", "ranks", "patterns", "tensors"}));
  WC_ASSIGN_OR_RETURN(const int version, ReadNumber(document, "version", kMaxRanks, 1));
  if (version != 1)
    return InvalidArgument("it has version ", version,
                           ", and this weightcast reads version 1; write it in that version");
  WC_ASSIGN_OR_RETURN(ranks_, ReadNumber(document, "ranks", kMaxRanks, -1));
  if (ranks_ < 1) return InvalidArgument("'ranks' must be at least 1");
  static const Json kNone = Json::array();
  const Json& patterns = document.contains("patterns") ? document["patterns"] : kNone;
  const Json& tensors = document.contains("tensors") ? document["tensors"] : kNone;
  if (!patterns.is_array() || !tensors.is_array())
    return InvalidArgument("'patterns' and 'tensors' must be lists");
  if (tensors.size() > static_cast<size_t>(kMaxTensors))
    return InvalidArgument("it has more than ", kMaxTensors, " tensors; list fewer");
  for (const Json& pattern : patterns) {
    if (const Status status = ReadPattern(pattern); !status.ok())
      return InvalidArgument("pattern ", patterns_.size(), ": ", status.message());
  }
  for (size_t i = 0; i < tensors.size(); ++i) {
    if (const Status status = ReadTensor(tensors[i]); !status.ok())
      return InvalidArgument("tensor ", i, NameIn(tensors[i]), ": ", status.message());
  }
  return std::move(out_).Finish(ranks_);
}

}  // namespace

std::string ToJson(const Layout& layout) {
  Output tensors = Output::array();
  for (int t = 0; t < layout.tensors(); ++t) tensors.push_back(WriteTensor(layout, t));
  const Output document = {{"version", 1},
                           {"ranks", layout.ranks()},
                           {"patterns", JsonArray(layout.patterns(), WritePattern)},
                           {"tensors", std::move(tensors)}};
  return JsonText(document) + "\n";
}

Result<Layout> ParseLayout(std::string_view json) {
  WC_RETURN_IF_ERROR(CheckJsonText("the layout", json, kMaxDepth, "use patterns instead of boxes"));
  const Json document = ParseJson(json);
  if (document.is_discarded())
    return InvalidArgument("the layout is not JSON; check its commas, quotes and brackets");
  Result<Layout> layout = LayoutReader().Read(document);
  if (!layout.ok()) return InvalidArgument("the layout: ", layout.status().message());
  return layout;
}

}  // namespace weightcast::plan
