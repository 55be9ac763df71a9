#include "gpu/kernel_cases.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstring>

#include "kernels/convert.h"
#include "kernels/copy_list.h"
#include "kernels/digest.h"
#include "kernels/fill.h"
#include "kernels/gather.h"
#include "kernels/hash.h"
#include "kernels/quantise.h"

namespace kernel_cases {
namespace {

using namespace weightcast::kernels;  // NOLINT

constexpr uint32_t kEdges[] = {0x00000000, 0x00000001, 0x007fffff, 0x00800000, 0x33000000, 0x33000001,
                               0x33800000, 0x387fe000, 0x387ff000, 0x38800000, 0x3aff0000, 0x3b000000,
                               0x3c800000, 0x3f800000, 0x43dfffff, 0x43e00000, 0x43e80000, 0x43f00000,
                               0x477fe000, 0x477fefff, 0x477ff000, 0x47800000, 0x7f7f8000, 0x7f7fffff,
                               0x7f800000, 0x7f800001, 0x7fbfffff, 0x7fffffff};

/// splitmix64. Not <random>'s, which would ask for a newer glibc than kernels_on_gpu may need.
class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}
  uint64_t operator()() {
    uint64_t z = state_ += 0x9e3779b97f4a7c15;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9;
    z = (z ^ z >> 27) * 0x94d049bb133111eb;
    return z ^ z >> 31;
  }

 private:
  uint64_t state_;
};

class Maker {
 public:
  Maker(std::string kernel, uint32_t index)
      : kernel_(std::move(kernel)), index_(index), random_(index * 7919 + std::hash<std::string>{}(kernel_)) {
    made_.grid = {1 + Below(40), 32 * (1 + Below(16))};
    made_.arena.resize(kArena);
    for (uint64_t at = 0; at < kArena; at += 8) Put<uint64_t>(at, random_());
  }

  Case Make() {
    const bool gather = kernel_.starts_with("gather_");
    if (kernel_.starts_with("cast_")) MakeCast();
    if (gather) MakeGather();
    if (kernel_ == "copy_list") MakeCopyList();
    if (kernel_ == "copy_pieces") MakeCopyPieces();
    if (kernel_ == "fill" || kernel_ == "compare") MakePattern();
    if (kernel_ == "digest") MakeDigest();
    if (kernel_ == "hash_leaves") MakeHash();
    if (kernel_.starts_with("quantise_blocks_")) {
      MakeBlocks();
    } else if (kernel_.starts_with("quantise_") || kernel_.starts_with("amax_")) {
      MakeQuantise();
    }
    return std::move(made_);
  }

 private:
  uint32_t Below(uint64_t end) { return static_cast<uint32_t>(random_() % end); }
  /// A length below `end` whose logarithm is uniform.
  uint64_t Length(uint64_t end) { return Below(1 + ((end - 1) >> Below(20))); }
  template <typename T>
  void Put(uint64_t at, T value) {
    std::memcpy(made_.arena.data() + at, &value, sizeof value);
  }
  template <typename P>
  void Parameter(const P& p, std::vector<size_t> addresses) {
    made_.parameter.resize(sizeof p);
    std::memcpy(made_.parameter.data(), &p, sizeof p);
    made_.addresses = std::move(addresses);
  }
  /// Bytes of the n-th dtype in the kernel's name.
  [[nodiscard]] uint64_t Bytes(int n) const {
    const bool quantise = kernel_.starts_with("quantise_blocks_");
    const size_t begin = kernel_.find('_', quantise ? 9 : 0) + 1;
    const size_t second = kernel_.find('_', begin);
    const std::string name = n == 0 ? kernel_.substr(begin, second - begin) : kernel_.substr(second + 1);
    return name == "f32" ? 4 : name == "f16" || name == "bf16" ? 2 : std::stoul(name);
  }
  /// Aligned for groups in two of three cases.
  uint64_t Misaligned(uint64_t bytes) { return index_ < 2 || Below(3) != 0 ? 0 : bytes * Below(16); }

  void PutEdges() {
    for (uint32_t i = 0; i < 65536; ++i) Put<uint16_t>(2 * i, static_cast<uint16_t>(i));
    if (index_ != 1) return;
    for (size_t i = 0; i < std::size(kEdges); ++i) {
      Put<uint32_t>(8 * i, kEdges[i]);
      Put<uint32_t>(8 * i + 4, kEdges[i] | 0x80000000);
    }
  }

  void MakeCast() {
    if (index_ < 2) PutEdges();
    const uint64_t count = index_ < 2 ? 65536 : Length(kHalf / 4 - 64);
    const CastParameters p{Misaligned(Bytes(0)), kHalf + Misaligned(Bytes(1)), count};
    Parameter(p, {0, 8});
  }

