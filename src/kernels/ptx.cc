#include "kernels/ptx.h"

#include <algorithm>
#include <string>

// The assembler copies each file into the read-only data, between two symbols. WC_KERNELS_DIR is the path of
// this folder (CMakeLists.txt).
#define WC_EMBED(symbol, file)                                          \
  asm(".pushsection .rodata\n"                                          \
      ".globl " #symbol "\n.hidden " #symbol "\n" #symbol               \
      ":\n"                                                             \
      ".incbin \"" WC_KERNELS_DIR "/" file                              \
      "\"\n"                                                            \
      ".globl " #symbol "_end\n.hidden " #symbol "_end\n" #symbol       \
      "_end:\n"                                                         \
      ".popsection\n");                                                 \
  extern "C" __attribute__((visibility("hidden"))) const char symbol[]; \
  extern "C" __attribute__((visibility("hidden"))) const char symbol##_end[]

WC_EMBED(weightcast_ptx_shared, "kernels_shared.ptx");
WC_EMBED(weightcast_ptx_sm80, "kernels_sm80.ptx");
WC_EMBED(weightcast_ptx_sm90, "kernels_sm90.ptx");

namespace weightcast::kernels {
namespace {

/// A text of its head, the kernels that all texts have alike, and those of its own.
std::string Whole(std::string_view head_and_own) {
  const size_t head = std::min(head_and_own.find("\t// .globl\t"), head_and_own.size());
  const std::string_view shared(weightcast_ptx_shared, weightcast_ptx_shared_end);
  return std::string(head_and_own.substr(0, head)).append(shared).append(head_and_own.substr(head));
}

}  // namespace

std::string_view PtxForSm80() {
  static const auto& text = *new std::string(Whole({weightcast_ptx_sm80, weightcast_ptx_sm80_end}));
  return text;  // Never destroyed: threads may load it while the process exits.
}
std::string_view PtxForSm90() {
  static const auto& text = *new std::string(Whole({weightcast_ptx_sm90, weightcast_ptx_sm90_end}));
  return text;  // Never destroyed: threads may load it while the process exits.
}

}  // namespace weightcast::kernels
