#include "doctor/baseline.h"

#include <algorithm>
#include <array>
#include <map>
#include <nlohmann/json.hpp>

#include "base/json.h"
#include "base/strings.h"
#include "doctor/facts_json.h"

namespace weightcast::doctor {
namespace {

using Json = nlohmann::json;
using Leaves = std::map<std::string, std::string>;

bool ChangesByItself(std::string_view path) {
  static constexpr std::array<std::string_view, 3> kPaths = {"limits.cgroup_memory_used", "clock.",
                                                             "limits.cgroup"};
  return path == kPaths[0] || path == kPaths[2] || path.starts_with(kPaths[1]);
}

/// What names an element of a list: a device must not change because another one came before it.
std::string NameOf(const Json& element, size_t number) {
  for (const char* key : {"name", "address", "interface", "index"}) {
    if (element.is_object() && element.contains(key))
      return element[key].is_string() ? element[key].get<std::string>() : JsonText(element[key]);
  }
  return StrCat(number);
}

std::string TextOf(const Json& value) {
  if (value.is_string()) return value.get<std::string>();
  return JsonText(value);
}

void AddLeaves(const Json& value, const std::string& path, Leaves& leaves) {
  const bool plain_list =
      value.is_array() && std::ranges::none_of(value, [](const Json& one) { return one.is_structured(); });
  if (value.is_object()) {
    for (const auto& [key, member] : value.items())
      AddLeaves(member, path.empty() ? key : StrCat(path, ".", key), leaves);
  } else if (value.is_array() && !plain_list) {
    for (size_t i = 0; i < value.size(); ++i)
      AddLeaves(value[i], StrCat(path, "[", NameOf(value[i], i), "]"), leaves);
  } else {
    leaves[path] = TextOf(value);
  }
}

}  // namespace

Result<std::vector<std::string>> ChangesSince(std::string_view report, const Facts& facts) {
  const Json old = ParseJson(report);
  if (!old.is_object() || !old.contains("facts") || !old["facts"].is_object())
    return Status(
        Code::kCorrupt,
        "this is not a report of `weightcast doctor`; give --baseline a file that --json or --bundle wrote");
  Leaves before;
  Leaves after;
  // A probe that gave nothing has not changed.
  Json then = old["facts"];
  Json now = ParseJson(FactsJson(facts));
  for (const Json& missed : {then.value("missed", Json::object()), now["missed"]}) {
    for (const auto& [probe, reason] : missed.items()) {
      then.erase(probe);
      now.erase(probe);
    }
  }
  AddLeaves(then, "", before);
  AddLeaves(now, "", after);
  for (const auto& [path, value] : after) before.try_emplace(path, "(none)");
  std::vector<std::string> changes;
  for (const auto& [path, value] : before) {
    const auto found = after.find(path);
    const std::string text = found == after.end() ? "(none)" : found->second;
    if (text != value && !ChangesByItself(path)) changes.push_back(StrCat(path, ": ", value, " -> ", text));
  }
  return changes;
}

}  // namespace weightcast::doctor
