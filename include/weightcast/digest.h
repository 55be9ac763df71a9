#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "weightcast/status.h"
#include "weightcast/tensor.h"

namespace weightcast {

/// What elements of one tensor hash to: two numbers below 2^61 - 1 (docs/digest.md). The digests of disjoint
/// boxes add up, modulo 2^61 - 1, to the digest of all of them, in whatever order. No elements: zero.
struct TensorDigest {
  uint64_t high = 0;
  uint64_t low = 0;

  /// From what ToString gives. kInvalidArgument for all else.
  static Result<TensorDigest> FromString(std::string_view text);
  /// 32 hexadecimal digits, `high` first.
  [[nodiscard]] std::string ToString() const;
  TensorDigest& operator+=(const TensorDigest& other);
  friend TensorDigest operator+(TensorDigest a, const TensorDigest& b) { return a += b; }
  friend bool operator==(const TensorDigest&, const TensorDigest&) = default;
};

/// The digest of one shard.
struct ShardDigest {
  TensorInfo tensor;
  Box box;
  TensorDigest digest;
  friend bool operator==(const ShardDigest&, const ShardDigest&) = default;
};

/// Of all that one rank holds. Plain data, to be sent to where digests are compared.
using Digests = std::vector<ShardDigest>;

/// The digests of whole tensors, by name, from those of all ranks of one side. Two sides have equal digests
/// of a tensor if and, but for 2^-64, only if its name, dtype, shape and bits are equal.
/// Of equal boxes (replicas) one is added. Errors name the tensor and the boxes; ranks are called by their
/// place in `ranks`. kCorrupt: equal boxes have different digests. kInvalidArgument: boxes overlap, or one is
/// missing; ranks disagree about dtype or shape.
Result<std::map<std::string, TensorDigest>> CombineDigests(std::span<const Digests> ranks);

}  // namespace weightcast
