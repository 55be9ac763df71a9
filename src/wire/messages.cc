#include "wire/messages.h"

#include <array>

#include "base/strings.h"
#include "wire/limits.h"

namespace weightcast {

std::string_view NameOf(EngineState state) {
  static constexpr std::array<std::string_view, 7> kNames = {"JOINING",   "SERVING",   "UPDATING", "READY",
                                                             "COMMITTED", "SUSPENDED", "FAILED"};
  return kNames[static_cast<size_t>(state)];
}

}  // namespace weightcast

namespace weightcast::wire {

Status CheckLabel(std::string_view label) {
  const auto bad = [](std::string_view what) {
    return Status(Code::kInvalidArgument, StrCat("the label of a version ", what));
  };
  if (label.size() > kMaxNameBytes)
    return bad(StrCat("has ", label.size(), " bytes; at most ", kMaxNameBytes, " are allowed"));
  if (!IsPrintable(label)) return bad("has control characters");
  if (!IsUtf8(label)) return bad("is not UTF-8");
  return Status::Ok();
}

std::string ToString(const WorkerName& name) {
  if (name.role == Role::kTrainer) return StrCat("trainer ", name.rank);
  if (name.role == Role::kControl) return StrCat("the control of engine ", name.engine);
  return StrCat("engine ", name.engine, " rank ", name.rank);
}

std::string ToString(const UpdateId& update) {
  return StrCat("update ", update.sequence, ".", update.attempt, " (term ", update.term.number, ", epoch ",
                update.epoch, ")");
}

std::string_view NameOf(Move move) {
  static constexpr std::array<std::string_view, 4> kNames = {"pause", "settle", "admit", "evict"};
  return kNames[static_cast<size_t>(move)];
}

std::string_view NameOf(Landing landing) { return landing == Landing::kInPlace ? "in_place" : "shadow"; }

}  // namespace weightcast::wire
