#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <span>
#include <stdexcept>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "weightcast/memory.h"
#include "weightcast/worker.h"
#include "worker/convert.h"

namespace weightcast::test {

/// How one side holds the model.
enum class Cut {
  kWhole,    ///< Every rank has all.
  kRows,     ///< Dimension 0, torch.chunk's rule (fsdp).
  kColumns,  ///< The last dimension (tensor parallel), rows where there is but one.
};

/// A small model with a bit of everything: a matrix of several transfers, odd shapes, a vector, a scalar.
std::vector<TensorInfo> SmallModel(DType dtype);

/// What a rank holds, in memory of its own (one Allocate'd buffer, or plain vectors).
class Weights {
 public:
  Weights(const std::vector<TensorInfo>& model, Cut cut, uint32_t rank, uint32_t ranks, bool shared = true);
  /// These parts, each at a place of its own.
  explicit Weights(std::span<const std::pair<TensorInfo, Box>> parts);

  [[nodiscard]] std::vector<Shard> shards() const { return shards_; }
  /// Every element gets a value that depends on version, tensor and place in the whole tensor.
  void Fill(int64_t version);
  /// How many elements are not those of `version`.
  [[nodiscard]] int64_t Wrong(int64_t version) const;
  [[nodiscard]] size_t bytes() const;

 private:
  void GiveMemory(bool shared);

