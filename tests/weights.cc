#include "weights.h"

#include <algorithm>
#include <cstring>
#include <functional>
#include <stdexcept>
#include <variant>

#include "worker/convert.h"

namespace weightcast::test {
namespace {

uint64_t BitsFor(int64_t version, size_t tensor, int64_t element) {
  uint64_t x = static_cast<uint64_t>(version) * 0x9e3779b97f4a7c15ULL + tensor * 0xbf58476d1ce4e5b9ULL +
               static_cast<uint64_t>(element);
  x ^= x >> 31;
  x *= 0x94d049bb133111ebULL;
  return x ^ x >> 29;
}

/// A small whole number, exact in F32, F16 and BF16.
float ValueOf(int64_t version, size_t tensor, int64_t element) {
  return static_cast<float>(BitsFor(version, tensor, element) % 251) - 125.0F;
}

Box BoxOf(const TensorInfo& tensor, Cut cut, uint32_t rank, uint32_t ranks) {
  Box box = WholeOf(tensor.shape);
  if (cut == Cut::kWhole || tensor.shape.empty()) return box;
  const size_t d = cut == Cut::kRows ? 0 : tensor.shape.size() - 1;
  const int64_t piece = (tensor.shape[d] + ranks - 1) / ranks;
  box.offset[d] = std::min<int64_t>(piece * rank, tensor.shape[d]);
  box.size[d] = std::min<int64_t>(piece, tensor.shape[d] - box.offset[d]);
  return box;
}

const Box& PartOf(const Shard& shard) { return std::get<Box>(shard.part); }

size_t SizeOf(DType dtype) { return static_cast<size_t>(BitsOf(dtype)) / 8; }

size_t SeedOf(const Shard& shard) { return std::hash<std::string>()(shard.tensor.name); }

std::byte* PlaceOf(const Shard& shard, int64_t element) {
  return shard.memory.address + static_cast<size_t>(element) * SizeOf(shard.tensor.dtype);
}

/// Calls fn(position in the shard, element number in the whole tensor, count) for each run of elements that
/// follow each other in both.
template <typename Fn>
void ForEachRow(const Shard& shard, Fn&& fn) {
  const Box& part = PartOf(shard);
  const int64_t count = ElementsOf(part.size);
  const int64_t row = part.size.empty() ? 1 : part.size.back();
  std::vector<int64_t> index(part.size.size(), 0);
  for (int64_t i = 0; i < count; i += row) {
    int64_t element = 0;
    for (size_t d = 0; d < index.size(); ++d)
      element = element * shard.tensor.shape[d] + part.offset[d] + index[d];
    fn(i, element, row);
    for (size_t d = index.size(); d-- > 1;) {
      if (++index[d - 1] < part.size[d - 1]) break;
      index[d - 1] = 0;
    }
  }
}

/// The elements [first, first + count) of a tensor: of DType::kU64 all bits, of others a value.
std::vector<uint64_t> BitsOfRow(int64_t version, size_t tensor, int64_t first, int64_t count) {
  std::vector<uint64_t> bits;
  for (int64_t i = 0; i < count; ++i) bits.push_back(BitsFor(version, tensor, first + i));
  return bits;
}

std::vector<float> ValuesOfRow(int64_t version, size_t tensor, int64_t first, int64_t count) {
  std::vector<float> values;
  for (int64_t i = 0; i < count; ++i) values.push_back(ValueOf(version, tensor, first + i));
  return values;
}

template <typename T>
int64_t Differences(const std::vector<T>& found, const std::vector<T>& expected) {
  int64_t differences = 0;
  for (size_t i = 0; i < expected.size(); ++i) differences += found[i] != expected[i] ? 1 : 0;
  return differences;
}

}  // namespace

std::vector<TensorInfo> SmallModel(DType dtype) {
  return {{"embed.weight", dtype, {2200, 1024}}, {"layer.0.norm", dtype, {1024}},
          {"layer.0.attn", dtype, {513, 66}},    {"layer.0.bias", dtype, {7}},
          {"layer.1.mlp", dtype, {128, 10, 24}}, {"scale", dtype, {}},
          {"head.weight", dtype, {64, 1024}}};
}

Weights::Weights(const std::vector<TensorInfo>& model, Cut cut, uint32_t rank, uint32_t ranks, bool shared) {
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

Weights::Weights(std::span<const std::pair<TensorInfo, Box>> parts) {
  for (const auto& [tensor, box] : parts) shards_.push_back({.tensor = tensor, .part = box});
  GiveMemory(/*shared=*/true);
}

void Weights::GiveMemory(bool shared) {
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

size_t Weights::bytes() const {
  size_t total = 0;
  for (const Shard& shard : shards_)
    total += static_cast<size_t>(BytesOf(shard.tensor.dtype, ElementsOf(PartOf(shard).size)));
  return total;
}

void Weights::Fill(int64_t version) {
  for (const Shard& shard : shards_) {
    const size_t seed = SeedOf(shard);
    ForEachRow(shard, [&](int64_t i, int64_t element, int64_t count) {
      if (shard.tensor.dtype == DType::kU64) {
        const auto bits = BitsOfRow(version, seed, element, count);
        std::memcpy(PlaceOf(shard, i), bits.data(), bits.size() * sizeof(uint64_t));
      } else {
        const auto values = ValuesOfRow(version, seed, element, count);
        worker::Convert(DType::kF32, reinterpret_cast<const std::byte*>(values.data()), shard.tensor.dtype,
                        PlaceOf(shard, i), values.size());
      }
    });
  }
}

int64_t Weights::Wrong(int64_t version) const {
  int64_t wrong = 0;
  for (const Shard& shard : shards_) {
    const size_t seed = SeedOf(shard);
    ForEachRow(shard, [&](int64_t i, int64_t element, int64_t count) {
      if (shard.tensor.dtype == DType::kU64) {
        std::vector<uint64_t> bits(static_cast<size_t>(count));
        std::memcpy(bits.data(), PlaceOf(shard, i), bits.size() * sizeof(uint64_t));
        wrong += Differences(bits, BitsOfRow(version, seed, element, count));
      } else {
        // Back to the value that was meant: what casts wrongly must not say what is right.
        std::vector<float> values(static_cast<size_t>(count));
        worker::Convert(shard.tensor.dtype, PlaceOf(shard, i), DType::kF32,
                        reinterpret_cast<std::byte*>(values.data()), values.size());
        wrong += Differences(values, ValuesOfRow(version, seed, element, count));
      }
    });
  }
  return wrong;
}

}  // namespace weightcast::test
