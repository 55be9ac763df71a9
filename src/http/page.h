#pragma once

#include <span>
#include <string_view>

namespace weightcast::http {

struct PageFile {
  std::string_view path;  ///< "/page.css"
  std::string_view type;
  std::string_view body;
};

/// The files of src/http/page, compiled in. "/" is index.html.
std::span<const PageFile> PageFiles();

}  // namespace weightcast::http
