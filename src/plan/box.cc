#include "plan/box.h"

#include <algorithm>
#include <string>

#include "base/strings.h"

namespace weightcast::plan {
namespace {

/// Its beginning, with a '?' for what is not of ASCII or does not print.
std::string Shown(std::string_view name) {
  std::string shown(name.substr(0, 64));
  std::ranges::replace_if(shown, [](char c) { return c < ' ' || c > '~'; }, '?');
  return shown;
}

Status CheckName(std::string_view name, const Shape& shape) {
  if (name.empty())
    return Error(Code::kInvalidArgument, "a tensor of shape ", ToString(shape),
                 " has an empty name; give every tensor a name");
  if (name.size() > kMaxNameBytes) {
    return Error(Code::kInvalidArgument, "the tensor name that begins '", name.substr(0, 64), "' has ",
                 name.size(), " bytes; shorten it to at most ", kMaxNameBytes);
  }
  if (!IsPrintable(name))
    return Error(Code::kInvalidArgument, "the tensor name '", Shown(name),
                 "' has control characters (shown as '?'); use printable names");
  if (!IsUtf8(name))
    return Error(Code::kInvalidArgument, "the tensor name '", Shown(name),
                 "' is not UTF-8; use printable names");
  return Status::Ok();
}

}  // namespace

Status CheckTensor(const TensorInfo& tensor) {
  WC_RETURN_IF_ERROR(CheckName(tensor.name, tensor.shape));
  const auto bad = [&](std::string_view what) {
    return Error(Code::kInvalidArgument, "tensor '", tensor.name, "': ", what);
  };
  if (static_cast<int>(tensor.dtype) >= kDTypeCount)
    return bad("its dtype is unknown; give one of the safetensors format, such as BF16");
  if (tensor.shape.size() > static_cast<size_t>(kMaxDims))
    return bad(StrCat("it has ", tensor.shape.size(), " dimensions; at most ", kMaxDims,
                      " are allowed; reshape it"));
  // Empty dimensions count as 1, so that partial products cannot overflow either.
  const int64_t limit = kMaxTensorBytes * 8 / BitsOf(tensor.dtype);
  int64_t elements = 1;
  for (const int64_t size : tensor.shape) {
    if (size < 0)
      return bad(
          StrCat("its shape ", ToString(tensor.shape), " has a negative dimension; give sizes from 0"));
    if (size > limit / elements)
      return bad(StrCat("its shape ", ToString(tensor.shape), " is beyond 1 PiB; give a smaller one"));
    elements *= std::max<int64_t>(size, 1);
  }
  return Status::Ok();
}

Status CheckBox(const Box& box, const TensorInfo& tensor) {
  const size_t dims = tensor.shape.size();
  if (box.offset.size() != dims || box.size.size() != dims) {
    return Error(Code::kInvalidArgument, "tensor '", tensor.name, "' has shape ", ToString(tensor.shape),
                 " but its box has ", box.offset.size(), " offsets and ", box.size.size(),
                 " sizes; give one of each per dimension");
  }
  for (size_t d = 0; d < dims; ++d) {
    if (box.offset[d] >= 0 && box.size[d] >= 0 && box.size[d] <= tensor.shape[d] &&
        box.offset[d] <= tensor.shape[d] - box.size[d])
      continue;
    return Error(Code::kInvalidArgument, "tensor '", tensor.name, "': the box with offset ",
                 ToString(box.offset), " and size ", ToString(box.size), " is not inside the shape ",
                 ToString(tensor.shape), "; correct offset and size");
  }
  return Status::Ok();
}

int64_t ElementsOf(const Box& box) { return weightcast::ElementsOf(box.size); }

bool Contains(const Box& outer, const Box& inner) {
  for (size_t d = 0; d < outer.offset.size(); ++d) {
    if (inner.offset[d] < outer.offset[d]) return false;
    if (inner.offset[d] + inner.size[d] > outer.offset[d] + outer.size[d]) return false;
  }
  return true;
}

}  // namespace weightcast::plan
