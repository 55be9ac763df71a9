#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace weightcast::topology {

/// The small files of sysfs and procfs. What is not there, or may not be read, is empty or 0.

/// The first line, without its end.
std::string ReadLine(const std::filesystem::path& file);
/// "0x10de".
uint32_t ReadHex(const std::filesystem::path& file);
/// What a folder holds: names that differ in a number are in its order, mlx5_2 before mlx5_10.
std::vector<std::string> NamesIn(const std::filesystem::path& folder);

}  // namespace weightcast::topology
