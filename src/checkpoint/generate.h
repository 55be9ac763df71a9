#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "weightcast/status.h"
#include "weightcast/tensor.h"

namespace weightcast::checkpoint {

/// Deterministic weights for demos and tests. Anyone can make any byte of any version again from
/// the formulas below alone; tests/verify_outputs.py does so with numpy.
///
/// A tensor's row-major bytes are little-endian 64-bit words: word i holds bytes 8i .. 8i+7, the
/// last one may be cut off. All arithmetic is modulo 2^64:
///
///     mix(z):     z ^= z >> 30;  z *= 0xBF58476D1CE4E5B9;
///                 z ^= z >> 27;  z *= 0x94D049BB133111EB;  z ^= z >> 31
///     fnv(name):  h = 0xCBF29CE484222325;  for each byte b of name: h = (h ^ b) * 0x100000001B3
///     noise(name, v, i) = mix(mix(fnv(name) + v * 0xD1342543DE82EF95) + i * 0x9E3779B97F4A7C15)
///
/// (mix is the finaliser of splitmix64, Steele et al. 2014; fnv is FNV-1a.)
///
/// Version v of a *generated* tensor, with the masks of its dtype repeated over the word:
///
///     word(i) = ((noise(name, v, i) & keep) | set) ^ (v odd ? low : 0)
///     BOOL:     (noise(name, 0, i) & keep) ^ (v odd ? low : 0)
///
/// Version v of a *changed* tensor whose version 1 is x, the checkpoint's own bytes:
///
///     v = 1:    word(i) = x(i)
///     else:     word(i) = guard(x(i), x(i) ^ (noise(name, v, i) & change) ^ (v even ? low : 0))
///     guard(x, y): each byte of y that is a NaN, (y ^ nan) & care == 0, where that of x is none,
///                  has its bit 0x40 flipped. Only where the table gives `nan`.
///
///     dtype (bits of a mask)      keep                set                 low   change       nan  care
///     BOOL (8)                    01                  00                  01    00
///     F4 (8)                      EE                  00                  11    22
///     F6_E2M3 F6_E3M2 U8 I8 (8)   FE                  00                  01    0E
///     F8_E5M2 (8)                 BE                  00                  01    02
///     F8_E4M3 (8)                 BE                  00                  01    02           7F   7F
///     F8_E8M0 (8)                 0E                  70                  01    02           FF   FF
///     F8_E4M3FNUZ F8_E5M2FNUZ (8) 9E                  20                  01    02           80   FF
///     I16 U16 (16)                FFFE                0000                0001  000E
///     F16 (16)                    8FFE                2000                0001  001E
///     BF16 (16)                   81FE                3C00                0001  0006
///     I32 U32 (32)                FFFFFFFE            00000000            0..1  000000FE
///     F32 C64 (32)                81FFFFFE            3C000000            0..1  0000FFFE
///     I64 U64 (64)                FFFFFFFFFFFFFFFE    0000000000000000    0..1  00000000000000FE
///     F64 (64)                    803FFFFFFFFFFFFE    3F80000000000000    0..1  00000000FFFFFFFE
///
/// What follows from it:
/// - Of two consecutive versions every element differs in its lowest bit (packed sub-byte types:
///   every byte), and so does every 64-byte line, wherever the lines begin.
/// - Generated floats are finite. F16, BF16, F32, C64 and F64 lie in ±[2^-7, 2^-3), as initialised
///   weights do.
/// - Change keeps finite floats finite: it touches no exponent (but for the guarded byte types).
/// - Any range can be made alone: a shard needs nothing of the others.

/// Makes the bytes [byte_offset, byte_offset + out.size()) of version `version` of a generated tensor.
/// Thread safe, as all here. About 4 GB/s on one core in a release build.
void FillRange(std::string_view name, DType dtype, int64_t version, uint64_t byte_offset,
               std::span<std::byte> out);

/// Makes the row-major bytes of a box of it.
/// Errors: kInvalidArgument or kOutOfBounds when the box or the size of `out` does not fit the tensor.
Status FillBox(const TensorInfo& tensor, const Box& box, int64_t version, std::span<std::byte> out);

/// Turns version 1 of the bytes [byte_offset, ...) of a tensor, given in `bytes`, into version
/// `version` in place. byte_offset: any.
void ChangeRange(std::string_view name, DType dtype, int64_t version, uint64_t byte_offset,
                 std::span<std::byte> bytes);

/// The same for the row-major bytes of a box. Errors as FillBox.
Status ChangeBox(const TensorInfo& tensor, const Box& box, int64_t version, std::span<std::byte> bytes);

}  // namespace weightcast::checkpoint
