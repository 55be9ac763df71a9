#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "base/advice.h"
#include "base/json.h"
#include "base/strings.h"
#include "plan/json_text.h"
#include "weightcast/rules.h"

namespace weightcast {
namespace {

using Output = nlohmann::ordered_json;  // Members in the order of writing.
using Json = nlohmann::json;            // Finds one of many members quickly, whoever wrote them.

constexpr int kMaxDepth = 4;
constexpr size_t kMaxRules = 10'000;
constexpr std::array<std::pair<std::string_view, NotSent::Side>, 3> kSides = {
    {{"trainers", NotSent::Side::kTrainers},
     {"inference", NotSent::Side::kInference},
     {"both", NotSent::Side::kBoth}}};

Output Write(const Rename& rule) { return {{"rename", rule.from}, {"to", rule.to}}; }
Output Write(const Fuse& rule) { return {{"fuse", rule.from}, {"to", rule.to}, {"dim", rule.dim}}; }
Output Write(const Split& rule) { return {{"split", rule.from}, {"to", rule.to}, {"dim", rule.dim}}; }
Output Write(const Tie& rule) { return {{"tie", rule.from}, {"to", rule.to}}; }
Output Write(const NotSent& rule) {
  for (const auto& [name, side] : kSides) {
    if (side == rule.side) return {{"not_sent", rule.name}, {"side", name}};
  }
  return {};
}
Output Write(const Quantise& rule) {
  Output out = {{"quantise", rule.from}};
  if (!rule.to.empty()) out["to"] = rule.to;
  out["scales"] = rule.scales;
  out["block"] = rule.block;
  return out;
}

/// Reads the members of one rule; remembers the first fault.
class RuleReader {
 public:
  explicit RuleReader(const Json& json) : json_(json) {}

  Result<Rule> Read();

 private:
  std::string Name(const char* key);
  std::vector<std::string> Names(const char* key);
  int Dim();
  NotSent::Side WhichSide();
  std::vector<int64_t> Block();
  /// The value of a member that must be there.
  const Json* Member(const char* key);
  void Fault(std::string message) {
    if (fault_.empty()) fault_ = std::move(message);
  }

  const Json& json_;
  std::set<std::string_view> known_;  ///< What has been asked for and found.
  std::string fault_;
};

const Json* RuleReader::Member(const char* key) {
  const auto at = json_.find(key);
  if (at == json_.end()) {
    Fault(StrCat("it has no '", key, "'; add it"));
    return nullptr;
  }
  known_.insert(key);
  return &*at;
}

std::string RuleReader::Name(const char* key) {
  const Json* value = Member(key);
  if (value != nullptr && value->is_string()) return value->get<std::string>();
  Fault(StrCat("'", key, "' must be a name"));
  return {};
}

std::vector<std::string> RuleReader::Names(const char* key) {
  const Json* value = Member(key);
  std::vector<std::string> names;
  if (value == nullptr || !value->is_array()) {
    Fault(StrCat("'", key, "' must be a list of names"));
    return names;
  }
  for (const Json& name : *value) {
    if (!name.is_string()) {
      Fault(StrCat("'", key, "' must be a list of names"));
      return names;
    }
    names.push_back(name.get<std::string>());
  }
  return names;
}

int RuleReader::Dim() {
  if (!json_.contains("dim")) return 0;
  const Json* value = Member("dim");
  if (value->is_number_unsigned() && value->get<uint64_t>() <= 64) return value->get<int>();
  Fault("'dim' must be the number of a dimension, from 0");
  return 0;
}

NotSent::Side RuleReader::WhichSide() {
  if (!json_.contains("side")) return NotSent::Side::kBoth;
  const std::string wanted = Name("side");
  for (const auto& [name, side] : kSides) {
    if (name == wanted) return side;
  }
  Fault("'side' must be trainers, inference or both");
  return NotSent::Side::kBoth;
}

std::vector<int64_t> RuleReader::Block() {
  if (!json_.contains("block")) return Quantise().block;
  const Json* value = Member("block");
  const auto fits = [](const Json& size) { return size.is_number_unsigned() && size <= 1 << 20; };
  if (value->is_array() && std::all_of(value->begin(), value->end(), fits))
    return value->get<std::vector<int64_t>>();
  Fault("'block' must be a list of sizes, as in [128, 128]");
  return {};
}

Result<Rule> RuleReader::Read() {
  if (!json_.is_object()) return InvalidArgument(R"(it must be an object: {"rename": "a", "to": "b"})");
  Rule rule;
  if (json_.contains("rename")) {
    rule = Rename{.from = Name("rename"), .to = Name("to")};
  } else if (json_.contains("fuse")) {
    rule = Fuse{.from = Names("fuse"), .to = Name("to"), .dim = Dim()};
  } else if (json_.contains("split")) {
    rule = Split{.from = Name("split"), .to = Names("to"), .dim = Dim()};
  } else if (json_.contains("tie")) {
    rule = Tie{.from = Name("tie"), .to = Names("to")};
  } else if (json_.contains("not_sent")) {
    rule = NotSent{.name = Name("not_sent"), .side = WhichSide()};
  } else if (json_.contains("quantise")) {
    rule = Quantise{.from = Name("quantise"),
                    .to = json_.contains("to") ? Name("to") : "",
                    .scales = Name("scales"),
                    .block = Block()};
  } else {
    return InvalidArgument(
        "it has none of 'rename', 'fuse', 'split', 'tie', 'not_sent', 'quantise'; give it one of these");
  }
  if (!fault_.empty()) return InvalidArgument(fault_);
  for (const auto& member : json_.items()) {
    if (!known_.contains(member.key()))
      return InvalidArgument("it has the member '", member.key().substr(0, 64),
                             "', which rules of its kind do not have; remove it");
  }
  return rule;
}

}  // namespace

std::string ToJson(const NameRules& rules) {
  const auto write = [](const Rule& rule) {
    return std::visit([](const auto& r) { return Write(r); }, rule);
  };
  const Output document = {{"version", 1}, {"rules", JsonArray(rules.rules, write)}};
  return JsonText(document, 2) + "\n";
}

Result<NameRules> ParseRules(std::string_view json) {
  WC_RETURN_IF_ERROR(
      plan::CheckJsonText("the rules file", json, kMaxDepth, "join some rules with {*} and {**}"));
  const Json document = ParseJson(json);
  if (document.is_discarded())
    return InvalidArgument("the rules file is not JSON; check its commas, quotes and brackets");
  if (!document.is_object() || !document.contains("rules") || !document["rules"].is_array())
    return InvalidArgument("the rules file must be an object with a list 'rules'");
  for (const auto& member : document.items()) {
    if (member.key() != "rules" && member.key() != "version")
      return InvalidArgument("the rules file has an unknown member '", member.key().substr(0, 64),
                             "'; allowed: rules, version");
  }
  if (document.contains("version") && document["version"] != 1)
    return InvalidArgument("the rules file has version ", JsonText(document["version"]).substr(0, 64),
                           ", and this weightcast reads version 1; write it in that version");
  if (document["rules"].size() > kMaxRules)
    return InvalidArgument("the rules file has more than ", kMaxRules, " rules; join some with patterns");
  NameRules out;
  for (const Json& rule : document["rules"]) {
    Result<Rule> read = RuleReader(rule).Read();
    if (!read.ok()) return InvalidArgument("rule ", out.rules.size() + 1, ": ", read.status().message());
    out.rules.push_back(std::move(*read));
  }
  WC_RETURN_IF_ERROR(CheckRules(out));
  return out;
}

}  // namespace weightcast
