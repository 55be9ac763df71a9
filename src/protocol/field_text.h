#pragma once

#include <string>
#include <type_traits>
#include <variant>
#include <vector>

#include "base/strings.h"
#include "protocol/messages.h"
#include "weightcast/status.h"
#include "weightcast/version.h"

namespace weightcast::protocol {

/// Messages in words, for traces and tests: "Failed{update: update 7.1 (term 1, epoch 2), source: 3}".
/// Members that are empty, ok, false, 0 or, of signed ones, -1 are left out. `Derived` may say by further Of
/// functions, public, how a type is written, and `using FieldText<Derived>::Of`.
template <typename Derived>
class FieldText {
 public:
  template <typename... Messages>
  std::string operator()(const std::variant<Messages...>& message) {
    return std::visit(
        [this](const auto& what) { return StrCat(TypeName<decltype(what)>(), self().Of(what)); }, message);
  }

  template <typename T>
    requires std::is_integral_v<T>
  std::string Of(T value) {
    return value == (std::is_signed_v<T> ? T(-1) : T(0)) ? std::string() : StrCat(value);
  }
  template <typename T>
    requires std::is_enum_v<T>
  std::string Of(T value) {
    if constexpr (requires { NameOf(value); }) return std::string(NameOf(value));
    return self().Of(static_cast<unsigned>(value));
  }
  std::string Of(double value) { return value == 0 ? std::string() : StrCat(value); }
  std::string Of(const std::string& text) {
    return IsPrintable(text) && text.size() <= kMaxNameBytes ? text : StrCat(text.size(), " bytes");
  }
  std::string Of(const Status& status) { return status.ok() ? std::string() : status.ToString(); }
  std::string Of(const Version& version) { return version.number < 0 ? std::string() : ToString(version); }
  std::string Of(const WorkerName& name) { return ToString(name); }
  std::string Of(const UpdateId& update) { return update == UpdateId{} ? std::string() : ToString(update); }
  template <HasFields T>
  std::string Of(const T& message) {
    std::string out;
    const auto add = [&](std::string_view name, const std::string& text) {
      if (!text.empty()) out += StrCat(out.empty() ? "" : ", ", name, ": ", text);
    };
    Fields(message, [&](const auto&... fields) { (add(fields.name, self().OfField(fields)), ...); });
    return out.empty() ? out : StrCat("{", out, "}");
  }
  template <typename T>
  std::string Of(const std::vector<T>& list) {
    constexpr size_t kShown = 8;
    std::string out;
    for (size_t i = 0; i < list.size() && i <= kShown; ++i)
      out += StrCat(i == 0 ? "" : ", ", i == kShown ? std::string("...") : self().Of(list[i]));
    return list.empty() ? out : StrCat(list.size(), " [", out, "]");
  }

  /// A member, by what a decoder takes into it.
  template <typename T, typename Limit>
  std::string OfField(const Field<T, Limit>& field) {
    if constexpr (std::is_same_v<Limit, Hidden>) return field.value.empty() ? std::string() : "hidden";
    return self().Of(field.value);
  }

 private:
  Derived& self() { return static_cast<Derived&>(*this); }
};

}  // namespace weightcast::protocol
