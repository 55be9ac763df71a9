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

/// The elements [first, first + count) of a tensor as `dtype`.
void Expect(int64_t version, size_t tensor, int64_t first, int64_t count, DType dtype,
            std::vector<std::byte>& bytes) {
  bytes.resize(static_cast<size_t>(count) * SizeOf(dtype));
  if (dtype == DType::kU64) {
    std::vector<uint64_t> bits;
    for (int64_t i = 0; i < count; ++i) bits.push_back(BitsFor(version, tensor, first + i));
    std::memcpy(bytes.data(), bits.data(), bytes.size());
  } else {
    std::vector<float> values;
    for (int64_t i = 0; i < count; ++i) values.push_back(ValueOf(version, tensor, first + i));
    worker::Convert(DType::kF32, reinterpret_cast<const std::byte*>(values.data()), dtype, bytes.data(),
                    values.size());
  }
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
  std::vector<std::byte> expected;
  for (const Shard& shard : shards_) {
    ForEachRow(shard, [&](int64_t i, int64_t element, int64_t count) {
      Expect(version, SeedOf(shard), element, count, shard.tensor.dtype, expected);
      std::memcpy(PlaceOf(shard, i), expected.data(), expected.size());
    });
  }
}

int64_t Weights::Wrong(int64_t version) const {
  int64_t wrong = 0;
  std::vector<std::byte> expected;
  for (const Shard& shard : shards_) {
    const size_t size = SizeOf(shard.tensor.dtype);
    ForEachRow(shard, [&](int64_t i, int64_t element, int64_t count) {
      Expect(version, SeedOf(shard), element, count, shard.tensor.dtype, expected);
      const std::byte* row = PlaceOf(shard, i);
      if (std::memcmp(row, expected.data(), expected.size()) == 0) return;
      for (size_t at = 0; at < expected.size(); at += size)
        wrong += std::memcmp(row + at, &expected[at], size) != 0 ? 1 : 0;
    });
  }
  return wrong;
}

}  // namespace weightcast::test
