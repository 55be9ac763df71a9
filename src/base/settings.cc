#include "weightcast/settings.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cmath>
#include <limits>
#include <mutex>

#include "base/log.h"
#include "base/socket.h"
#include "base/strings.h"
#include "base/traffic_class.h"

namespace weightcast {
namespace {

#define WC_ROW(type, name, default_value, unit, meaning) \
  SettingInfo{#name, #type, default_value, unit, meaning},
constexpr auto kTable = std::to_array<SettingInfo>({WC_SETTINGS(WC_ROW)});
#undef WC_ROW

bool ParseInto(std::string_view text, std::string& out) {
  out = text;
  return true;
}

bool ParseInto(std::string_view text, int64_t& out) {
  const auto value = ParseNumber<int64_t>(text);
  if (!value || *value < 0) return false;
  out = *value;
  return true;
}

bool ParseInto(std::string_view text, Duration& out) {
  double seconds = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), seconds);
  // 30 years: far beyond any use and far below overflow.
  if (error != std::errc() || end != text.data() + text.size() || !(seconds >= 0) || seconds > 1e9)
    return false;
  out = FromSeconds(seconds);
  return true;
}

bool ParseInto(std::string_view text, uint64_t& out) {
  static constexpr std::string_view kUnits = "KMGT";
  uint64_t factor = 1;
  if (!text.empty()) {
    const size_t unit = kUnits.find(static_cast<char>(std::toupper(static_cast<unsigned char>(text.back()))));
    if (unit != std::string_view::npos) {
      factor = uint64_t{1} << (10 * (unit + 1));
      text.remove_suffix(1);
    }
  }
  const auto value = ParseNumber<uint64_t>(text);
  if (!value || *value > std::numeric_limits<uint64_t>::max() / factor) return false;
  out = *value * factor;
  return true;
}

std::string Print(const std::string& value) { return value; }
std::string Print(int64_t value) { return StrCat(value); }
std::string Print(uint64_t value) { return StrCat(value); }
std::string Print(Duration value) { return StrCat(Seconds(value)); }

bool IsOneOf(std::string_view value, std::initializer_list<std::string_view> allowed) {
  return std::find(allowed.begin(), allowed.end(), value) != allowed.end();
}

bool IsEmptyOrBelow(std::string_view text, uint32_t limit) {
  const auto number = ParseNumber<uint32_t>(text);
  return text.empty() || (number && *number < limit);
}

bool IsEmptyOrPkey(std::string_view text) {
  const auto key = ParseHex<uint16_t>(text);
  return text.empty() || (key && (*key & 0x7fff) != 0);
}

bool IsZeroDuration(const Settings& settings, std::string_view name) {
  const auto is_zero = [](const auto& value) {
    if constexpr (std::is_same_v<std::decay_t<decltype(value)>, Duration>) return value == Duration::zero();
    return false;
  };
#define WC_IS_ZERO(type, field, default_value, unit, meaning) \
  if (name == #field) return name != "controller_timeout" && is_zero(settings.field);
  WC_SETTINGS(WC_IS_ZERO)
#undef WC_IS_ZERO
  return false;
}

/// Checks that go beyond the type; empty when fine, else what is allowed.
std::string_view WhatIsWrong(const Settings& settings, std::string_view name) {
  if (name == "log_level" && !LogLevelFromName(settings.log_level))
    return "debug, info, warning, error or off";
  if (name == "policy" && !IsOneOf(settings.policy, {"all", "each"})) return "all or each";
  if (name == "strategy" && !IsOneOf(settings.strategy, {"balanced", "greedy"})) return "balanced or greedy";
  if (name == "ptracer" && !IsOneOf(settings.ptracer, {"off", "peer", "any"})) return "off, peer or any";
  if (name == "chunk" && (settings.chunk < 4096 || settings.chunk > (64U << 20))) return "4K to 64M";
  if (name == "window" && (settings.window < 1 || settings.window > 4096)) return "1 to 4096";
  if (name == "lanes" && settings.lanes > 64) return "0 to 64";
  if (name == "gid_index" && !IsEmptyOrBelow(settings.gid_index, 256))
    return "a number below 256, or nothing";
  if (name == "pkey" && !IsEmptyOrPkey(settings.pkey)) return "a partition, such as 0x8001, or nothing";
  if (name == "traffic_class" && !ParseTrafficClass(settings.traffic_class).ok()) return kTrafficClasses;
  if (name == "service_level" && settings.service_level > 15) return "0 to 15";
  if (name == "rdma_timeout" && settings.rdma_timeout > 31) return "0 to 31";
  if (name == "rdma_retries" && settings.rdma_retries > 7) return "0 to 7";
  if (name == "rnr_retries" && settings.rnr_retries > 7) return "0 to 7";
  if (name == "gpu" && !IsOneOf(settings.gpu, {"auto", "off"})) return "auto or off";
  if (name == "pinned" && settings.pinned < (1U << 20)) return "1M or more";
  if (name == "copy_streams" && (settings.copy_streams < 1 || settings.copy_streams > 8)) return "1 to 8";
  if (name == "copy_blocks" && (settings.copy_blocks < 1 || settings.copy_blocks > 1024)) return "1 to 1024";
  if (name == "gpu_kernels" && settings.gpu_kernels > 1) return "0 or 1";
  if (name == "checksum" && settings.checksum > 1) return "0 or 1";
  if (name == "compare" && settings.compare > 1) return "0 or 1";
  if (name == "port_range" && !ParsePortRange(settings.port_range).ok())
    return "low-high, such as 29800-29899";
  if (name == "controller" && !ParseHostPort(settings.controller).ok()) return "HOST:PORT";
  if (IsZeroDuration(settings, name)) return "more than 0 seconds";
  if (name == "job" && settings.job.empty()) return "a name";
  return {};
}

std::string_view WhatTypeWants(std::string_view type) {
  if (type == "Seconds") return "a number of seconds, such as 2.5";
  if (type == "Bytes") return "a number of bytes, K, M or G allowed, such as 256M";
  return "an integer, 0 or more";
}

void WarnUnknown(std::string_view name) {
  static std::mutex mutex;
  static std::map<std::string, bool, std::less<>> warned;
  const std::lock_guard lock(mutex);
  if (!warned.emplace(name, true).second) return;
  WC_LOG(kWarning, "no setting is called ", name, ", so this variable of the environment has no effect; ",
         "docs/settings.md lists all: correct or unset it");
}

}  // namespace

Settings::Settings(){
#define WC_DEFAULT(type, name, default_value, unit, meaning) ParseInto(default_value, name);
    WC_SETTINGS(WC_DEFAULT)
#undef WC_DEFAULT
}

Status Settings::Set(std::string_view name, std::string_view text) {
  const auto row = std::ranges::find(kTable, name, &SettingInfo::name);
  if (row == kTable.end())
    return Error(Code::kInvalidArgument, "no setting is called '", name, "'; use a name of docs/settings.md");
  Settings changed = *this;
  bool parsed = false;
#define WC_PARSE(type, field, default_value, unit, meaning) \
  if (name == #field) parsed = ParseInto(text, changed.field);
  WC_SETTINGS(WC_PARSE)
#undef WC_PARSE
  const std::string_view wanted = parsed ? WhatIsWrong(changed, name) : WhatTypeWants(row->type);
  if (!wanted.empty()) {
    return Error(Code::kInvalidArgument, "setting ", name, " is '", text, "'; allowed: ", wanted);
  }
  *this = std::move(changed);
  return Status::Ok();
}

std::string Settings::Get(std::string_view name) const {
#define WC_PRINT(type, field, default_value, unit, meaning) \
  if (name == #field) return Print(field);
  WC_SETTINGS(WC_PRINT)
#undef WC_PRINT
  return {};
}

Result<Settings> Settings::FromEnvironment() {
  static constexpr std::string_view kPrefix = "WEIGHTCAST_";
  // Not settings: the token itself, so that it never stands on a command line; the CUDA library, which is
  // looked for where no settings are at hand; and what the adapters of inference engines read.
  static constexpr auto kOthers = std::to_array<std::string_view>({
      "WEIGHTCAST_TOKEN",
      "WEIGHTCAST_CUDA_LIBRARY",
      "WEIGHTCAST_ENGINE",
      "WEIGHTCAST_VLLM_LANDING",
      "WEIGHTCAST_VLLM_DRAFT",
  });
  Settings settings;
  for (char** entry = environ; entry != nullptr && *entry != nullptr; ++entry) {
    const std::string_view line = *entry;
    if (!line.starts_with(kPrefix)) continue;
    const size_t equals = std::min(line.find('='), line.size());
    const std::string_view variable = line.substr(0, equals);
    if (std::ranges::find(kOthers, variable) != kOthers.end()) continue;
    const auto row =
        std::ranges::find(kTable, variable, [](const auto& info) { return EnvironmentName(info.name); });
    if (row == kTable.end()) {
      WarnUnknown(variable);
      continue;
    }
    if (Status status = settings.Set(row->name, line.substr(std::min(equals + 1, line.size())));
        !status.ok()) {
      return Error(status.code(), variable, ": ", status.message());
    }
  }
  return settings;
}

Result<Settings> Settings::From(const std::map<std::string, std::string>& overrides) {
  WC_ASSIGN_OR_RETURN(Settings settings, FromEnvironment());
  for (const auto& [name, text] : overrides) WC_RETURN_IF_ERROR(settings.Set(name, text));
  return settings;
}

std::span<const SettingInfo> SettingsTable() { return kTable; }

std::string EnvironmentName(std::string_view setting) {
  std::string name = "WEIGHTCAST_";
  for (const char character : setting)
    name += static_cast<char>(std::toupper(static_cast<unsigned char>(character)));
  return name;
}

std::string SettingsMarkdown() {
  std::string out =
      "# Settings\n\nGenerated by `weightcast info --settings-markdown`; do not edit.\n\n"
      "Each is a flag of the binary, an environment variable and, in Python, an entry of `settings={…}`.\n"
      "The job token itself is read from the token file or from `WEIGHTCAST_TOKEN`, never from a flag.\n\n"
      "| flag | environment | default | unit | meaning |\n|---|---|---|---|---|\n";
  for (const auto& row : kTable) {
    std::string flag(row.name);
    std::replace(flag.begin(), flag.end(), '_', '-');
    out += StrCat("| `--", flag, "` | `", EnvironmentName(row.name), "` | ",
                  row.default_value.empty() ? "" : StrCat("`", row.default_value, "`"), " | ", row.unit,
                  " | ", row.meaning, " |\n");
  }
  return out;
}

}  // namespace weightcast
