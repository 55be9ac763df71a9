#include "wire/scan.h"

#include <google/protobuf/descriptor.h>

#include <cstdint>

#include "base/strings.h"

namespace weightcast::wire {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::FieldDescriptor;

enum WireType : uint32_t { kVarint = 0, kFixed64 = 1, kLengthDelimited = 2, kFixed32 = 5 };

/// Takes from the front of what it is given.
class Scanner {
 public:
  explicit Scanner(size_t budget) : budget_(budget) {}

  bool Scan(const Descriptor& type, std::string_view bytes) {
    while (!bytes.empty()) {
      uint64_t tag = 0;
      if (!Varint(bytes, tag)) return false;
      if (!Field(type, static_cast<int>((tag >> 3) & 0x1fffffff), static_cast<uint32_t>(tag & 7), bytes))
        return false;
    }
    return true;
  }
  [[nodiscard]] bool exhausted() const { return exhausted_; }

 private:
  static bool Varint(std::string_view& bytes, uint64_t& value) {
    value = 0;
    for (int shift = 0; shift < 64 && !bytes.empty(); shift += 7) {
      const auto byte = static_cast<unsigned char>(bytes.front());
      bytes.remove_prefix(1);
      value |= uint64_t{byte & 0x7fU} << shift;
      if (byte < 0x80) return true;
    }
    return false;
  }

  static bool Skip(std::string_view& bytes, size_t size) {
    if (size > bytes.size()) return false;
    bytes.remove_prefix(size);
    return true;
  }

  bool Field(const Descriptor& type, int number, uint32_t wire_type, std::string_view& bytes) {
    uint64_t value = 0;
    switch (wire_type) {
      case kVarint:
        return Varint(bytes, value);
      case kFixed64:
        return Skip(bytes, 8);
      case kFixed32:
        return Skip(bytes, 4);
      case kLengthDelimited:
        break;
      default:  // Groups: control.proto has none.
        return false;
    }
    if (!Varint(bytes, value) || value > bytes.size()) return false;
    const std::string_view content = bytes.substr(0, value);
    bytes.remove_prefix(value);
    const FieldDescriptor* field = type.FindFieldByNumber(number);
    if (field != nullptr && field->is_packable())
      return true;  // Packed numbers cost no more than eight times.
    if (budget_-- == 0) {
      exhausted_ = true;
      return false;
    }
    const bool is_message = field != nullptr && field->type() == FieldDescriptor::TYPE_MESSAGE;
    return !is_message || Scan(*field->message_type(), content);
  }

  size_t budget_;
  bool exhausted_ = false;
};

}  // namespace

Status CheckElements(const Descriptor& type, std::string_view bytes, size_t max_elements) {
  Scanner scanner(max_elements);
  if (scanner.Scan(type, bytes)) return Status::Ok();
  if (scanner.exhausted())
    return {Code::kProtocol, StrCat("a ", type.name(), " holds more than ", max_elements, " elements")};
  return {Code::kProtocol, StrCat("a ", type.name(), " is malformed")};
}

}  // namespace weightcast::wire
