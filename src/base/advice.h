#pragma once

#include <string_view>

#include "base/strings.h"
#include "weightcast/status.h"

// What to do about errors of a kind, in one wording wherever they are made.
namespace weightcast {

/// Behind what only our own code can get wrong.
inline constexpr std::string_view kReportBug = "; please report this as a bug";
/// Behind what a peer of another release may send.
inline constexpr std::string_view kSameRelease = "; run the same release of weightcast on both sides";

/// A kProtocol error that says to run the same release; `error` itself if it says so, or is of another kind.
inline Status WithSameRelease(const Status& error) {
  const std::string& text = error.message();
  if (error.code() != Code::kProtocol || text.find("same release") != std::string::npos) return error;
  return {error.code(), StrCat(text, kSameRelease)};
}

/// Of a call on `what`, such as "the endpoint", that its user has closed.
inline Status ClosedHere(std::string_view what) {
  return {Code::kCancelled, StrCat(what, " was closed by this process; make a new one to go on")};
}

}  // namespace weightcast
