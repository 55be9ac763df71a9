#include "worker/read_item.h"

#include <algorithm>
#include <cstring>
#include <span>
#include <vector>

#include "worker/convert.h"
#include "worker/shards.h"

namespace weightcast::worker {
namespace {

/// Thin segments (columns) come from pieces of this size, so that each does not cost a system call.
constexpr size_t kWindow = size_t{256} << 10;
constexpr size_t kThin = size_t{16} << 10;

class Window {
 public:
  Window(ShardReader& reader, size_t index, const Shard& shard)
      : reader_(reader), index_(index), end_(SpanOf(shard).size()) {}

  Status Copy(uint64_t offset, std::span<std::byte> out) {
    if (out.size() >= kThin) return reader_.Read(index_, offset, out);
    if (offset < begin_ || offset + out.size() > begin_ + bytes_.size()) {
      begin_ = offset;
      bytes_.resize(std::min<uint64_t>(kWindow, end_ - offset));
      WC_RETURN_IF_ERROR(reader_.Read(index_, offset, bytes_));
    }
    std::memcpy(out.data(), bytes_.data() + (offset - begin_), out.size());
    return Status::Ok();
  }

 private:
  ShardReader& reader_;
  const size_t index_;
  const uint64_t end_;
  uint64_t begin_ = 0;
  std::vector<std::byte> bytes_;
};

}  // namespace

Status ReadItem(ShardReader& reader, size_t index, const Shard& shard, const RouteSegments& segments,
                const Item& item, DType to, std::byte* target) {
  Window window(reader, index, shard);
  std::vector<std::byte> read;  // What is cast.
  const bool cast = shard.tensor.dtype != to;
  Status status;
  ForEachSegment(segments, item, [&](const ItemSegment& segment) {
    if (!status.ok()) return;
    const auto offset = static_cast<uint64_t>(segment.src_offset);
    if (cast) {
      const int64_t count = segment.dst_bytes * 8 / segments.dst_bits;
      read.resize(static_cast<size_t>(count * segments.src_bits / 8));
      status = window.Copy(offset, read);
      if (status.ok()) Convert(shard.tensor.dtype, read.data(), to, target, count);
    } else {
      status = window.Copy(offset, {target, static_cast<size_t>(segment.dst_bytes)});
    }
    target += segment.dst_bytes;
  });
  return status;
}

}  // namespace weightcast::worker
