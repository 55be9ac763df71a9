#include "checkpoint/json.h"

#include <limits>
#include <nlohmann/json.hpp>

#include "base/advice.h"
#include "base/strings.h"
#include "plan/box.h"

namespace weightcast::checkpoint {
namespace {

using Json = nlohmann::json;
using Output = nlohmann::ordered_json;

// Both readers take JSON event by event: no tree is built, so depth and memory stay bounded. An
// event that the format does not know there ends the parse with a reason.
class Reader : public nlohmann::json_sax<Json> {
 public:
  bool null() override { return Refuse("null"); }
  bool boolean(bool) override { return Refuse("a boolean"); }
  bool number_integer(number_integer_t) override { return Refuse("a negative number"); }
  bool number_unsigned(number_unsigned_t) override { return Refuse("a number"); }
  bool number_float(number_float_t, const string_t&) override {
    return Refuse("a number that is not a 64-bit integer");
  }
  bool string(string_t&) override { return Refuse("a string"); }
  bool binary(binary_t&) override { return Refuse("binary data"); }
  bool start_object(std::size_t) override { return Refuse("an object"); }
  bool start_array(std::size_t) override { return Refuse("an array"); }
  bool end_object() override { return true; }
  bool end_array() override { return true; }
  bool key(string_t&) override { return true; }
  // The library's own message may quote megabytes of the text: the place says enough.
  bool parse_error(std::size_t position, const std::string&, const Json::exception&) override {
    return Fail(StrCat("not valid JSON at byte ", position));
  }

  // The outcome of one parse.
  Status Run(std::string_view json) {
    if (json.empty() || json.front() != '{') return {Code::kCorrupt, "its JSON text does not begin with '{'"};
    // The library takes a zero byte for the end of the text and would not see what follows.
    if (const size_t zero = json.find('\0'); zero != std::string_view::npos)
      return Error(Code::kCorrupt, "not valid JSON at byte ", zero);
    if (Json::sax_parse(json.begin(), json.end(), this)) return Status::Ok();
    return {Code::kCorrupt, error_.empty() ? "not valid JSON" : error_};
  }

 protected:
  [[nodiscard]] virtual std::string Where() const = 0;
  bool Refuse(std::string_view what) {
    return Fail(StrCat(Where(), " is ", what, ", which the format does not allow there"));
  }
  bool Fail(std::string why) {
    error_ = std::move(why);
    return false;
  }

 private:
  std::string error_;
};

class HeaderReader final : public Reader {
 public:
  bool start_object(std::size_t) override {
    switch (place_) {
      case Place::kStart:
        return Enter(Place::kRoot);
      case Place::kValue:
        return Enter(is_metadata_ ? Place::kMetadata : Place::kTensor);
      default:
        return Refuse("an object");
    }
  }
  bool end_object() override {
    if (place_ == Place::kRoot) return Enter(Place::kEnd);
    if (place_ == Place::kTensor && !FinishTensor()) return false;
    return Enter(Place::kRoot);
  }
  bool key(string_t& name) override {
    if (place_ == Place::kRoot) return BeginMember(name);
    if (place_ == Place::kTensor) return BeginField(name);
    text.metadata.emplace_back(std::move(name), std::string());
    return true;
  }
  bool null() override {
    // The reference reader takes null for "no metadata".
    return place_ == Place::kValue && is_metadata_ ? Enter(Place::kRoot) : Refuse("null");
  }
  bool string(string_t& value) override {
    if (place_ == Place::kMetadata) {
      text.metadata.back().second = std::move(value);
      return true;
    }
    if (place_ != Place::kTensor || field_ != kDType) return Refuse("a string");
    const auto dtype = DTypeFromName(value);
    if (!dtype) return Fail(StrCat(Where(), ": unknown dtype ", Shown(value)));
    entry_.info.dtype = *dtype;
    return true;
  }
  bool start_array(std::size_t) override {
    if (place_ != Place::kTensor || field_ == kDType) return Refuse("an array");
    return Enter(Place::kNumbers);
  }
  bool end_array() override {
    if (field_ == kOffsets && offsets_ != 2) return Fail(StrCat(Where(), " is not a pair of numbers"));
    return Enter(Place::kTensor);
  }
  bool number_unsigned(number_unsigned_t value) override {
    if (place_ != Place::kNumbers) return Refuse("a number");
    if (value > static_cast<uint64_t>(std::numeric_limits<int64_t>::max()))
      return Fail(StrCat(Where(), ": ", value, " is out of range"));
    return AddNumber(static_cast<int64_t>(value));
  }

