#include <cctype>
#include <cstdlib>

#include "fake_cuda/kernels.h"

namespace weightcast::fake_cuda {
namespace {

bool InWord(char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_' || c == '$'; }

std::string WordAt(std::string_view text, size_t at) {
  while (at < text.size() && std::isspace(static_cast<unsigned char>(text[at])) != 0) ++at;
  size_t end = at;
  while (end < text.size() && InWord(text[end])) ++end;
  return std::string(text.substr(at, end - at));
}

/// Bytes of `.u64`, `.b8` and so on, whose digits are bits.
size_t SizeOfType(std::string_view parameter) {
  for (const std::string_view letter : {".u", ".s", ".b", ".f"}) {
    for (size_t at = parameter.find(letter); at != std::string_view::npos;
         at = parameter.find(letter, at + 1)) {
      const int bits = std::atoi(std::string(parameter.substr(at + 2, 3)).c_str());
      if (bits > 0) return static_cast<size_t>(bits) / 8;
    }
  }
  return 0;
}

size_t SizeOfParameter(std::string_view parameter) {
  const size_t bracket = parameter.find('[');
  size_t count = 1;
  if (bracket != std::string_view::npos) {
    count = static_cast<size_t>(std::atol(std::string(parameter.substr(bracket + 1)).c_str()));
  }
  return SizeOfType(parameter.substr(0, bracket)) * count;
}

PtxEntry EntryAt(std::string_view text, size_t at) {
  PtxEntry entry;
  entry.name = WordAt(text, at);
  const size_t open = text.find('(', at);
  const size_t close = text.find(')', at);
  const size_t body = text.find('{', at);
  if (open == std::string_view::npos || close == std::string_view::npos || open > body) return entry;
  const std::string_view list = text.substr(open, close - open);
  for (size_t from = list.find(".param"); from != std::string_view::npos;) {
    const size_t next = list.find(".param", from + 1);
    entry.sizes.push_back(SizeOfParameter(list.substr(from + 6, next - from - 6)));
    from = next;
  }
  return entry;
}

}  // namespace

bool ParsePtx(std::string_view text, Ptx& ptx) {
  const size_t version = text.find(".version ");
  const size_t target = text.find(".target sm_");
  if (version == std::string_view::npos || target == std::string_view::npos) return false;
  const std::string number(text.substr(version + 9, 8));
  ptx.version = static_cast<int>(std::strtod(number.c_str(), nullptr) * 10 + 0.5);
  ptx.target = std::atoi(std::string(text.substr(target + 11, 4)).c_str());
  constexpr std::string_view kEntry = ".entry ";
  for (size_t at = text.find(kEntry); at != std::string_view::npos; at = text.find(kEntry, at + 1)) {
    ptx.entries.push_back(EntryAt(text, at + kEntry.size()));
  }
  return true;
}

}  // namespace weightcast::fake_cuda
