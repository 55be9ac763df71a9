#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "digest/constants.h"
#include "digest/dots.h"
#include "weightcast/digest.h"
#include "weightcast/status.h"
#include "weightcast/tensor.h"

namespace weightcast::digest {

/// What was added up of the blocks of a tensor, in the field: for each half the sums over key times dot
/// product, then those over key times count.
using KeyedSums = std::array<std::array<uint64_t, kDots + 1>, 2>;
TensorDigest DigestOf(const KeyedSums& sums);

/// What the digests of one tensor depend on besides its bytes: name, dtype and shape. Immutable: any number
/// of threads may use it.
class TensorKey {
 public:
  /// The tensor as the receiver knows it: its name, and its dtype after the cast. kInvalidArgument if no
  /// layout may hold it (plan::CheckTensor).
  static Result<TensorKey> Of(TensorInfo tensor);

  [[nodiscard]] const TensorInfo& tensor() const { return tensor_; }
  /// Of the keys of blocks, for each half.
  [[nodiscard]] const std::array<uint64_t, 2>& seeds() const { return seeds_; }

  /// The digest of a box of the tensor. `data` is its first element; it may be null if the box is empty.
  /// `strides` are in elements, one for each dimension; none: dense and row-major.
  /// Errors: those of DigestSum::AddBox.
  [[nodiscard]] Result<TensorDigest> DigestOf(const Box& box, const std::byte* data,
                                              std::span<const int64_t> strides = {}) const;

 private:
  friend class DigestSum;
  explicit TensorKey(TensorInfo tensor);

  TensorInfo tensor_;
  int64_t bytes_ = 0;  ///< Of all the tensor.
  std::array<uint64_t, 2> seeds_{};
};

/// The digest of parts of one tensor that come one after another, in any order. What comes twice counts
/// twice. For one thread at a time; parts that several threads read need a sum each.
class DigestSum {
 public:
  /// `key` must outlive this.
  explicit DigestSum(const TensorKey& key) : key_(key) {}

  /// A piece of the dense, row-major form of `box`: its bytes from `offset` on. Errors: kOutOfBounds if the
  /// piece leaves the box; kInvalidArgument if the box leaves the tensor, or begins or ends inside a byte.
  Status AddPiece(const Box& box, int64_t offset, std::span<const std::byte> bytes);

  /// All of `box`, as TensorKey::DigestOf. Errors as above; and kInvalidArgument if there is not one stride
  /// for each dimension, or if elements below one byte are not dense.
  Status AddBox(const Box& box, const std::byte* data, std::span<const int64_t> strides = {});

  /// The digest of all that was added so far.
  [[nodiscard]] TensorDigest digest();

 private:
  void AddInside(int64_t first, std::span<const std::byte> bytes);
  void AddToBlock(size_t offset, std::span<const std::byte> bytes);
  void AddStrided(const Box& box, const std::byte* data, std::span<const int64_t> strides);
  void AddRow(int64_t first, int64_t elements, const std::byte* data, int64_t stride);
  void FinishBlock();
  void FoldBlocks();

  const TensorKey& key_;
  DotsFunction add_dots_ = FastestAddDots();
  TensorDigest digest_;
  /// Of blocks that are not yet part of `digest_`: for each half the sums over key times dot product, then
  /// those over key times count. To reduce them for each block would cost as much as a kilobyte.
  std::array<std::array<Int128, kDots + 1>, 2> sums_{};
  int64_t blocks_ = 0;  ///< In `sums_`.
  int64_t block_ = 0;   ///< Of which `dots_` and `present_` are, not yet part of `sums_`.
  Dots dots_{};
  int64_t present_ = 0;  ///< Bytes.
};

}  // namespace weightcast::digest
