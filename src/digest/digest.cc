#include "digest/digest.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/advice.h"
#include "base/hash.h"
#include "base/strings.h"
#include "plan/box.h"
#include "plan/segments.h"

namespace weightcast::digest {
namespace {

constexpr size_t kChunkElements = 512;

/// Elements from one index to the next in a dense, row-major box of this size.
Shape DenseStrides(const Shape& size) {
  Shape strides(size.size(), 1);
  for (size_t d = size.size(); d-- > 1;) strides[d - 1] = strides[d] * size[d];
  return strides;
}

bool IsDense(const Shape& size, std::span<const int64_t> strides) {
  const Shape dense = DenseStrides(size);
  for (size_t d = 0; d < size.size(); ++d)
    if (size[d] != 1 && strides[d] != dense[d]) return false;
  return true;
}

/// Copies elements of kBytes bytes, `stride` elements apart, one after another.
template <size_t kBytes>
void Collect(const std::byte* from, int64_t stride, size_t elements, std::byte* to) {
  for (size_t i = 0; i < elements; ++i)
    std::memcpy(to + i * kBytes, from + static_cast<int64_t>(i) * stride * int64_t{kBytes}, kBytes);
}

void Collect(size_t bytes, const std::byte* from, int64_t stride, size_t elements, std::byte* to) {
  switch (bytes) {
    case 1:
      return Collect<1>(from, stride, elements, to);
    case 2:
      return Collect<2>(from, stride, elements, to);
    case 4:
      return Collect<4>(from, stride, elements, to);
    default:
      return Collect<8>(from, stride, elements, to);
  }
}

/// Sums of so many blocks stay below 2^125: a key is at most 2^60, a dot product below 2^40.
constexpr int64_t kMostBlocks = int64_t{1} << 24;

}  // namespace

TensorDigest DigestOf(const KeyedSums& sums) {
  std::array<uint64_t, 2> halves{};
  for (size_t half = 0; half < 2; ++half)
    for (size_t i = 0; i <= kDots; ++i)
      halves[half] = AddInField(halves[half], MultiplyInField(kFactors[half][i], sums[half][i]));
  return {.high = halves[0], .low = halves[1]};
}

TensorKey::TensorKey(TensorInfo tensor) : tensor_(std::move(tensor)) {
  bytes_ = BytesOf(tensor_.dtype, ElementsOf(tensor_.shape));
  const auto hash =
      HmacSha256("weightcast tensor digest 1",
                 StrCat(NameOf(tensor_.dtype), " ", ToString(tensor_.shape), " ", tensor_.name));
  std::memcpy(seeds_.data(), hash.data(), sizeof(seeds_));
}

Result<TensorKey> TensorKey::Of(TensorInfo tensor) {
  WC_RETURN_IF_ERROR(plan::CheckTensor(tensor));
  return TensorKey(std::move(tensor));
}

Result<TensorDigest> TensorKey::DigestOf(const Box& box, const std::byte* data,
                                         std::span<const int64_t> strides) const {
  DigestSum sum(*this);
  WC_RETURN_IF_ERROR(sum.AddBox(box, data, strides));
  return sum.digest();
}

Status DigestSum::AddPiece(const Box& box, int64_t offset, std::span<const std::byte> bytes) {
  const TensorInfo& tensor = key_.tensor_;
  WC_RETURN_IF_ERROR(plan::CheckBox(box, tensor));
  // From the dense box into the dense tensor.
  const auto made =
      plan::Segments::Of(box, tensor.dtype, WholeOf(tensor.shape), tensor.dtype, box, box.offset);
  if (!made.ok()) return Error(made.status().code(), "tensor '", tensor.name, "': ", made.status().message());
  const plan::Segments& runs = *made;
  if (offset < 0 || offset > runs.src_bytes() ||
      bytes.size() > static_cast<size_t>(runs.src_bytes() - offset))
    return Error(Code::kOutOfBounds, bytes.size(), " bytes from byte ", offset, " on are not inside the ",
                 runs.src_bytes(), " bytes of a box of tensor '", tensor.name, "'", kReportBug);
  if (bytes.empty()) return Status::Ok();
  const int64_t end = offset + static_cast<int64_t>(bytes.size());
  const int64_t run_bytes = runs.src_bytes() / runs.count();
  runs.ForEach(offset / run_bytes, (end - 1) / run_bytes + 1, [&](const plan::Segment& run) {
    const int64_t from = std::max(run.src_offset, offset);
    const int64_t to = std::min(run.src_offset + run.src_bytes, end);
    AddInside(run.dst_offset + from - run.src_offset,
              bytes.subspan(static_cast<size_t>(from - offset), static_cast<size_t>(to - from)));
  });
  return Status::Ok();
}

Status DigestSum::AddBox(const Box& box, const std::byte* data, std::span<const int64_t> strides) {
  const TensorInfo& tensor = key_.tensor_;
  WC_RETURN_IF_ERROR(plan::CheckBox(box, tensor));
  if (!strides.empty() && strides.size() != box.size.size())
    return Error(Code::kInvalidArgument, "tensor '", tensor.name, "': give one stride for each of the ",
                 box.size.size(), " dimensions, or none if dense; got ", strides.size());
  const int64_t elements = plan::ElementsOf(box);
  if (elements == 0) return Status::Ok();
  if (strides.empty() || IsDense(box.size, strides))
    return AddPiece(box, 0, {data, static_cast<size_t>(BytesOf(tensor.dtype, elements))});
  if (BitsOf(tensor.dtype) < 8)
    return Error(Code::kInvalidArgument, "tensor '", tensor.name, "' of ", NameOf(tensor.dtype),
                 " has strides, which are not possible for elements below one byte; give contiguous data");
  AddStrided(box, data, strides);
  return Status::Ok();
}

TensorDigest DigestSum::digest() {
  FinishBlock();
  FoldBlocks();
  return digest_;
}

void DigestSum::AddInside(int64_t first, std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const int64_t block = first / int64_t{kBlockBytes};
    const auto offset = static_cast<size_t>(first % int64_t{kBlockBytes});
    const size_t taken = std::min(bytes.size(), kBlockBytes - offset);
    if (block != block_ || present_ >= int64_t{kBlockBytes}) FinishBlock();  // The latter keeps sums small.
    block_ = block;
    AddToBlock(offset, bytes.first(taken));
    first += static_cast<int64_t>(taken);
    bytes = bytes.subspan(taken);
  }
}