  void MakeGather() {
    const bool cast = kernel_.find('_', 7) != std::string::npos;
    const uint64_t from = Bytes(0);
    const uint64_t to = cast ? Bytes(1) : from;
    GatherParameters p{};
    p.group = cast && Below(2) != 0 ? 1 : 0;
    const uint64_t unit = p.group != 0 ? 8 * from : from;
    const uint64_t align = p.group != 0 ? 16 : from;
    p.dims = Below(kBoxDims + 1);
    uint64_t units = 1;
    uint64_t room = kHalf / 2 - unit;  // For distances in each direction.
    for (int d = 0; d < kBoxDims; ++d) {
      p.size[d] = 1;
      if (d < kBoxDims - static_cast<int>(p.dims)) continue;
      const uint64_t most = std::min<uint64_t>(Below(4) == 0 ? 3000 : 9, (uint64_t{1} << 15) / units);
      p.size[d] = 1 + Below(std::max<uint64_t>(most, 1));
      const uint64_t farthest = std::min<uint64_t>(room / p.dims / p.size[d] / align, 5000);
      p.stride[d] = static_cast<int64_t>(align * Below(farthest + 1));
      if (Below(4) == 0) p.stride[d] = -p.stride[d];
      units *= p.size[d];
    }
    if (index_ < 2) {  // Dense: all values of the source.
      PutEdges();
      p.dims = 1;
      std::fill(p.size, p.size + kBoxDims, 1);
      p.size[kBoxDims - 1] = units = p.group != 0 ? 8192 : 65536;
      p.stride[kBoxDims - 1] = static_cast<int64_t>(unit);
      if (!cast) p.size[kBoxDims - 1] = units = 4096;
    }
    p.source = index_ < 2 ? 0 : kHalf / 2;
    p.target = kHalf + (p.group != 0 ? 0 : Misaligned(to));
    p.first = index_ < 2 ? 0 : Below(units);
    p.count = index_ < 2 ? units : 1 + Below(units - p.first);
    Parameter(p, {0, 8});
  }

  /// Targets one after another, with gaps and every alignment.
  std::vector<CopyPiece> Pieces(uint32_t most) {
    std::vector<CopyPiece> pieces(Below(most + 1));
    uint64_t target = kHalf;
    for (auto& piece : pieces) {
      piece = {Below(kHalf / 4), target + Below(20), static_cast<uint32_t>(Length(kHalf / 4 / most))};
      if (Below(2) != 0) piece.source = piece.source / 16 * 16 + piece.target % 16;
      target = piece.target + piece.length + Below(20);
    }
    return pieces;
  }
  void MakeCopyList() {
    CopyList list{};
    const auto pieces = Pieces(Below(2) == 0 ? 3 : kListPieces);
    list.count = static_cast<uint32_t>(pieces.size());
    std::copy(pieces.begin(), pieces.end(), list.piece);
    std::vector<size_t> addresses;
    for (size_t i = 0; i < pieces.size(); ++i)
      for (size_t at : {size_t{8}, size_t{16}}) addresses.push_back(at + i * sizeof(CopyPiece));
    Parameter(list, addresses);
  }
  void MakeCopyPieces() {
    const auto pieces = Pieces(Below(2) == 0 ? 10 : 1500);
    constexpr uint64_t kList = kHalf / 2;  // Behind all sources.
    for (size_t i = 0; i < pieces.size(); ++i) {
      Put(kList + i * sizeof(CopyPiece), pieces[i]);
      for (size_t at : {size_t{0}, size_t{8}}) made_.in_arena.push_back(kList + i * sizeof(CopyPiece) + at);
    }
    Parameter(CopyPiecesParameters{kList, static_cast<uint32_t>(pieces.size()), 0}, {0});
  }

  void MakePattern() {
    const uint64_t bytes = Length(kHalf - 64);
    const uint64_t seed = random_();
    const uint64_t at = 8 * Below(4);
    if (kernel_ == "fill") return Parameter(FillParameters{kHalf + at, bytes, seed}, {0});
    for (uint64_t i = 0; i < bytes; i += 8) Put<uint64_t>(at + i, seed + i);
    for (uint32_t wrong = Below(4); wrong > 0 && bytes > 0; --wrong) made_.arena[at + Below(bytes)] ^= 1;
    Parameter(CompareParameters{at, bytes, seed, kHalf}, {0, 24});
  }

