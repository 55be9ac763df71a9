#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <variant>

namespace weightcast {

/// Why a call failed. The same set travels over the wire and into Python exceptions.
enum class Code {
  kOk = 0,
  kUnavailable,      ///< A lane, peer or service cannot be reached now; another path or a later try may work.
  kPeerDead,         ///< The peer process has exited, or sent no heartbeat for a lease.
  kFenced,           ///< The grant under which the operation ran has been revoked.
  kTimedOut,         ///< The deadline of the call passed.
  kCancelled,        ///< The caller cancelled.
  kExhausted,        ///< Memory, descriptors, queue slots or disk ran out.
  kPermission,       ///< Token, operating system or grant forbids it.
  kOutOfBounds,      ///< Outside a region or a tensor.
  kInvalidArgument,  ///< The caller's input is wrong.
  kProtocol,         ///< The peer said something that the protocol does not allow.
  kCorrupt,          ///< Bytes fail their checksum or their format.
  kInternal,         ///< A bug in weightcast.
};

/// The name of a code as written in messages and JSON: "timed out", "peer dead", ...
std::string_view CodeName(Code code);

/// The outcome of a fallible call. Cheap to move; the message is for a person and says
/// what was wrong and what to do.
class [[nodiscard]] Status {
 public:
  Status() = default;
  Status(Code code, std::string message) : code_(code), message_(std::move(message)) {}

  static Status Ok() { return {}; }

  [[nodiscard]] bool ok() const { return code_ == Code::kOk; }
  [[nodiscard]] Code code() const { return code_; }
  [[nodiscard]] const std::string& message() const { return message_; }
  /// "timed out: no answer from trainer 1 within 5 s", or "ok".
  [[nodiscard]] std::string ToString() const;

  friend bool operator==(const Status&, const Status&) = default;

 private:
  Code code_ = Code::kOk;
  std::string message_;
};

/// Prints the reason to standard error and ends the process: value() was called where there is none.
[[noreturn]] void EndForMissingValue(const Status& reason);

/// A value or the reason why there is none. Ask ok() first: value(), * and -> of a failed Result end the
/// process, in every build, and say why it failed.
template <typename T>
class [[nodiscard]] Result {
 public:
  Result(T value)
      : state_(std::in_place_index<0>, std::move(value)) {}  // NOLINT(google-explicit-constructor)
  Result(Status status)
      : state_(std::in_place_index<1>, std::move(status)) {  // NOLINT(google-explicit-constructor)
    if (std::get<1>(state_).ok())
      EndForMissingValue({Code::kInternal, "a Result without a value or an error"});
  }

  [[nodiscard]] bool ok() const { return state_.index() == 0; }
  [[nodiscard]] Status status() const { return ok() ? Status() : std::get<1>(state_); }

  T& value() & { return Checked(); }
  const T& value() const& { return const_cast<Result*>(this)->Checked(); }
  T&& value() && { return std::move(Checked()); }
  T& operator*() & { return Checked(); }
  const T& operator*() const& { return value(); }
  T&& operator*() && { return std::move(Checked()); }
  T* operator->() { return &Checked(); }
  const T* operator->() const { return &value(); }

 private:
  T& Checked() {
    if (T* const value = std::get_if<0>(&state_)) return *value;
    EndForMissingValue(std::get<1>(state_));
  }
  std::variant<T, Status> state_;
};

}  // namespace weightcast

/// Returns the Status of `expression` from the enclosing function unless it is ok.
#define WC_RETURN_IF_ERROR(expression)              \
  do {                                              \
    ::weightcast::Status wc_status_ = (expression); \
    if (!wc_status_.ok()) return wc_status_;        \
  } while (false)

#define WC_CONCAT_INNER(a, b) a##b
#define WC_CONCAT(a, b) WC_CONCAT_INNER(a, b)
#define WC_ASSIGN_OR_RETURN_IMPL(temporary, target, expression) \
  auto temporary = (expression);                                \
  if (!temporary.ok()) return temporary.status();               \
  target = std::move(temporary).value()

/// `WC_ASSIGN_OR_RETURN(auto fd, Open(path));` declares fd or returns the error.
#define WC_ASSIGN_OR_RETURN(target, expression) \
  WC_ASSIGN_OR_RETURN_IMPL(WC_CONCAT(wc_result_, __LINE__), target, expression)
