#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <utility>

#include "protocol/limits.h"

/// How a message tells what it consists of: beside each struct stands `Fields(message, visitor)`, which calls
/// the visitor once, with every member in order. Encoding, decoding, hashing and printing are visitors.
namespace weightcast::protocol {

// --- What a decoder takes into a member ---------------------------------------------------------

/// All that its type can hold. Durations are `double`: finite and not negative, always. Enums: those there
/// are.
struct Any {};
/// A random number, in eight bytes.
struct Fixed {};
/// A number of least .. most.
struct Range {
  int64_t least = 0;
  int64_t most = 0;
};
/// Bytes of whatever kind.
struct Bytes {
  size_t most = 0;
};
/// The same, and never printed.
struct Hidden {
  size_t most = 0;
};
/// Text for people, which the encoder cuts to so many bytes.
struct Cut {
  size_t most = kMaxStatusBytes;
};
/// Text that may stand in a log line: no control characters.
struct Name {
  size_t most = kMaxNameBytes;
};
/// What CheckLabel allows.
struct Label {};
/// A list, and what holds for each element.
template <typename Each = Any>
struct List {
  size_t most = 0;
  Each each{};
};
template <typename Each = Any>
List(size_t, Each = {}) -> List<Each>;

/// Of one worker.
inline constexpr List<Name> kAddresses{.most = kMaxAddresses, .each = {}};
inline constexpr List<Name> kConnections{.most = kMaxWorkers, .each = {kMaxConnectionBytes}};
/// Of an update, counted from 0.
inline constexpr Range kPart{.least = 0, .most = kMaxParts - 1};
/// The number of a worker in a table, or -1: none.
inline constexpr Range kWorkerOrNone{.least = -1, .most = kMaxWorkers - 1};

// --- Visiting -----------------------------------------------------------------------------------

/// One member of a message.
template <typename T, typename Limit>
struct Field {
  std::string_view name;
  T& value;
  Limit limit;
};
template <typename T, typename Limit = Any>
constexpr Field<T, Limit> F(std::string_view name, T& value, Limit limit = {}) {
  return {name, value, limit};
}

/// `T` is `Message`, constant or not.
template <typename T, typename Message>
concept Is = std::same_as<std::remove_const_t<T>, Message>;

/// What has no members has no fields.
template <typename T>
  requires std::is_empty_v<T> && std::is_aggregate_v<T>
constexpr auto Fields(T&, auto&& visit) {
  return visit();
}

/// Counts, at compile time: decltype(Fields(message, FieldCounter{}))::value.
struct FieldCounter {
  template <typename... Each>
  constexpr auto operator()(const Each&...) const {
    return std::integral_constant<size_t, sizeof...(Each)>{};
  }
};
template <typename T>
concept HasFields = std::is_class_v<T> && requires(T& message) { Fields(message, FieldCounter{}); };
template <typename T>
inline constexpr size_t kFields = decltype(Fields(std::declval<T&>(), FieldCounter{}))::value;

/// The name of a struct: "Hello".
template <typename T>
constexpr std::string_view TypeName() {
  constexpr auto kName = [](std::string_view text) {
    text = text.substr(text.rfind("T = ") + 4);
    text = text.substr(0, text.find_first_of("&;]"));
    if (text.ends_with(' ')) text.remove_suffix(1);  // clang: "const weightcast::protocol::Hello &".
    return text.substr(text.find_last_of(": ") + 1);
  };
  return kName(__PRETTY_FUNCTION__);
}

/// Becomes whatever a member is.
struct Anything {
  template <typename T>
  constexpr operator T() const;  // NOLINT(google-explicit-constructor): that is its use.
};
/// How many members an aggregate has: as many as it can be initialised with.
template <typename T, typename... Values>
consteval size_t MembersOf() {
  if constexpr (requires { T{Values{}..., Anything{}}; }) {
    return MembersOf<T, Values..., Anything>();
  } else {
    return sizeof...(Values);
  }
}
/// Fields names every member. Whoever visits a message asserts it: a member that is forgotten does not
/// compile.
template <typename T>
inline constexpr bool kComplete = kFields<T> == MembersOf<T>();

/// Messages are equal if all their members are.
template <HasFields T>
constexpr bool operator==(const T& a, const T& b) {
  static_assert(kComplete<T>, "Fields leaves a member out");
  const auto values = [](const auto&... fields) { return std::tie(fields.value...); };
  return Fields(a, values) == Fields(b, values);
}

}  // namespace weightcast::protocol
