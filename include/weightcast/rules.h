#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "weightcast/status.h"

namespace weightcast {

// How the names on the trainers' side become the names on the inference side. A name in a rule may hold
// placeholders: {*} stands for one or more characters without a dot, {**} for one or more of any kind. On the
// other side of the rule the placeholders take the same values in the same order. A tensor of the trainers
// goes by the first rule that matches its name; where none does, it goes to the tensor of the same name.

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
/// One tensor of the trainers, cut along `dim` in this order, is several of the engine, whose shapes say
/// where to cut.
struct Split {
  std::string from;
  std::vector<std::string> to;
  int dim = 0;
  friend bool operator==(const Split&, const Split&) = default;
};
/// One tensor of the trainers is several equal ones of the engine (tied weights). Lists all of them, the one
/// of the same name too if there is one.
struct Tie {
  std::string from;
  std::vector<std::string> to;
  friend bool operator==(const Tie&, const Tie&) = default;
};
/// Tensors that take no part in updates.
struct NotSent {
  enum class Side { kTrainers, kInference, kBoth };
  std::string name;
  Side side = Side::kBoth;
  friend bool operator==(const NotSent&, const NotSent&) = default;
};

/// One matrix of the trainers (F32, F16 or BF16) is FP8 (F8_E4M3) at the engine, in `to`, with an F32 scale
/// for each block, in `scales`: docs/layout.md, "FP8".
struct Quantise {
  std::string from;
  std::string to;  ///< Empty: as `from`.
  std::string scales;
  std::vector<int64_t> block = {128, 128};  ///< No other is allowed.
  friend bool operator==(const Quantise&, const Quantise&) = default;
};

using Rule = std::variant<Rename, Fuse, Split, Tie, NotSent, Quantise>;

struct NameRules {
  std::vector<Rule> rules;
  friend bool operator==(const NameRules&, const NameRules&) = default;
};

/// Refuses rules that could never work: empty names, a brace that is no placeholder, sides of a rule whose
/// placeholders differ, a fuse or split of fewer than two, a negative dimension, a quantise of another block
/// than 128 x 128. kInvalidArgument, with the rule's number and the reason.
Status CheckRules(const NameRules& rules);
/// The JSON of name rules, as files and Python have it: {"version": 1, "rules": [{"fuse": {...}}, ...]}.
std::string ToJson(const NameRules& rules);
/// Reads and checks one. Errors as CheckRules.
Result<NameRules> ParseRules(std::string_view json);

}  // namespace weightcast
