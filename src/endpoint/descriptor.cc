#include "endpoint/descriptor.h"

#include <cstring>

#include "base/bytes.h"
#include "base/strings.h"
#include "endpoint/message.h"

namespace weightcast::endpoint {
namespace {

constexpr uint32_t kDescriptorMagic = 0x44524357;  // "WCRD"
constexpr uint8_t kVersion = 2;

Status Malformed(std::string_view what) {
  return {
      Code::kProtocol,
      StrCat("a region's descriptor is malformed: ", what,
             "; pass on all bytes of Region::Descriptor, and run the same release of weightcast everywhere")};
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

}  // namespace

std::string EncodeDescriptor(const RegionDescriptor& descriptor) {
  ByteWriter out;
  out.Put(kDescriptorMagic);
  out.Put(kVersion);
  out.Put(static_cast<uint8_t>(descriptor.access));
  out.Put(static_cast<uint8_t>(descriptor.kind));
  out.PutRaw({reinterpret_cast<const char*>(descriptor.device.data()), descriptor.device.size()});
  out.Put(descriptor.name.owner);
  out.Put(descriptor.name.id);
  out.Put(descriptor.name.generation);
  out.Put(descriptor.registered);
  out.Put(descriptor.offset);
  out.Put(descriptor.length);
  out.Put(static_cast<uint8_t>(descriptor.keys.size()));
  for (const RegionKey& key : descriptor.keys) {
    out.PutString(key.transport);
    out.PutString(key.key);
  }
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
  const auto access = in.Get<uint8_t>();
  if (access > static_cast<uint8_t>(Access::kRead)) return Malformed("unknown access");
  descriptor.access = static_cast<Access>(access);
  const auto kind = in.Get<uint8_t>();
  if (kind > static_cast<uint8_t>(MemoryKind::kDevice)) return Malformed("unknown kind of memory");
  descriptor.kind = static_cast<MemoryKind>(kind);
  const auto device = in.GetRaw(descriptor.device.size());
  if (in.ok()) std::memcpy(descriptor.device.data(), device.data(), device.size());
  descriptor.name.owner = in.Get<uint64_t>();
  descriptor.name.id = in.Get<uint32_t>();
  descriptor.name.generation = in.Get<uint32_t>();
  descriptor.registered = in.Get<uint64_t>();
  descriptor.offset = in.Get<uint64_t>();
  descriptor.length = in.Get<uint64_t>();
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
