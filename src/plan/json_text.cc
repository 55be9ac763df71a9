#include "plan/json_text.h"

#include "base/available.h"
#include "base/strings.h"

namespace weightcast::plan {
namespace {

/// What the tree of values takes at most: "[]," is a value, an array and what its growth leaves behind.
constexpr uint64_t kBytesPerCharacter = 48;
/// Of less nobody is asked: what is available stands in files of the kernel, and to read them takes longer.
constexpr uint64_t kAlwaysThere = uint64_t{1} << 20;

}  // namespace

Status CheckJsonText(std::string_view what, std::string_view text, int max_depth, std::string_view shorter) {
  if (text.size() > kMaxJsonBytes) {
    return Error(Code::kInvalidArgument, what, " has ", text.size(), " bytes; at most ", kMaxJsonBytes,
                 " are accepted; ", shorter);
  }
  // The tree must have room from the start: to take it down where memory has run out needs memory itself.
  const uint64_t wanted = text.size() * kBytesPerCharacter;
  if (const uint64_t available = wanted > kAlwaysThere ? AvailableMemory() : kAlwaysThere;
      wanted > available) {
    return Error(Code::kExhausted, "reading ", what, " may take ", HumanBytes(static_cast<double>(wanted)),
                 " of memory, and ", HumanBytes(static_cast<double>(available)), " are available; ", shorter,
                 ", or give this process more");
  }
  int depth = 0;
  bool in_string = false;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (in_string) {
      if (c == '\\') ++i;
      in_string = c != '"';
    } else if (c == '"') {
      in_string = true;
    } else if (c == '[' || c == '{') {
      if (++depth > max_depth)
        return Error(Code::kInvalidArgument, what, " is nested more than ", max_depth, " deep at byte ", i,
                     "; check its brackets, and that it is the right text");
    } else if (c == ']' || c == '}') {
      --depth;
    }
  }
  return Status::Ok();
}

}  // namespace weightcast::plan
