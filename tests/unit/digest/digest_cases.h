#pragma once

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "digest/digest.h"
#include "plan/box.h"

/// Random tensors, and random ways in which ranks hold them.
namespace weightcast::digest::testing {

class Random64 {
 public:
  explicit Random64(uint64_t seed) : engine_(seed) {}
  /// From `low` to `high`, both of them possible.
  int64_t Pick(int64_t low, int64_t high) {
    return std::uniform_int_distribution<int64_t>(low, high)(engine_);
  }
  bool Chance(double part) { return std::bernoulli_distribution(part)(engine_); }
  std::vector<std::byte> Bytes(int64_t count) {
    std::vector<std::byte> bytes(static_cast<size_t>(count));
    for (size_t at = 0; at < bytes.size(); at += sizeof(uint64_t)) {
      const uint64_t word = engine_();
      std::memcpy(bytes.data() + at, &word, std::min(sizeof(word), bytes.size() - at));
    }
    return bytes;
  }

 private:
  std::mt19937_64 engine_;
};

/// A tensor with all its bytes, dense and row-major.
struct Tensor {
  TensorInfo info;
  std::vector<std::byte> bytes;
};

/// A box of a tensor in a buffer of its own: element 0 lies at `data[first]`.
struct Shard {
  Box box;
  std::vector<int64_t> strides;  ///< In elements; empty: dense.
  std::vector<std::byte> data;
  size_t first = 0;
};

inline int64_t Volume(const Shape& size) { return ElementsOf(size); }

inline std::vector<int64_t> DenseStrides(const Shape& size) {
  std::vector<int64_t> strides(size.size(), 1);
  for (size_t d = strides.size(); d-- > 1;) strides[d - 1] = strides[d] * size[d];
  return strides;
}

inline Tensor RandomTensor(Random64& random, int least_dims = 0) {
  constexpr DType kTypes[] = {DType::kBF16, DType::kF32,  DType::kF8E4M3,
                              DType::kI64,  DType::kBool, DType::kC64};
  Tensor tensor;
  tensor.info.name = "layers." + std::to_string(random.Pick(0, 1000)) + ".weight";
  tensor.info.dtype = kTypes[random.Pick(0, 5)];
  int64_t left = random.Chance(0.1) ? 20000 : 3000;
  for (int64_t dims = random.Pick(least_dims, 4); dims > 0; --dims) {
    const int64_t most = std::max<int64_t>(2, dims == 1 ? left : std::min<int64_t>(left, 40));
    tensor.info.shape.push_back(random.Pick(2, most));
    left /= tensor.info.shape.back();
  }
  tensor.bytes = random.Bytes(BytesOf(tensor.info.dtype, Volume(tensor.info.shape)));
  return tensor;
}

/// Cuts `whole` into disjoint boxes of any sizes, some of them empty; not only along a grid.
inline std::vector<Box> RandomCuts(Random64& random, const Box& whole, int cuts) {
  std::vector<Box> boxes = {whole};
  for (int i = 0; i < cuts && !whole.size.empty(); ++i) {
    const auto which = static_cast<size_t>(random.Pick(0, static_cast<int64_t>(boxes.size()) - 1));
    const auto d = static_cast<size_t>(random.Pick(0, static_cast<int64_t>(whole.size.size()) - 1));
    Box& low = boxes[which];
    Box high = low;
    const int64_t at = random.Pick(0, low.size[d]);
    high.offset[d] += at;
    high.size[d] -= at;
    low.size[d] = at;
    boxes.push_back(std::move(high));
  }
  std::shuffle(boxes.begin(), boxes.end(), std::mt19937_64(static_cast<uint64_t>(random.Pick(0, 1 << 30))));
  return boxes;
}

/// Calls fn(place, element) for each element of `box`: where it lies by `strides`, and its number in the
/// tensor.
template <typename Fn>
void ForEachElement(const Shape& shape, const Box& box, const std::vector<int64_t>& strides, Fn&& fn) {
  if (Volume(box.size) == 0) return;
  const std::vector<int64_t> whole = DenseStrides(shape);
  int64_t place = 0;
  int64_t element = 0;
  for (size_t d = 0; d < shape.size(); ++d) element += box.offset[d] * whole[d];
  std::vector<int64_t> index(shape.size());
  for (;;) {
    fn(place, element);
    size_t d = shape.size();
    for (;; --d) {
      if (d == 0) return;
      place += strides[d - 1];
      element += whole[d - 1];
      if (++index[d - 1] < box.size[d - 1]) break;
      place -= box.size[d - 1] * strides[d - 1];
      element -= box.size[d - 1] * whole[d - 1];
      index[d - 1] = 0;
    }
  }
}

/// Strides of a box whose dimensions lie in memory in any order, with gaps, and some of them backwards.
/// Returns how many elements the buffer has, and sets where in it the first one is.
inline int64_t RandomStrides(Random64& random, const Shape& size, std::vector<int64_t>& strides,
                             int64_t& first) {
  std::vector<size_t> order(size.size());
  for (size_t d = 0; d < order.size(); ++d) order[d] = d;
  for (size_t d = order.size(); d-- > 1;)
    std::swap(order[d], order[static_cast<size_t>(random.Pick(0, static_cast<int64_t>(d)))]);
  strides.resize(size.size());
  int64_t elements = 1;
  first = 0;
  for (const size_t d : order) {
    strides[d] = elements + (random.Chance(0.3) ? random.Pick(0, 3) : 0);
    elements = strides[d] * std::max<int64_t>(size[d], 1);
    if (!random.Chance(0.2) || size[d] == 0) continue;
    first += strides[d] * (size[d] - 1);
    strides[d] = -strides[d];
  }
  return elements;
}

inline Shard HoldShard(Random64& random, const Tensor& tensor, const Box& box, double strided = 0.4) {
  const int64_t width = BytesOf(tensor.info.dtype, 1);
  Shard shard{.box = box, .strides = {}, .data = {}, .first = 0};
  std::vector<int64_t> strides = DenseStrides(box.size);
  int64_t elements = Volume(box.size);
  int64_t first = 0;
  if (!box.size.empty() && random.Chance(strided)) {
    elements = RandomStrides(random, box.size, strides, first);
    shard.strides = strides;
  }
  const int64_t skew = random.Pick(0, 40);  // Buffers begin at any address.
  shard.data = random.Bytes(elements * width + skew);
  shard.first = static_cast<size_t>(first * width + skew);
  ForEachElement(tensor.info.shape, box, strides, [&](int64_t place, int64_t element) {
    std::memcpy(shard.data.data() + static_cast<int64_t>(shard.first) + place * width,
                tensor.bytes.data() + element * width, static_cast<size_t>(width));
  });
  return shard;
}

/// A layout: disjoint boxes that cover the tensor.
inline std::vector<Shard> RandomLayout(Random64& random, const Tensor& tensor) {
  std::vector<Shard> shards;
  for (const Box& box : RandomCuts(random, WholeOf(tensor.info.shape), static_cast<int>(random.Pick(0, 7))))
    shards.push_back(HoldShard(random, tensor, box));
  return shards;
}

inline TensorDigest DigestOf(const TensorKey& key, const Shard& shard) {
  return key.DigestOf(shard.box, shard.data.data() + shard.first, shard.strides).value();
}

inline TensorDigest SumOf(const TensorKey& key, const std::vector<Shard>& shards) {
  TensorDigest sum;
  for (const Shard& shard : shards) sum += DigestOf(key, shard);
  return sum;
}

}  // namespace weightcast::digest::testing
