#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace weightcast::doctor {

/// In the order in which a person wants them: the worst last.
enum class Level : uint8_t { kNotApplicable, kOk, kWarn, kFail };
/// "not_applicable", "ok", "warn", "fail".
std::string_view NameOf(Level level);

struct Finding {
  Level level = Level::kOk;
  std::string group = {};     ///< "rdma".
  std::string check = {};     ///< "gid": with the group its name for programs.
  std::string subject = {};   ///< "mlx5_0:1"; empty: the machine.
  std::string text = {};      ///< One or two short sentences.
  std::string evidence = {};  ///< What was read, and where.
  std::string remedy = {};    ///< A command, or empty.
};

/// Collects findings, group by group.
class Findings {
 public:
  explicit Findings(std::string group) : group_(std::move(group)) {}
  /// What is added from now on is of this group.
  void Begin(std::string group) { group_ = std::move(group); }
  void Ok(Finding finding) { Add(Level::kOk, std::move(finding)); }
  void NotApplicable(Finding finding) { Add(Level::kNotApplicable, std::move(finding)); }
  void Warn(Finding finding) { Add(Level::kWarn, std::move(finding)); }
  void Fail(Finding finding) { Add(Level::kFail, std::move(finding)); }
  void Add(Level level, Finding finding) {
    finding.level = level;
    finding.group = group_;
    all_.push_back(std::move(finding));
  }
  /// Whether the group has none.
  [[nodiscard]] bool empty() const { return all_.empty() || all_.back().group != group_; }
  [[nodiscard]] std::vector<Finding> Take() { return std::move(all_); }

 private:
  std::string group_;
  std::vector<Finding> all_;
};

}  // namespace weightcast::doctor
