#pragma once

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <utility>

#include "base/strings.h"

namespace weightcast::test {

/// What a random test has seen a machine do, as a state diagram (Mermaid). docs/states.md has these diagrams,
/// and a test holds it to them: WC_WRITE_DOCS=1 writes them again.
class Diagram {
 public:
  void Saw(std::string_view from, std::string_view to, std::string_view because) {
    if (from != to) edges_[{std::string(from), std::string(to)}].emplace(because);
  }

  void ExpectInDocs(const std::string& name) const {
    const std::filesystem::path file = Page();
    std::ifstream in(file);
    const std::string text{std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
    const std::string begin = StrCat("<!-- ", name, " -->\n");
    const std::string end = StrCat("<!-- end of ", name, " -->");
    const size_t first = text.find(begin);
    const size_t last = text.find(end);
    ASSERT_TRUE(first != std::string::npos && last != std::string::npos)
        << file << " has no place for " << name;
    const std::string there = text.substr(first + begin.size(), last - first - begin.size());
    const std::string drawn = Draw();
    if (std::getenv("WC_WRITE_DOCS") == nullptr) {
      EXPECT_EQ(there, drawn) << "the machine does other things than " << file
                              << " says; if it should, write the diagram again with WC_WRITE_DOCS=1";
      return;
    }
    std::ofstream(file) << text.substr(0, first + begin.size()) << drawn << text.substr(last);
  }

 private:
  /// Searched upwards from this program: a path that was compiled in would keep compilers from sharing
  /// results.
  static std::filesystem::path Page() {
    std::filesystem::path folder = std::filesystem::read_symlink("/proc/self/exe").parent_path();
    while (folder.has_relative_path() && !exists(folder / "docs" / "states.md"))
      folder = folder.parent_path();
    return folder / "docs" / "states.md";
  }
  [[nodiscard]] std::string Draw() const {
    std::string drawn = "```mermaid\nstateDiagram-v2\n";
    for (const auto& [edge, causes] : edges_) {
      std::string because;
      for (const std::string& cause : causes) because += StrCat(because.empty() ? "" : ", ", cause);
      drawn += StrCat("  ", edge.first, " --> ", edge.second, ": ", because, "\n");
    }
    return drawn + "```\n";
  }

  std::map<std::pair<std::string, std::string>, std::set<std::string>> edges_;
};

}  // namespace weightcast::test
