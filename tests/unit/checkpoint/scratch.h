#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "scratch_folder.h"

namespace weightcast::checkpoint {

/// A folder of the test's own, gone with it.
class Scratch {
 public:
  [[nodiscard]] const std::filesystem::path& path() const { return path_; }
  std::filesystem::path operator/(std::string_view name) const { return path_ / name; }

 private:
  const test::ScratchFolder folder_;
  const std::filesystem::path path_ = folder_.path();
};

inline void WriteText(const std::filesystem::path& path, std::string_view text) {
  std::ofstream out(path, std::ios::binary | std::ios::trunc);
  out << text;
  ASSERT_TRUE(out.flush().good()) << path;
}

inline std::string ReadText(const std::filesystem::path& path) {
  std::ifstream in(path, std::ios::binary);
  EXPECT_TRUE(in.good()) << path;
  return {std::istreambuf_iterator<char>(in), {}};
}

/// The bytes of a safetensors file.
inline std::string FileOf(std::string_view json, std::string_view data) {
  const uint64_t length = json.size();
  std::string file(sizeof length, '\0');
  std::memcpy(file.data(), &length, sizeof length);
  return file.append(json).append(data);
}

inline std::span<const std::byte> BytesOf(std::string_view text) {
  return {reinterpret_cast<const std::byte*>(text.data()), text.size()};
}

inline std::string TextOf(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

/// The first `size` bytes of a tensor of a SafetensorsFile or Checkpoint, or why they cannot be read.
template <typename File>
std::string ReadTensor(const File& file, size_t tensor, size_t size) {
  std::vector<std::byte> bytes(size);
  const Status status = file.Read(tensor, 0, bytes);
  return status.ok() ? TextOf(bytes) : status.ToString();
}

/// Names of all that lies below a folder, relative to it, sorted.
inline std::vector<std::string> Everything(const std::filesystem::path& folder) {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(folder))
    names.push_back(std::filesystem::relative(entry.path(), folder).native());
  std::sort(names.begin(), names.end());
  return names;
}

}  // namespace weightcast::checkpoint
