// A parser with a mistake on purpose: whatever drives the fuzz targets must find it.
#include <cstddef>
#include <cstdint>
#include <cstdlib>

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  // A length beyond its limit, behind a header that is right.
  if (size >= 6 && data[0] == 'W' && data[1] == 'C' && data[2] == 0xff && data[3] > 0xf0) std::abort();
  return 0;
}
