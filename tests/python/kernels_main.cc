// kernels_main f32|f16|bf16 blocks|tensor ROWS COLUMNS: reads a matrix from standard input and writes what an
// FP8 kernel makes of it: the scales (F32), then the elements.

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "kernels/host_kernels.h"
#include "kernels/quantise.h"

using namespace weightcast::kernels;  // NOLINT

namespace {

template <typename P>
void Run(const std::string& kernel, P parameter) {
  void* pointer = &parameter;
  FindHostKernel(kernel)->run({2, kQuantiseThreads}, &pointer);
}

template <typename T>
uint64_t AddressOf(std::vector<T>& data) {
  return reinterpret_cast<uint64_t>(data.data());
}

}  // namespace

int main(int, char** arguments) {
  const std::string dtype = arguments[1];
  const bool blocks = std::string(arguments[2]) == "blocks";
  const uint64_t rows = std::strtoull(arguments[3], nullptr, 10);
  const uint64_t columns = std::strtoull(arguments[4], nullptr, 10);
  const uint64_t width = dtype == "f32" ? 4 : 2;
  std::vector<uint8_t> source(rows * columns * width);
  if (std::fread(source.data(), 1, source.size(), stdin) != source.size()) return 1;
  std::vector<uint8_t> target(rows * columns);
  const uint64_t across = (columns + kBlock - 1) / kBlock;
  std::vector<float> scales(blocks ? (rows + kBlock - 1) / kBlock * across : 1);
  if (blocks) {
    Run("quantise_blocks_" + dtype,
        QuantiseBlocksParameters{AddressOf(source), AddressOf(target), AddressOf(scales), rows, columns,
                                 columns * width, columns, across * 4});
  } else {
    std::vector<uint32_t> amax(1);
    const uint64_t count = rows * columns;
    Run("amax_" + dtype, AmaxParameters{AddressOf(source), count, AddressOf(amax)});
    Run("quantise_" + dtype,
        QuantiseParameters{AddressOf(source), AddressOf(target), count, AddressOf(amax), AddressOf(scales)});
  }
  std::fwrite(scales.data(), 4, scales.size(), stdout);
  std::fwrite(target.data(), 1, target.size(), stdout);
}
