#include "kernels/ptx.h"

// The assembler copies each file into the read-only data, between two symbols. WC_KERNELS_DIR is the path of
// this folder (CMakeLists.txt).
#define WC_EMBED(symbol, file)                                          \
  asm(".pushsection .rodata\n"                                          \
      ".globl " #symbol "\n.hidden " #symbol "\n" #symbol               \
      ":\n"                                                             \
      ".incbin \"" WC_KERNELS_DIR "/" file                              \
      "\"\n"                                                            \
      ".globl " #symbol "_end\n.hidden " #symbol "_end\n" #symbol       \
      "_end:\n.byte 0\n"                                                \
      ".popsection\n");                                                 \
  extern "C" __attribute__((visibility("hidden"))) const char symbol[]; \
  extern "C" __attribute__((visibility("hidden"))) const char symbol##_end[]

WC_EMBED(weightcast_ptx_sm80, "kernels_sm80.ptx");
WC_EMBED(weightcast_ptx_sm90, "kernels_sm90.ptx");

namespace weightcast::kernels {

std::string_view PtxForSm80() { return {weightcast_ptx_sm80, weightcast_ptx_sm80_end}; }
std::string_view PtxForSm90() { return {weightcast_ptx_sm90, weightcast_ptx_sm90_end}; }

}  // namespace weightcast::kernels