  std::vector<Shard> shards_;
  std::shared_ptr<SharedBuffer> buffer_;
  std::vector<std::vector<std::byte>> plain_;
};

inline uint64_t BitsFor(int64_t version, size_t tensor, int64_t element) {
  uint64_t x = static_cast<uint64_t>(version) * 0x9e3779b97f4a7c15ULL + tensor * 0xbf58476d1ce4e5b9ULL +
               static_cast<uint64_t>(element);
  x ^= x >> 31;
  x *= 0x94d049bb133111ebULL;
  return x ^ x >> 29;
}

/// A small whole number, exact in F32, F16 and BF16.
inline float ValueOf(int64_t version, size_t tensor, int64_t element) {
  return static_cast<float>(BitsFor(version, tensor, element) % 251) - 125.0F;
}

inline Box BoxOf(const TensorInfo& tensor, Cut cut, uint32_t rank, uint32_t ranks) {
  Box box = WholeOf(tensor.shape);
  if (cut == Cut::kWhole || tensor.shape.empty()) return box;
  const size_t d = cut == Cut::kRows ? 0 : tensor.shape.size() - 1;
  const int64_t piece = (tensor.shape[d] + ranks - 1) / ranks;
  box.offset[d] = std::min<int64_t>(piece * rank, tensor.shape[d]);
  box.size[d] = std::min<int64_t>(piece, tensor.shape[d] - box.offset[d]);
  return box;
}

inline const Box& PartOf(const Shard& shard) { return std::get<Box>(shard.part); }

/// Calls fn(position in the shard, element number in the whole tensor).
template <typename Fn>
void ForEachElement(const Shard& shard, Fn&& fn) {
  const int64_t count = ElementsOf(PartOf(shard).size);
  std::vector<int64_t> index(PartOf(shard).size.size(), 0);
  for (int64_t i = 0; i < count; ++i) {
    int64_t element = 0;
    for (size_t d = 0; d < index.size(); ++d)
      element = element * shard.tensor.shape[d] + PartOf(shard).offset[d] + index[d];
    fn(i, element);
    for (size_t d = index.size(); d-- > 0;) {
      if (++index[d] < PartOf(shard).size[d]) break;
      index[d] = 0;
    }
  }
}

inline std::vector<TensorInfo> SmallModel(DType dtype) {
  return {{"embed.weight", dtype, {2200, 1024}}, {"layer.0.norm", dtype, {1024}},
          {"layer.0.attn", dtype, {513, 66}},    {"layer.0.bias", dtype, {7}},
          {"layer.1.mlp", dtype, {128, 10, 24}}, {"scale", dtype, {}},
          {"head.weight", dtype, {64, 1024}}};
}

inline Weights::Weights(const std::vector<TensorInfo>& model, Cut cut, uint32_t rank, uint32_t ranks,
                        bool shared) {
  for (const TensorInfo& tensor : model) {
    Shard shard;
    shard.tensor = tensor;
    shard.part = BoxOf(tensor, cut, rank, ranks);
    // A scalar cannot be cut: rank 0 has it, or everybody has.
    if (cut != Cut::kWhole && tensor.shape.empty() && cut == Cut::kRows && rank > 0) continue;
    shards_.push_back(shard);
  }
  GiveMemory(shared);
}

inline Weights::Weights(std::span<const std::pair<TensorInfo, Box>> parts) {
  for (const auto& [tensor, box] : parts) shards_.push_back({.tensor = tensor, .part = box});
  GiveMemory(/*shared=*/true);
}

inline void Weights::GiveMemory(bool shared) {
  size_t total = 0;
  for (const Shard& shard : shards_)
    total +=
        (static_cast<size_t>(BytesOf(shard.tensor.dtype, ElementsOf(PartOf(shard).size))) + 63) / 64 * 64;
  if (shared) {
    auto buffer = Allocate(total);
    if (!buffer.ok()) throw std::runtime_error(buffer.status().ToString());
    buffer_ = *buffer;
  }
  size_t offset = 0;
  for (Shard& shard : shards_) {
    const auto bytes = static_cast<size_t>(BytesOf(shard.tensor.dtype, ElementsOf(PartOf(shard).size)));
    if (shared) {
      shard.memory = HostMemory(buffer_->bytes().subspan(offset, bytes));
      offset += (bytes + 63) / 64 * 64;
    } else {
      plain_.emplace_back(std::max<size_t>(bytes, 1));
      shard.memory = HostMemory(std::span(plain_.back()).first(bytes));
    }
  }
}

inline size_t Weights::bytes() const {
  size_t total = 0;
  for (const Shard& shard : shards_)
    total += static_cast<size_t>(BytesOf(shard.tensor.dtype, ElementsOf(PartOf(shard).size)));
  return total;
}

inline void Weights::Fill(int64_t version) {
  for (const Shard& shard : shards_) {
    const auto size = static_cast<size_t>(BitsOf(shard.tensor.dtype)) / 8;
    const size_t seed = std::hash<std::string>()(shard.tensor.name);
    ForEachElement(shard, [&](int64_t i, int64_t element) {
      std::byte* at = shard.memory.address + static_cast<size_t>(i) * size;
      if (shard.tensor.dtype == DType::kU64) {
        const uint64_t bits = BitsFor(version, seed, element);
        std::memcpy(at, &bits, sizeof bits);
      } else {
        const float value = ValueOf(version, seed, element);
        worker::Convert(DType::kF32, reinterpret_cast<const std::byte*>(&value), shard.tensor.dtype, at, 1);
      }
    });
  }
}

inline int64_t Weights::Wrong(int64_t version) const {
  int64_t wrong = 0;
  for (const Shard& shard : shards_) {
    const auto size = static_cast<size_t>(BitsOf(shard.tensor.dtype)) / 8;
    const size_t seed = std::hash<std::string>()(shard.tensor.name);
    ForEachElement(shard, [&](int64_t i, int64_t element) {
      const std::byte* at = shard.memory.address + static_cast<size_t>(i) * size;
      if (shard.tensor.dtype == DType::kU64) {
        uint64_t bits = 0;
        std::memcpy(&bits, at, sizeof bits);
        wrong += bits != BitsFor(version, seed, element) ? 1 : 0;
      } else {
        float value = 0;
        worker::Convert(shard.tensor.dtype, at, DType::kF32, reinterpret_cast<std::byte*>(&value), 1);
        wrong += value != ValueOf(version, seed, element) ? 1 : 0;
      }
    });
  }
  return wrong;
}

}  // namespace weightcast::test
