#include "p2p/metadata.h"

#include <algorithm>
#include <utility>

#include "base/bytes.h"
#include "base/hash.h"
#include "base/socket.h"
#include "base/strings.h"

namespace weightcast::p2p {
namespace {

constexpr uint32_t kMetadataMagic = 0x31454357;  // "WCE1"
constexpr uint32_t kAdvertMagic = 0x31414357;    // "WCA1"
constexpr uint32_t kAdvertsMagic = 0x314c4357;   // "WCL1"
constexpr size_t kMaxAddress = 64;
constexpr size_t kChecksum = sizeof(uint64_t);

/// Filled up with zeros to `size`, the last eight bytes a checksum of all before.
std::string Seal(std::string bytes, size_t size) {
  bytes.resize(size - kChecksum);
  return bytes + PackBytes(Hash64(bytes));
}

/// The fields of what Seal made; kInvalidArgument if this is not it.
Result<ByteReader> Unseal(std::string_view bytes, size_t size, uint32_t magic, std::string_view what) {
  if (bytes.size() != size)
    return Error(Code::kInvalidArgument, what, " must have ", size, " bytes, and ", bytes.size(),
                 " were given; pass on all of its bytes unchanged");
  ByteReader checksum(bytes.substr(size - kChecksum));
  const std::string_view body = bytes.substr(0, size - kChecksum);
  ByteReader fields(body);
  if (fields.Get<uint32_t>() != magic)
    return Error(Code::kInvalidArgument, what,
                 " is of another release of weightcast, or is something "
                 "else; run the same release on both sides, and pass on all bytes unchanged");
  if (checksum.Get<uint64_t>() != Hash64(body))
    return Error(Code::kInvalidArgument, what,
                 " was damaged on its way: its checksum is wrong; send it again");
  return fields;
}

}  // namespace

std::string Encode(const EngineMetadata& metadata) {
  ByteWriter writer;
  const Gpu& gpu = metadata.gpu;
  writer.Put(kMetadataMagic, metadata.incarnation, metadata.rank, gpu.index, gpu.by_index,
             std::string_view(gpu.label).substr(0, Gpu::kMaxLabel));
  for (const std::string& address : metadata.addresses) {
    const size_t needed = writer.bytes().size() + sizeof(uint32_t) + address.size();
    if (address.empty() || address.size() > kMaxAddress || needed > EngineMetadata::kBytes - kChecksum)
      continue;
    writer.PutString(address);
  }
  return Seal(writer.Take(), EngineMetadata::kBytes);
}

Result<EngineMetadata> ParseMetadata(std::string_view bytes) {
  WC_ASSIGN_OR_RETURN(ByteReader reader,
                      Unseal(bytes, EngineMetadata::kBytes, kMetadataMagic, "an endpoint's metadata"));
  EngineMetadata metadata;
  reader.Get(metadata.incarnation, metadata.rank, metadata.gpu.index, metadata.gpu.by_index);
  metadata.gpu.label = reader.GetString(Gpu::kMaxLabel);
  while (reader.rest().size() >= sizeof(uint32_t)) {  // Zeros fill the rest: an empty one is the end.
    const std::string_view address = reader.GetString(kMaxAddress);
    if (address.empty()) break;
    metadata.addresses.emplace_back(address);
  }
  const auto wrong = [](const std::string& address) { return !ParseHostPort(address).ok(); };
  if (!reader.ok() || metadata.incarnation == 0 || metadata.addresses.empty() ||
      std::ranges::any_of(metadata.addresses, wrong))
    return Status(Code::kInvalidArgument,
                  "an endpoint's metadata has the right checksum, but values that this release never writes; "
                  "run the same release of weightcast on both sides");
  return metadata;
}

std::string Encode(const Advert& advert) {
  return Seal(
      PackBytes(kAdvertMagic, advert.owner, advert.memory, advert.offset, advert.length, advert.address),
      Advert::kBytes);
}

Result<Advert> ParseAdvert(std::string_view bytes) {
  WC_ASSIGN_OR_RETURN(ByteReader reader, Unseal(bytes, Advert::kBytes, kAdvertMagic, "advertised memory"));
  Advert advert;
  reader.Get(advert.owner, advert.memory, advert.offset, advert.length, advert.address);
  if (advert.owner == 0 || advert.memory == 0 || advert.offset > UINT64_MAX - advert.length)
    return Status(Code::kInvalidArgument,
                  "advertised memory has the right checksum, but values that this release never writes; run "
                  "the same release of weightcast on both sides");
  return advert;
}

std::string Encode(const std::vector<Advert>& adverts) {
  ByteWriter writer;
  writer.Put(kAdvertsMagic);
  writer.Put(static_cast<uint32_t>(adverts.size()));
  for (const Advert& advert : adverts) writer.PutRaw(Encode(advert));
  return writer.Take();
}

Result<std::vector<Advert>> ParseAdverts(std::string_view bytes) {
  ByteReader reader(bytes);
  const auto magic = reader.Get<uint32_t>();
  const auto count = reader.Get<uint32_t>();
  const bool whole = reader.ok() && magic == kAdvertsMagic && count <= kMaxAdverts;
  if (!whole || reader.rest().size() != count * Advert::kBytes)
    return Status(Code::kInvalidArgument,
                  "the serialized descriptors are cut short, of another release of weightcast, or something "
                  "else; run the same release on both sides, and pass on all bytes unchanged");
  std::vector<Advert> adverts;
  for (uint32_t i = 0; i < count; ++i) {
    const auto advert = ParseAdvert(reader.GetRaw(Advert::kBytes));
    if (!advert.ok()) return Error(advert.status().code(), "descriptor ", i, ": ", advert.status().message());
    adverts.push_back(*advert);
  }
  return adverts;
}

}  // namespace weightcast::p2p
