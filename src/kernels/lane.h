#pragma once

/// What the kernels' headers share. They are compiled for the host and, by clang's NVPTX back end, for
/// GPUs (docs/kernels.md). There is no standard library there, so none of them includes a standard header.

#ifdef __NVPTX__
#define WC_UNROLL _Pragma("unroll")
#define WC_INLINE inline __attribute__((always_inline))  // A call would copy parameters to the stack.
#else
#define WC_UNROLL
#define WC_INLINE inline
#endif

namespace weightcast::kernels {

using int8_t = __INT8_TYPE__;
using uint8_t = __UINT8_TYPE__;
using int16_t = __INT16_TYPE__;
using uint16_t = __UINT16_TYPE__;
using uint32_t = __UINT32_TYPE__;
using uint64_t = __UINT64_TYPE__;
using int32_t = __INT32_TYPE__;
using int64_t = __INT64_TYPE__;

/// Which thread of a launch runs: all that differs between a GPU's thread and a turn of a loop on the host.
struct Lane {
  uint32_t thread;   ///< In its block.
  uint32_t threads;  ///< Of a block.
  uint32_t block;
  uint32_t blocks;

  [[nodiscard]] uint64_t index() const { return uint64_t{block} * threads + thread; }
  [[nodiscard]] uint64_t count() const { return uint64_t{blocks} * threads; }
};

/// Threads that read and write side by side: a warp of the GPU.
inline constexpr uint32_t kWarp = 32;

/// 16 bytes: the widest access of one thread.
using Vector = uint32_t __attribute__((vector_size(16)));

/// Reads and writes memory at an address; on the GPU it must be aligned for T.
template <typename T>
T Load(uint64_t address) {
#ifdef __NVPTX__
  return *reinterpret_cast<const __attribute__((address_space(1))) T*>(address);
#else
  T value;
  __builtin_memcpy(&value, reinterpret_cast<const void*>(address), sizeof(T));
  return value;
#endif
}

template <typename T>
void Store(uint64_t address, T value) {
#ifdef __NVPTX__
  *reinterpret_cast<__attribute__((address_space(1))) T*>(address) = value;
#else
  __builtin_memcpy(reinterpret_cast<void*>(address), &value, sizeof(T));
#endif
}

/// Eight elements, read and written 16 bytes at a time.
template <typename Bits>
struct Group {
  static constexpr int kElements = 8;
  static constexpr int kPerWord = 4 / sizeof(Bits);
  static constexpr int kVectors = kElements * sizeof(Bits) / 16;

  Vector vector[kVectors] = {};

  [[nodiscard]] Bits Get(int i) const {
    const int word = i / kPerWord;
    return static_cast<Bits>(vector[word / 4][word % 4] >> (i % kPerWord * (32 / kPerWord)));
  }
  void Set(int i, Bits value) {  // Once for each element.
    const int word = i / kPerWord;
    vector[word / 4][word % 4] |= uint32_t{value} << (i % kPerWord * (32 / kPerWord));
  }
  static Group LoadFrom(uint64_t address) {
    Group group;
    WC_UNROLL for (int v = 0; v < kVectors; ++v) group.vector[v] = Load<Vector>(address + 16 * v);
    return group;
  }
  void StoreTo(uint64_t address) const {
    WC_UNROLL for (int v = 0; v < kVectors; ++v) Store<Vector>(address + 16 * v, vector[v]);
  }
};

}  // namespace weightcast::kernels