void DigestSum::AddToBlock(size_t offset, std::span<const std::byte> bytes) {
  present_ += static_cast<int64_t>(bytes.size());
  // Half a lane: the other half counts as zero, and adds its own part when it comes.
  const auto add_half = [this](size_t lane, std::array<std::byte, 2> halves) {
    add_dots_(halves.data(), lane, 1, dots_);
  };
  if (offset % 2 == 1) {
    add_half(offset / 2, {std::byte{0}, bytes.front()});
    bytes = bytes.subspan(1);
    ++offset;
  }
  if (bytes.size() % 2 == 1) {
    add_half((offset + bytes.size()) / 2, {bytes.back(), std::byte{0}});
    bytes = bytes.first(bytes.size() - 1);
  }
  if (!bytes.empty()) add_dots_(bytes.data(), offset / 2, bytes.size() / 2, dots_);
}

void DigestSum::AddStrided(const Box& box, const std::byte* data, std::span<const int64_t> strides) {
  const Shape tensor_strides = DenseStrides(key_.tensor_.shape);
  const size_t last = box.size.size() - 1;
  const int64_t rows = plan::ElementsOf(box) / box.size[last];
  const int64_t element_bytes = BytesOf(key_.tensor_.dtype, 1);
  for (int64_t row = 0; row < rows; ++row) {
    int64_t rest = row;
    int64_t first = box.offset[last];
    int64_t distance = 0;
    for (size_t d = last; d-- > 0; rest /= box.size[d]) {
      first += (box.offset[d] + rest % box.size[d]) * tensor_strides[d];
      distance += rest % box.size[d] * strides[d];
    }
    AddRow(first * element_bytes, box.size[last], data + distance * element_bytes, strides[last]);
  }
}

void DigestSum::AddRow(int64_t first, int64_t elements, const std::byte* data, int64_t stride) {
  const auto element_bytes = static_cast<size_t>(BytesOf(key_.tensor_.dtype, 1));
  if (stride == 1) return AddInside(first, {data, static_cast<size_t>(elements) * element_bytes});
  std::array<std::byte, kChunkElements * 8> chunk;
  for (int64_t done = 0; done < elements; done += int64_t{kChunkElements}) {
    const auto taken = static_cast<size_t>(std::min(elements - done, int64_t{kChunkElements}));
    const auto width = static_cast<int64_t>(element_bytes);
    Collect(element_bytes, data + done * stride * width, stride, taken, chunk.data());
    AddInside(first + done * width, {chunk.data(), taken * element_bytes});
  }
}

void DigestSum::FinishBlock() {
  if (present_ == 0) return;
  for (size_t half = 0; half < 2; ++half) {
    const auto key = static_cast<int64_t>(RandomFactor(key_.seeds_[half], static_cast<uint64_t>(block_)));
    for (size_t dot = 0; dot < kDots; ++dot) sums_[half][dot] += Int128{dots_[dot]} * key;
    sums_[half][kDots] += Int128{present_} * key;
  }
  dots_ = {};
  present_ = 0;
  if (++blocks_ == kMostBlocks) FoldBlocks();
}

void DigestSum::FoldBlocks() {
  KeyedSums sums{};
  for (size_t half = 0; half < 2; ++half)
    for (size_t i = 0; i <= kDots; ++i) sums[half][i] = SignedToField(sums_[half][i]);
  digest_ += DigestOf(sums);
  sums_ = {};
  blocks_ = 0;
}

}  // namespace weightcast::digest
