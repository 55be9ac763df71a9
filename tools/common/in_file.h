#pragma once

#include <string>
#include <utility>

#include "base/strings.h"
#include "weightcast/status.h"

namespace weightcast::tools {

/// An error of what was read from a file names it.
template <typename T>
Result<T> InFile(const std::string& file, Result<T> result) {
  if (result.ok()) return result;
  return Error(result.status().code(), file, ": ", result.status().message());
}

}  // namespace weightcast::tools
