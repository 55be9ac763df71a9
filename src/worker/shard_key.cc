#include "worker/shard_key.h"

#include "base/bytes.h"
#include "base/hash.h"

namespace weightcast::worker {

uint64_t ShardKey(std::string_view tensor, const Box& box, uint32_t copy) {
  ByteWriter writer;
  writer.PutString(tensor);
  for (const Shape* shape : {&box.offset, &box.size}) {
    writer.Put(static_cast<uint32_t>(shape->size()));
    for (const int64_t extent : *shape) writer.Put(extent);
  }
  if (copy > 0) writer.Put(copy);
  const uint64_t key = Hash64(writer.bytes());
  return key == 0 ? 1 : key;
}

}  // namespace weightcast::worker
