#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <variant>

#include "protocol/trace.h"
#include "protocol/view.h"
#include "weightcast/status.h"

/// What observers and the controller say to each other: `weightcast info` and `explain` are observers.
namespace weightcast::protocol {

/// Asks what the last updates took: answered by Updates. From here on it gets no ClusterView.
struct AskUpdates {
  std::string model;    ///< Empty: all models.
  int64_t number = -1;  ///< Only those to the version of this number.
  uint32_t last = 1;    ///< How many of each model.
};
constexpr auto Fields(Is<AskUpdates> auto& m, auto&& visit) {
  return visit(F("model", m.model, Name{}), F("number", m.number, Range{-1, kMaxVersionNumber}),
               F("last", m.last));
}

struct Updates {
  Status reason;     ///< Why there is no JSON.
  std::string json;  ///< As docs/explain.md has it.
};
constexpr auto Fields(Is<Updates> auto& m, auto&& visit) {
  return visit(F("reason", m.reason), F("json", m.json, Bytes{kMaxMessageBytes}));
}

/// From an observer.
using ObserverMessage = std::variant<AskTrace, AskUpdates>;
/// To an observer.
using ObserverReply = std::variant<ClusterView, Trace, Updates>;

inline std::string_view NameOf(const ObserverMessage& message) {
  return std::visit([](const auto& what) { return TypeName<decltype(what)>(); }, message);
}
inline std::string_view NameOf(const ObserverReply& message) {
  return std::visit([](const auto& what) { return TypeName<decltype(what)>(); }, message);
}

}  // namespace weightcast::protocol
