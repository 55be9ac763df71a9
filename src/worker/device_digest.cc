#include "worker/device_digest.h"

#include <optional>
#include <set>

#include "trace/metrics.h"

namespace weightcast::worker {
namespace {

using Found = std::vector<std::optional<TensorDigest>>;

TensorDigest DigestOf(const kernels::DigestSums& sums) {
  digest::KeyedSums keyed{};
  for (size_t i = 0; i < kernels::kDigestTerms; ++i) {
    const kernels::DigestSums::Term& term = sums.term[i];
    keyed[i / (digest::kDots + 1)][i % (digest::kDots + 1)] =
        digest::ToField((digest::UInt128{term.high} << 32) + term.low);
  }
  return digest::DigestOf(keyed);
}

/// Those of one device that its kernel can digest.
Status AddByKernel(DeviceKernels& kernels, int device, std::span<const DevicePart> parts, Found& found) {
  std::vector<size_t> which;
  std::vector<kernels::DigestParameters> boxes;
  for (size_t i = 0; i < parts.size(); ++i) {
    if (parts[i].device != device || parts[i].source.count == 0) continue;
    const auto box = DigestLaunch(*parts[i].key, parts[i].source);
    if (!box) continue;
    which.push_back(i);
    boxes.push_back(*box);
  }
  if (boxes.empty()) return Status::Ok();
  WC_ASSIGN_OR_RETURN(const auto own, kernels.Of(device));
  std::vector<kernels::DigestSums> sums(boxes.size());
  WC_RETURN_IF_ERROR(own->Digest(boxes, sums));
  for (size_t i = 0; i < which.size(); ++i) found[which[i]] = DigestOf(sums[i]);
  return Status::Ok();
}

Result<TensorDigest> ByTheHost(DeviceMemories& devices, const DevicePart& part) {
  static trace::Counter& copied = trace::CounterNamed("gpu.host_digests");
  copied.Add();
  const DigestSource& source = part.source;
  const DType dtype = source.memory.dtype;
  GatherSource memory = source.memory;
  HostCopy copy;
  WC_RETURN_IF_ERROR(copy.Fill(devices, part.device, memory, source.first, source.count));
  memory.data = copy.data();
  // Of a whole shard there is no room for a second copy.
  const Box box{.offset = source.place, .size = memory.box.size};
  if (memory.box == memory.shard && source.count == ElementsOf(box.size))
    return part.key->DigestOf(box, memory.data, memory.strides);
  std::vector<std::byte> dense(static_cast<size_t>(BytesOf(dtype, source.count)));
  Gather(memory, source.first, source.count, dtype, dense.data());
  digest::DigestSum sum(*part.key);
  WC_RETURN_IF_ERROR(sum.AddPiece(box, source.first * BitsOf(dtype) / 8, dense));
  return sum.digest();
}

}  // namespace

Result<std::vector<TensorDigest>> DigestsOnDevices(DeviceMemories& devices,
                                                   std::span<const DevicePart> parts) {
  Found found(parts.size());
  std::set<int> tried;
  for (const DevicePart& part : parts) {
    DeviceKernels& kernels = devices.kernels();
    if (!kernels.Usable(part.device) || !tried.insert(part.device).second) continue;
    const Status status = AddByKernel(kernels, part.device, parts, found);
    if (!status.ok()) kernels.GiveUp(part.device, "that are digested", status);
  }
  std::vector<TensorDigest> digests;
  for (size_t i = 0; i < parts.size(); ++i) {
    if (!found[i] && parts[i].source.count > 0) {
      WC_ASSIGN_OR_RETURN(found[i], ByTheHost(devices, parts[i]));
    }
    digests.push_back(found[i].value_or(TensorDigest()));
  }
  return digests;
}

}  // namespace weightcast::worker