  HeaderText text;

 private:
  enum class Place { kStart, kRoot, kValue, kMetadata, kTensor, kNumbers, kEnd };
  enum Field { kDType = 1, kShape = 2, kOffsets = 4, kAll = 7 };

  bool Enter(Place place) {
    place_ = place;
    return true;
  }
  bool BeginMember(string_t& name) {
    is_metadata_ = name == "__metadata__";
    if (is_metadata_ && seen_metadata_) return Fail("\"__metadata__\" is given twice");
    seen_metadata_ |= is_metadata_;
    entry_ = StoredTensor{};
    entry_.info.name = std::move(name);
    fields_ = 0;
    return Enter(Place::kValue);
  }
  bool BeginField(std::string_view name) {
    if (name != "dtype" && name != "shape" && name != "data_offsets")
      return Fail(StrCat("tensor ", Shown(entry_.info.name), ": unknown member ", Shown(name),
                         "; allowed: dtype, shape, data_offsets"));
    field_ = name == "dtype" ? kDType : name == "shape" ? kShape : kOffsets;
    if ((fields_ & field_) != 0) return Fail(StrCat(Where(), " is given twice"));
    fields_ |= field_;
    offsets_ = 0;
    return true;
  }
  bool AddNumber(int64_t value) {
    if (field_ == kShape) {
      if (entry_.info.shape.size() == plan::kMaxDims)
        return Fail(StrCat(Where(), " has more than ", plan::kMaxDims, " dimensions"));
      entry_.info.shape.push_back(value);
      return true;
    }
    if (offsets_ == 2) return Fail(StrCat(Where(), " is not a pair of numbers"));
    (offsets_++ == 0 ? entry_.begin : entry_.end) = value;
    return true;
  }
  bool FinishTensor() {
    if (fields_ != kAll)
      return Fail(StrCat("tensor ", Shown(entry_.info.name), " lacks ",
                         (fields_ & kDType) == 0   ? "dtype"
                         : (fields_ & kShape) == 0 ? "shape"
                                                   : "data_offsets"));
    text.tensors.push_back(std::move(entry_));
    return true;
  }
  [[nodiscard]] std::string Where() const override {
    switch (place_) {
      case Place::kTensor:
      case Place::kNumbers:
        return StrCat("tensor ", Shown(entry_.info.name), ": ",
                      field_ == kDType   ? "dtype"
                      : field_ == kShape ? "shape"
                                         : "data_offsets");
      case Place::kMetadata:
        return StrCat("__metadata__ ", Shown(text.metadata.back().first));
      default:
        return StrCat("member ", Shown(entry_.info.name));
    }
  }

