#include "topology/files.h"

#include <algorithm>
#include <charconv>
#include <fstream>
#include <tuple>

namespace weightcast::topology {

namespace fs = std::filesystem;

std::string ReadLine(const fs::path& file) {
  std::ifstream stream(file);
  std::string line;
  std::getline(stream, line);
  return line;
}

uint32_t ReadHex(const fs::path& file) {
  const std::string line = ReadLine(file);
  uint32_t value = 0;
  if (line.starts_with("0x")) std::from_chars(line.data() + 2, line.data() + line.size(), value, 16);
  return value;
}

std::vector<std::string> NamesIn(const fs::path& folder) {
  std::vector<std::string> names;
  std::error_code error;
  for (fs::directory_iterator at(folder, error), end; !error && at != end; at.increment(error))
    names.push_back(at->path().filename().string());
  std::ranges::sort(names, {}, [](const std::string& name) { return std::tuple(name.size(), name); });
  return names;
}

}  // namespace weightcast::topology
