#pragma once

#include <string>
#include <vector>

#include "tests/model/config.h"

/// The configurations that the tests and `make model` search.
namespace weightcast::model {

std::vector<Config> AllConfigs();
bool FindConfig(const std::string& name, Config& config);
/// Changes a field by its name, budgets too. False if there is none of this name.
bool Set(Config& config, const std::string& key, const std::string& value);

}  // namespace weightcast::model
