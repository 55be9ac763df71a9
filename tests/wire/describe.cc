#include "wire/describe.h"

#include <array>
#include <set>
#include <string_view>
#include <utility>
#include <vector>

#include "base/strings.h"
#include "protocol/encoder.h"
#include "protocol/observer_messages.h"

namespace weightcast::wire {
namespace {

using namespace protocol;  // NOLINT(google-build-using-namespace)

constexpr std::string_view kHead =
    "# Messages\n\n"
    "*What each message of the control plane consists of. `wire_samples page` writes this page from the "
    "messages' `Fields`, and tests compare it. How each type is encoded: [wire.md](wire.md), \"Encoding of "
    "messages\". What a member means: the comments in `src/protocol`.*\n\n";

std::string NameOfValue(Role role) {
  return std::array<std::string, 3>{"trainer", "inference", "control"}.at(static_cast<size_t>(role));
}
std::string NameOfValue(Code code) { return std::string(CodeName(code)); }
template <typename Enum>
std::string NameOfValue(Enum value) {
  return std::string(NameOf(value));
}

std::string Limit(Any) { return ""; }
std::string Limit(Fixed) { return ""; }
std::string Limit(Range range) { return StrCat(range.least, " to ", range.most); }
std::string Limit(Hidden limit) { return StrCat("at most ", limit.most, " bytes"); }
std::string Limit(Bytes limit) { return StrCat("at most ", limit.most, " bytes"); }
std::string Limit(Cut limit) { return StrCat("at most ", limit.most, " bytes"); }
std::string Limit(Name limit) { return StrCat("at most ", limit.most, " bytes, no control characters"); }
std::string Limit(Label) { return StrCat("at most ", kMaxNameBytes, " bytes, printable UTF-8"); }
template <typename Each>
std::string Limit(List<Each> limit) {
  const std::string each = Limit(limit.each);
  return StrCat("at most ", limit.most, each.empty() ? "" : ", each ", each);
}

/// Visits types, each struct and enum once.
class Page {
 public:
  template <typename T>
  void AddStruct() {
    if (!seen_.insert(std::string(TypeName<T>())).second) return;
    std::string text = StrCat("### `", TypeName<T>(), "`\n");
    std::string rows;
    T message{};
    Fields(message, [&](const auto&... fields) {
      ((rows += StrCat("| ", fields.name, " | ", TypeText(fields.value, fields.limit), " | ",
                       Limit(fields.limit), " |\n")),
       ...);
    });
    text +=
        rows.empty() ? "No members.\n\n" : StrCat("| member | type | limit |\n|---|---|---|\n", rows, "\n");
    structs_ += text;
  }
  void AddKind(int kind, std::string_view name, std::string_view sender) {
    kinds_ += StrCat("| 0x", ToHex({reinterpret_cast<const char*>(&kind), 1}), " | `", name, "` | ", sender,
                     " |\n");
  }
  template <typename Variant, size_t... Index>
  void AddAll(uint8_t first, std::string_view sender, std::index_sequence<Index...>) {
    (AddMessage<std::variant_alternative_t<Index, Variant>>(first + Index, sender), ...);
  }
  template <typename T>
  void AddMessage(size_t kind, std::string_view sender) {
    if constexpr (std::is_same_v<T, Hello>) kind = kHelloKind;
    if constexpr (std::is_same_v<T, Refused>) kind = kRefusedKind;
    AddKind(static_cast<int>(kind), TypeName<T>(), sender);
    AddStruct<T>();
  }
  [[nodiscard]] std::string Text() const {
    return StrCat(kHead, "## Kinds\n| kind | message | from |\n|---|---|---|\n", kinds_, "\n## Members\n",
                  structs_, "## Enums\n", enums_);
  }

 private:
  template <typename T, typename L>
  std::string TypeText(const T&, const L&) {
    if constexpr (std::is_same_v<T, bool>)
      return "yes or no";
    else if constexpr (std::is_same_v<L, Fixed>)
      return "random number";
    else if constexpr (std::is_enum_v<T>)
      return AddEnum<T>();
    else if constexpr (std::is_integral_v<T>)
      return std::is_signed_v<T> ? "signed number" : "number";
    else if constexpr (std::is_same_v<T, double>)
      return "duration";
    else if constexpr (std::is_same_v<T, std::string>)
      return std::is_same_v<L, Hidden> ? "secret bytes" : std::is_same_v<L, Bytes> ? "bytes" : "text";
    else if constexpr (std::is_same_v<T, Status>)
      return AddEnum<Code>(), "status";
    else
      return AddStruct<T>(), std::string(TypeName<T>());
  }
  template <typename T, typename Each>
  std::string TypeText(const std::vector<T>&, const List<Each>& limit) {
    return StrCat("list of ", TypeText(T{}, limit.each));
  }
  template <typename Enum>
  std::string AddEnum() {
    if (seen_.insert(std::string(TypeName<Enum>())).second) {
      enums_ += StrCat("### `", TypeName<Enum>(), "`\n| value | name |\n|---|---|\n");
      for (int value = 0; value <= static_cast<int>(LastOf(Enum{})); ++value)
        enums_ += StrCat("| ", value, " | ", NameOfValue(static_cast<Enum>(value)), " |\n");
      enums_ += "\n";
    }
    return std::string(TypeName<Enum>());
  }

  std::set<std::string> seen_;
  std::string kinds_;
  std::string structs_;
  std::string enums_;
};

}  // namespace

std::string MessagesPage() {
  Page page;
  page.AddAll<WorkerMessage>(kFirstWorkerKind, "worker",
                             std::make_index_sequence<std::variant_size_v<WorkerMessage>>());
  page.AddAll<ControllerMessage>(kFirstControllerKind, "controller",
                                 std::make_index_sequence<std::variant_size_v<ControllerMessage>>());
  page.AddAll<ObserverReply>(kFirstReplyKind, "controller",
                             std::make_index_sequence<std::variant_size_v<ObserverReply>>());
  page.AddAll<ObserverMessage>(kFirstObserverKind, "observer",
                               std::make_index_sequence<std::variant_size_v<ObserverMessage>>());
  std::string text = page.Text();
  text.pop_back();  // One line break at the end.
  return text;
}

}  // namespace weightcast::wire
