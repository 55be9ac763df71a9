#pragma once

#include <string>
#include <string_view>

#include "base/strings.h"
#include "weightcast/status.h"

// What to do about errors of a kind, in one wording wherever they are made.
namespace weightcast {

/// Behind what only our own code can get wrong.
inline constexpr std::string_view kReportBug = "; please report this as a bug";
/// Behind what a peer does that is stopped, or too busy to answer.
inline constexpr std::string_view kSeePeer = "; check that its process runs, and see its log";
/// Behind what a peer of another release may send.
inline constexpr std::string_view kSameRelease = "; run the same release of weightcast on both sides";

/// Between a peer and what it did wrong.
inline constexpr std::string_view kBrokeProtocol = " broke the protocol and was disconnected: ";

/// Of what a caller gave; `parts` say what is wrong with it and what to do.
template <typename... Parts>
Status InvalidArgument(const Parts&... parts) {
  return Error(Code::kInvalidArgument, parts...);
}

/// A kProtocol error that says to run the same release; `error` itself if it says so, or is of another kind.
inline Status WithSameRelease(const Status& error) {
  const std::string& text = error.message();
  const auto says = [&](std::string_view advice) { return text.find(advice) != std::string::npos; };
  if (error.code() != Code::kProtocol || says("same release") || says("same weightcast")) return error;
  return Error(error.code(), text, kSameRelease);
}

/// ErrnoText and what to do, of what the system refused to make: a descriptor, memory, a thread or a process.
std::string ErrnoAndAdvice(int error);

/// As its user reads it: a kProtocol or kCorrupt error of `who`, "the peer (pid 7)" say; else `error`.
inline Status BrokeProtocol(std::string_view who, const Status& error) {
  if (error.code() != Code::kProtocol && error.code() != Code::kCorrupt) return error;
  return WithSameRelease(Error(error.code(), who, kBrokeProtocol, error.message()));
}

/// Of a call that its caller's signal or `interrupted` ended. `what`: such as "the wait for an order".
inline Status InterruptedCall(std::string_view what) {
  return Error(Code::kCancelled, what,
               " was interrupted by a signal or by the caller; make the same call again to go on");
}

/// Of a call on `what`, such as "the endpoint", that its user has closed.
inline Status ClosedHere(std::string_view what) {
  return Error(Code::kCancelled, what, " was closed by this process; make a new one to go on");
}

}  // namespace weightcast