  /// Rows that are contiguous, aligned for any unit, or of elements that are apart; in a tensor anywhere.
  void MakeDigest() {
    DigestParameters p{};
    p.shift = Below(2) == 0 ? 0 : 1 + Below(3);
    const bool apart = p.shift != 0;
    p.unit = apart ? 1U << p.shift : 1U << Below(5);
    const uint64_t element = apart ? p.unit : 1;
    const uint64_t elements = 1 + Below((Below(2) == 0 ? 500U : 30000U) / element);
    p.row = elements * element;
    p.apart = apart ? static_cast<int64_t>(element * (1 + Below(6))) : 1;
    if (apart && Below(4) == 0) p.apart = -p.apart;
    p.dims = 1 + Below(kBoxDims);
    const uint64_t per_row = (p.row + kDigestBlock - 2) / kDigestBlock + 1;
    uint64_t rows = 1;
    for (int d = 0; d < kBoxDims; ++d) {
      p.size[d] = d + 1 == kBoxDims ? per_row : 1;
      if (d + 1 == kBoxDims || d + static_cast<int>(p.dims) < kBoxDims) continue;
      p.size[d] = 1 + Below(rows < 40 ? 6 : 2);
      p.stride[d] = static_cast<int64_t>(16 * Below(2000)) * (Below(4) == 0 ? -1 : 1);
      p.step[d] = p.stride[d] + static_cast<int64_t>(p.unit * Below(100000));
      rows *= p.size[d];
    }
    p.source = kHalf / 2 + 16 + p.unit * Below(16);
    p.place = p.source + p.unit * (uint64_t{1} << 30) + p.unit * Below(1 << 20);
    p.sums = kHalf;
    for (auto& seed : p.seed) seed = random_();
    const uint64_t first = Below(rows);
    const uint64_t count = 1 + Below(rows - first);
    p.begin = element * Below(elements);
    p.end = count > 1 ? element * (1 + Below(elements)) : p.row;
    p.first = first * per_row;
    p.cells = count * per_row;
    Parameter(p, {0, 16});
  }

  void MakeHash() {
    const uint64_t source = Below(2) == 0 ? 0 : Below(64);
    Parameter(HashParameters{source, Length(kHalf - 64), kHalf}, {0, 16});
  }

  /// Weights as they are, with some zeros and few infinities and NaN.
  void PutWeights(uint64_t bytes) {
    const bool bf16 = kernel_.ends_with("bf16");
    const uint32_t seldom = Below(2) == 0 ? 50000 : 4000000;
    for (uint64_t at = 0; at < kHalf; at += bytes) {
      float value =
          std::ldexp(static_cast<float>(Below(1 << 24)) - (1 << 23), -24 - static_cast<int>(Below(12)));
      if (Below(seldom) == 0) value = __builtin_bit_cast(float, kEdges[Below(std::size(kEdges))]);
      if (index_ == 2) value = 0;
      if (bytes == 4) Put<float>(at, value);
      if (bytes == 2) Put<uint16_t>(at, bf16 ? ToBf16(value) : ToF16(value));
    }
  }
  void MakeBlocks() {
    const uint64_t from = Bytes(0);
    PutWeights(from);
    QuantiseBlocksParameters p{};
    made_.grid.threads = kQuantiseThreads;
    p.rows = 1 + Below(600);
    p.columns = 1 + Below(600);
    if (Below(2) == 0) p.columns = (p.columns + 3) / 4 * 4;
    const bool wide = p.columns % 4 == 0 && Below(3) != 0;
    p.source_stride = (p.columns + (wide ? 4 * Below(8) : Below(30))) * from;
    p.target_stride = p.columns + (wide ? 4 * Below(8) : Below(30));
    p.scale_stride = 4 * ((p.columns + kBlock - 1) / kBlock + Below(3));
    p.source = wide ? 0 : from * Below(16);
    p.scales = kHalf;
    p.target = kHalf + 65536 + (wide ? 0 : Below(16));
    std::vector<size_t> addresses = {0, 8, 16};
    if (index_ % 4 == 2) {  // Values alone, or scales alone.
      const bool values = Below(2) == 0;
      (values ? p.scales : p.target) = 0;
      std::erase(addresses, values ? 16U : 8U);
    }
    Parameter(p, std::move(addresses));
  }
  void MakeQuantise() {
    const uint64_t from = Bytes(0);
    if (index_ != 1) PutWeights(from);
    const uint64_t source = Misaligned(from);
    const uint64_t count = index_ < 2 ? 65536 : Length(kHalf / 4 - 64);
    if (kernel_.starts_with("amax_")) {
      Put<uint32_t>(kHalf, 0);
      return Parameter(AmaxParameters{source, count, kHalf}, {0, 16});
    }
    uint32_t amax = 0x3f000000 + Below(1 << 24);
    if (index_ < 2) {
      PutEdges();
      amax = 0x43e00000;  // 448: nothing is scaled.
    }
    if (index_ > 2 && index_ < 3 + std::size(kEdges)) amax = kEdges[index_ - 3];
    Put<uint32_t>(kHalf, amax);
    const QuantiseParameters p{source, kHalf + 64 + Misaligned(1), count, kHalf, kHalf + 4};
    Parameter(p, {0, 8, 24, 32});
  }

  std::string kernel_;
  uint32_t index_;
  Random random_;
  Case made_;
};

void AddTo(uint8_t* at, uint64_t base) {
  uint64_t value = 0;
  std::memcpy(&value, at, sizeof value);
  value += base;
  std::memcpy(at, &value, sizeof value);
}

}  // namespace

void Case::Relocate(uint64_t base) {
  for (const size_t at : addresses) AddTo(parameter.data() + at, base);
  for (const size_t at : in_arena) AddTo(arena.data() + at, base);
}

Case MakeCase(const std::string& kernel, uint32_t index) { return Maker(kernel, index).Make(); }

}  // namespace kernel_cases
