#include "protocol/trace.h"

#include "protocol/field_text.h"

namespace weightcast::protocol {
namespace {

constexpr std::string_view kMore = "...";

class Brief : public FieldText<Brief> {
 public:
  using FieldText::OfField;
  template <typename T>
  std::string OfField(const Field<T, Fixed>&) {
    return {};
  }
  template <typename T>
  std::string OfField(const Field<T, Bytes>& field) {
    return field.value.empty() ? std::string() : StrCat(field.value.size(), " bytes");
  }
  template <typename T>
  std::string OfField(const Field<T, List<Bytes>>& field) {
    return Of(field.value.size());
  }
};

/// Without half a character at the end.
std::string CutToLimit(std::string text) {
  if (text.size() <= kMaxTracedBytes) return text;
  size_t size = kMaxTracedBytes - kMore.size();
  while (size > 0 && (static_cast<unsigned char>(text[size]) & 0xc0) == 0x80) --size;
  text.resize(size);
  return text.append(kMore);
}

/// A reason may hold anything.
std::string Printable(std::string text) {
  for (char& c : text)
    if (!IsPrintable({&c, 1})) c = ' ';
  return text;
}

template <typename Message>
std::string BriefOfAny(const Message& message) {
  return CutToLimit(
      Printable(std::visit([](const auto& what) { return std::string(Brief().Of(what)); }, message)));
}

}  // namespace

std::string BriefOf(const WorkerMessage& message) { return BriefOfAny(message); }
std::string BriefOf(const ControllerMessage& message) { return BriefOfAny(message); }

}  // namespace weightcast::protocol
