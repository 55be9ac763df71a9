#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "weightcast/status.h"

namespace weightcast::plan {

// How the names on the trainers' side become the names on the inference side. A name in a rule
// may hold placeholders: {*} stands for one or more characters without a dot, {**} for one or more
// of any kind; on the other side of the rule the placeholders take the same values in the same
// order. A tensor of the trainers goes by the first rule that matches its name; where none does,
// it goes to the tensor of the same name.

/// One tensor under another name.
struct Rename {
  std::string from;
  std::string to;
  friend bool operator==(const Rename&, const Rename&) = default;
};
/// Several tensors of the trainers, joined along `dim` in this order, are one of the engine.
struct Fuse {
  std::vector<std::string> from;
  std::string to;
  int dim = 0;
  friend bool operator==(const Fuse&, const Fuse&) = default;
};
/// One tensor of the trainers, cut along `dim` in this order, is several of the engine, whose
/// shapes say where to cut.
struct Split {
  std::string from;
  std::vector<std::string> to;
  int dim = 0;
  friend bool operator==(const Split&, const Split&) = default;
};
/// One tensor of the trainers is several equal ones of the engine (tied weights). Lists all of
/// them, the one of the same name too if there is one.
struct Tie {
  std::string from;
  std::vector<std::string> to;
  friend bool operator==(const Tie&, const Tie&) = default;
};
enum class Side { kTrainers, kInference, kBoth };
/// Tensors that take no part in updates.
struct NotSent {
  std::string name;
  Side side = Side::kBoth;
  friend bool operator==(const NotSent&, const NotSent&) = default;
};

using Rule = std::variant<Rename, Fuse, Split, Tie, NotSent>;

struct NameRules {
  std::vector<Rule> rules;
  friend bool operator==(const NameRules&, const NameRules&) = default;
};

/// The values of the placeholders of `pattern` if `name` matches it (leftmost placeholders take as
/// little as they can).
std::optional<std::vector<std::string>> MatchName(std::string_view pattern, std::string_view name);
/// `pattern` with its placeholders replaced in order. There are as many captures as placeholders.
std::string ExpandName(std::string_view pattern, const std::vector<std::string>& captures);

/// Refuses rules that could never work: empty names, a brace that is no placeholder, sides of a
/// rule whose placeholders differ, a fuse or split of fewer than two, a negative dimension.
Status CheckRules(const NameRules& rules);

}  // namespace weightcast::plan
