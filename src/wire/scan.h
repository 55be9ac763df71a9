#pragma once

#include <cstddef>
#include <string_view>

#include "weightcast/status.h"

namespace google::protobuf {
class Descriptor;
}

namespace weightcast::wire {

/// Walks protobuf bytes of this type without allocating and refuses (kProtocol) those that hold more than
/// `max_elements` strings and messages at all depths, or are malformed: two bytes on the wire can cost the
/// parser a hundred in memory.
Status CheckElements(const google::protobuf::Descriptor& type, std::string_view bytes, size_t max_elements);

}  // namespace weightcast::wire
