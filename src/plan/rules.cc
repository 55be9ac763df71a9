#include "plan/rules.h"

#include <algorithm>
#include <set>
#include <utility>

#include "base/strings.h"
#include "weightcast/tensor.h"

namespace weightcast::plan {
namespace {

constexpr std::string_view kPart = "{*}";
constexpr std::string_view kAny = "{**}";
constexpr int kMaxPlaceholders = 8;

/// The length of the placeholder at `at`, 0 if there is none.
size_t PlaceholderAt(std::string_view pattern, size_t at) {
  if (pattern.substr(at, kAny.size()) == kAny) return kAny.size();
  if (pattern.substr(at, kPart.size()) == kPart) return kPart.size();
  return 0;
}

/// One attempt to match; remembers the dead ends, so that many placeholders do not multiply.
class Matcher {
 public:
  Matcher(std::string_view pattern, std::string_view name) : pattern_(pattern), name_(name) {}

  bool Match(size_t pattern_at, size_t name_at) {
    while (pattern_at < pattern_.size()) {
      if (const size_t length = PlaceholderAt(pattern_, pattern_at); length > 0)
        return MatchPlaceholder(pattern_at, length, name_at);
      if (name_at == name_.size() || pattern_[pattern_at] != name_[name_at]) return false;
      ++pattern_at;
      ++name_at;
    }
    return name_at == name_.size();
  }

  std::vector<std::string> TakeCaptures() {
    std::reverse(captures_.begin(), captures_.end());
    return std::move(captures_);
  }

 private:
  bool MatchPlaceholder(size_t pattern_at, size_t length, size_t name_at) {
    const size_t key = pattern_at * (name_.size() + 1) + name_at;
    if (dead_.empty()) dead_.resize(pattern_.size() * (name_.size() + 1), false);
    if (dead_[key]) return false;
    for (size_t end = name_at + 1; end <= name_.size(); ++end) {
      if (length == kPart.size() && name_[end - 1] == '.') break;
      if (!Match(pattern_at + length, end)) continue;
      captures_.emplace_back(name_.substr(name_at, end - name_at));
      return true;
    }
    dead_[key] = true;
    return false;
  }

  std::string_view pattern_;
  std::string_view name_;
  std::vector<bool> dead_;
  std::vector<std::string> captures_;  ///< Last first.
};

/// Placeholders of a pattern in order; an error text if a brace is not part of one.
Result<std::vector<std::string_view>> PlaceholdersOf(std::string_view pattern) {
  if (pattern.empty()) return Status(Code::kInvalidArgument, "a name is empty; write one");
  if (pattern.size() > 1024)
    return Error(Code::kInvalidArgument, "the name that begins '", pattern.substr(0, 64), "' has ",
                 pattern.size(), " bytes; shorten it to at most 1024");
  std::vector<std::string_view> found;
  for (size_t at = 0; at < pattern.size();) {
    const size_t length = PlaceholderAt(pattern, at);
    if (length == 0 && (pattern[at] == '{' || pattern[at] == '}')) {
      return Error(Code::kInvalidArgument, "'", pattern,
                   "' has a brace that is not a placeholder; write {*} or {**}");
    }
    if (length > 0) found.push_back(pattern.substr(at, length));
    at += std::max<size_t>(length, 1);
  }
  if (found.size() > static_cast<size_t>(kMaxPlaceholders)) {
    return Error(Code::kInvalidArgument, "'", pattern, "' has ", found.size(), " placeholders; at most ",
                 kMaxPlaceholders, " are allowed");
  }
  return found;
}

/// All names of one rule must have the same placeholders in the same order.
Status CheckNames(const std::vector<std::string>& first, const std::vector<std::string>& second) {
  WC_ASSIGN_OR_RETURN(const auto wanted, PlaceholdersOf(first.front()));
  for (const auto* names : {&first, &second}) {
    for (const std::string& name : *names) {
      WC_ASSIGN_OR_RETURN(const auto found, PlaceholdersOf(name));
      if (found == wanted) continue;
      return Error(Code::kInvalidArgument, "'", first.front(), "' and '", name,
                   "' have different placeholders; both need the same in the same order");
    }
  }
  return Status::Ok();
}

Status CheckManySided(std::string_view what, const std::string& one, const std::vector<std::string>& many,
                      int dim, size_t at_least) {
  if (many.size() < at_least || many.size() > 4096)
    return Error(Code::kInvalidArgument, what, " '", one, "' lists ", many.size(), " names; ", at_least,
                 " to 4096 are allowed");
  if (dim < 0)
    return Error(Code::kInvalidArgument, what, " '", one, "' has dim ", dim,
                 "; it must be an integer of at least 0");
  std::set<std::string_view> names;
  for (const std::string& name : many)
    if (!names.insert(name).second)
      return Error(Code::kInvalidArgument, what, " '", one, "' lists '", name, "' twice; list each once");
  return CheckNames({one}, many);
}

Status CheckQuantise(const Quantise& rule) {
  if (rule.block != std::vector<int64_t>{128, 128})
    return Error(Code::kInvalidArgument, "quantise of '", rule.from, "' has the block ", ToString(rule.block),
                 "; only [128, 128] is allowed");
  const std::string& to = ValuesOf(rule);
  if (to == rule.scales)
    return Error(Code::kInvalidArgument, "quantise of '", rule.from, "' puts values and scales into '", to,
                 "'; give the scales another name");
  return CheckNames({rule.from}, {to, rule.scales});
}

Status CheckRule(const Rule& rule) {
  if (const auto* rename = std::get_if<Rename>(&rule)) return CheckNames({rename->from}, {rename->to});
  if (const auto* fuse = std::get_if<Fuse>(&rule))
    return CheckManySided("fuse into", fuse->to, fuse->from, fuse->dim, 2);
  if (const auto* split = std::get_if<Split>(&rule))
    return CheckManySided("split of", split->from, split->to, split->dim, 2);
  if (const auto* tie = std::get_if<Tie>(&rule)) return CheckManySided("tie of", tie->from, tie->to, 0, 1);
  if (const auto* quantise = std::get_if<Quantise>(&rule)) return CheckQuantise(*quantise);
  return CheckNamePattern(std::get<NotSent>(rule).name);
}

}  // namespace

Status CheckNamePattern(std::string_view pattern) { return PlaceholdersOf(pattern).status(); }

std::optional<std::vector<std::string>> MatchName(std::string_view pattern, std::string_view name) {
  Matcher matcher(pattern, name);
  if (!matcher.Match(0, 0)) return std::nullopt;
  return matcher.TakeCaptures();
}

std::string ExpandName(std::string_view pattern, const std::vector<std::string>& captures) {
  std::string name;
  size_t next = 0;
  for (size_t at = 0; at < pattern.size();) {
    const size_t length = PlaceholderAt(pattern, at);
    if (length > 0 && next < captures.size()) {
      name += captures[next++];
    } else {
      name += pattern.substr(at, std::max<size_t>(length, 1));
    }
    at += std::max<size_t>(length, 1);
  }
  return name;
}

}  // namespace weightcast::plan

namespace weightcast {

Status CheckRules(const NameRules& rules) {
  for (size_t i = 0; i < rules.rules.size(); ++i) {
    if (const Status status = plan::CheckRule(rules.rules[i]); !status.ok())
      return Error(status.code(), "rule ", i + 1, ": ", status.message());
  }
  return Status::Ok();
}

}  // namespace weightcast
