#include "plan/json_text.h"

#include "base/strings.h"

namespace weightcast::plan {

Status CheckJsonText(std::string_view what, std::string_view text, int max_depth) {
  if (text.size() > kMaxJsonBytes) {
    return {Code::kInvalidArgument, StrCat(what, " has ", text.size(), " bytes; at most ", kMaxJsonBytes,
                                           " are accepted; use patterns instead of boxes")};
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
        return {Code::kInvalidArgument,
                StrCat(what, " is nested more than ", max_depth, " deep at byte ", i)};
    } else if (c == ']' || c == '}') {
      --depth;
    }
  }
  return Status::Ok();
}

}  // namespace weightcast::plan
