#include "endpoint/transfers/descriptor.h"

#include <tuple>

#include "base/bytes.h"
#include "base/strings.h"

namespace weightcast::endpoint {
namespace {

constexpr uint32_t kDescriptorMagic = 0x44524357;  // "WCRD"
constexpr uint8_t kVersion = 2;

Status Malformed(std::string_view what) {
  return Error(Code::kProtocol, "a region's descriptor is malformed: ", what,
               "; pass on all of its bytes unchanged, and run the same release of weightcast everywhere");
}

Status Check(const RegionDescriptor& descriptor) {
  if (descriptor.name.owner == 0 || descriptor.name.generation == 0) return Malformed("it names no region");
  if (descriptor.length == 0 || descriptor.length > descriptor.registered ||
      descriptor.offset > descriptor.registered - descriptor.length) {
    return Malformed("the region lies outside its registration");
  }
  if ((descriptor.kind == MemoryKind::kHost) != (descriptor.device == DeviceUuid{}))
    return Malformed("its device does not fit its kind of memory");
  return Status::Ok();
}

/// Of which device it is and where it lies, in the order in which the fields cross.
auto PlaceFields(auto& d) {
  return std::tie(d.device, d.name.owner, d.name.id, d.name.generation, d.registered, d.offset, d.length);
}

}  // namespace

std::string EncodeDescriptor(const RegionDescriptor& descriptor) {
  ByteWriter out;
  out.Put(kDescriptorMagic, kVersion, descriptor.access, descriptor.kind, PlaceFields(descriptor),
          static_cast<uint8_t>(descriptor.keys.size()));
  for (const RegionKey& key : descriptor.keys) out.Put(key.transport, key.key);
  return out.Take();
}

Result<RegionDescriptor> ParseDescriptor(std::string_view bytes) {
  if (bytes.size() > kMaxDescriptor) return Malformed("too long");
  ByteReader in(bytes);
  if (in.Get<uint32_t>() != kDescriptorMagic) return Malformed("its first bytes are wrong");
  if (const auto version = in.Get<uint8_t>(); in.ok() && version != kVersion) {
    return Malformed(StrCat("its version is ", version, ", and this release reads version ", kVersion));
  }
  RegionDescriptor descriptor;
  in.Get(descriptor.access, descriptor.kind, PlaceFields(descriptor));
  if (descriptor.access > Access::kRead) return Malformed("unknown access");
  if (descriptor.kind > MemoryKind::kDevice) return Malformed("unknown kind of memory");
  const auto count = in.Get<uint8_t>();
  if (count > kMaxTransports) return Malformed("too many keys");
  for (int i = 0; i < count && in.ok(); ++i) {
    RegionKey key;
    key.transport = in.GetString(kMaxTransportName);
    key.key = in.GetString(kMaxKey);
    descriptor.keys.push_back(std::move(key));
  }
  if (!in.AtEnd()) return Malformed("cut short, or too long");
  WC_RETURN_IF_ERROR(Check(descriptor));
  return descriptor;
}

}  // namespace weightcast::endpoint
