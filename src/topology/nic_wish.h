#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace weightcast::topology {

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
