#pragma once

/// The kernels that are instances of templates, for device.cc and host_kernels.cc.

/// X(name, From, To)
#define WC_CASTS(X)      \
  X(f32_bf16, F32, BF16) \
  X(f32_f16, F32, F16)   \
  X(bf16_f32, BF16, F32) \
  X(f16_f32, F16, F32)   \
  X(bf16_f16, BF16, F16) \
  X(f16_bf16, F16, BF16)

/// X(name, Word): elements of 1 to 8 bytes, and runs of 16.
#define WC_WORDS(X) \
  X(1, uint8_t)     \
  X(2, uint16_t)    \
  X(4, uint32_t)    \
  X(8, uint64_t)    \
  X(16, Vector)

/// X(name, From)
#define WC_FLOATS(X) \
  X(f32, F32)        \
  X(f16, F16)        \
  X(bf16, BF16)
