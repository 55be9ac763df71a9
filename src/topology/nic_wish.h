#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace weightcast::topology {

/// Ports that one process uses at most: the first ones that the setting `nics` allows and that open.
inline constexpr size_t kMaxNics = 16;

/// The setting `nics`: names of devices ("mlx5_0") and ports ("mlx5_0:2"), or with ^ in front those to leave
/// out.
class NicWish {
 public:
  explicit NicWish(std::string_view setting);
  [[nodiscard]] bool Allows(std::string_view device, int port) const;
  [[nodiscard]] bool everything() const { return names_.empty(); }

 private:
  bool except_;
  std::vector<std::string> names_;
};

}  // namespace weightcast::topology
