#pragma once

#include <memory>
#include <new>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>

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
// Written out, not a std::variant: that made 42 functions of each T in every file, a tenth of the compiler's
// time.
template <typename T>
class [[nodiscard]] Result {
 public:
  Result(T value) : value_(std::move(value)) {}         // NOLINT(google-explicit-constructor)
  Result(Status status) : status_(std::move(status)) {  // NOLINT(google-explicit-constructor)
    if (status_.ok())
      EndForMissingValue({Code::kInternal, "a Result without a value or an error; return one of the two"});
  }
  Result(const Result& other)
    requires std::is_copy_constructible_v<T>
      : status_(other.status_) {
    if (ok()) new (std::addressof(value_)) T(other.value_);
  }
  Result(Result&& other) noexcept(std::is_nothrow_move_constructible_v<T>)
      : status_(std::move(other.status_)) {
    if (ok()) new (std::addressof(value_)) T(std::move(other.value_));
  }
  Result& operator=(Result other) noexcept {
    static_assert(std::is_nothrow_move_constructible_v<T>,
                  "a throwing move would leave neither value nor reason");
    this->~Result();
    return *new (this) Result(std::move(other));
  }
  ~Result() {
    if (ok()) value_.~T();
  }

  [[nodiscard]] bool ok() const { return status_.ok(); }
  [[nodiscard]] Status status() const { return status_; }

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
    if (!ok()) EndForMissingValue(status_);
    return value_;
  }
  Status status_;
  union {
    T value_;  ///< Exists while status_ is ok; a status that is moved from keeps its code.
  };
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