  Place place_ = Place::kStart;
  Field field_ = kDType;
  int fields_ = 0;   // of the tensor at hand, as bits of Field
  int offsets_ = 0;  // numbers of data_offsets so far
  bool is_metadata_ = false;
  bool seen_metadata_ = false;
  StoredTensor entry_;
};

// Only weight_map matters; whatever else an index holds is skipped, its depth only counted.
class IndexReader final : public Reader {
 public:
  bool start_object(std::size_t) override {
    if (depth_ == 1 && at_map_) {
      if (seen_map_) return Fail("weight_map is given twice");
      seen_map_ = in_map_ = true;
    } else if (!Skipped("an object")) {
      return false;
    }
    ++depth_;
    return true;
  }
  bool end_object() override {
    if (--depth_ == 1) in_map_ = false;
    return true;
  }
  bool start_array(std::size_t) override {
    if (!Skipped("an array")) return false;
    ++depth_;
    return true;
  }
  bool end_array() override {
    --depth_;
    return true;
  }
  bool key(string_t& name) override {
    if (depth_ == 1) at_map_ = name == "weight_map";
    if (in_map_) map.emplace_back(std::move(name), std::string());
    return true;
  }
  bool string(string_t& value) override {
    if (!in_map_) return Skipped("a string");
    map.back().second = std::move(value);
    return true;
  }
  bool null() override { return Skipped("null"); }
  bool boolean(bool) override { return Skipped("a boolean"); }
  bool number_integer(number_integer_t) override { return Skipped("a number"); }
  bool number_unsigned(number_unsigned_t) override { return Skipped("a number"); }
  bool number_float(number_float_t, const string_t&) override { return Skipped("a number"); }

  [[nodiscard]] bool seen_map() const { return seen_map_; }
  Metadata map;

 private:
  // A value outside of the map is nobody's business; weight_map itself must be an object of strings.
  bool Skipped(std::string_view what) { return in_map_ || (depth_ == 1 && at_map_) ? Refuse(what) : true; }
  [[nodiscard]] std::string Where() const override {
    return map.empty() ? "weight_map" : StrCat("weight_map, tensor ", Shown(map.back().first));
  }

  int64_t depth_ = 0;
  bool at_map_ = false;  // the root's member at hand is weight_map
  bool in_map_ = false;
  bool seen_map_ = false;
};

/// Without a search for the key, which takes long with many: who reads the text refuses keys given twice.
void Append(Output& object, const std::string& key, Output value) {
  static_cast<Output::object_t::Container&>(object.get_ref<Output::object_t&>())
      .emplace_back(key, std::move(value));
}

Status CheckUtf8(std::string_view what, const std::string& text) {
  try {
    (void)Json(text).dump();
    return Status::Ok();
  } catch (const Json::exception&) {
    return InvalidArgument(what, Shown(text), " is not UTF-8; use printable names");
  }
}

}  // namespace

Result<HeaderText> ParseHeaderText(std::string_view json) {
  HeaderReader reader;
  WC_RETURN_IF_ERROR(reader.Run(json));
  return std::move(reader.text);
}

Result<Metadata> ParseIndexText(std::string_view json) {
  IndexReader reader;
  WC_RETURN_IF_ERROR(reader.Run(json));
  if (!reader.seen_map()) return Status(Code::kCorrupt, "its JSON text has no weight_map");
  return std::move(reader.map);
}

Result<std::string> WriteHeaderText(const HeaderText& text) {
  for (const auto& [key, value] : text.metadata)
    for (const std::string& one : {key, value}) WC_RETURN_IF_ERROR(CheckUtf8("the metadata ", one));
  for (const StoredTensor& tensor : text.tensors)
    WC_RETURN_IF_ERROR(CheckUtf8("the name of tensor ", tensor.info.name));
  Output members = Output::object();
  Output metadata = Output::object();
  for (const auto& [key, value] : text.metadata) Append(metadata, key, value);
  if (!text.metadata.empty()) Append(members, "__metadata__", std::move(metadata));
  for (const auto& [info, begin, end] : text.tensors)
    Append(members, info.name,
           {{"dtype", NameOf(info.dtype)}, {"shape", info.shape}, {"data_offsets", {begin, end}}});
  return members.dump();
}

std::string Shown(std::string_view name) {
  constexpr size_t kLongest = 100;
  const bool cut = name.size() > kLongest;
  std::string quoted = Json(name.substr(0, kLongest)).dump(-1, ' ', true, Json::error_handler_t::replace);
  return cut ? quoted + "..." : quoted;
}

}  // namespace weightcast::checkpoint
