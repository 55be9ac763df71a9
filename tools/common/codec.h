#pragma once

#include <string>
#include <string_view>

#include "protocol/decoder.h"
#include "protocol/encoder.h"

namespace weightcast::tools {

using protocol::F;
using protocol::Is;
using protocol::List;

/// A struct that has Fields (protocol/field.h) as bytes, in the encoding of docs/wire.md.
template <protocol::HasFields T>
std::string EncodeStruct(const T& message) {
  protocol::Encoder out;
  out.Put(message);
  return out.Take();
}

/// Of bytes that may be hostile. Errors: kProtocol, naming struct and member.
template <protocol::HasFields T>
Result<T> DecodeStruct(std::string_view bytes) {
  T message;
  protocol::Decoder in(protocol::TypeName<T>(), bytes);
  in.Get(message);
  WC_RETURN_IF_ERROR(in.status());
  return message;
}

}  // namespace weightcast::tools
