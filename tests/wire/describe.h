#pragma once

#include <string>

namespace weightcast::wire {

/// docs/messages.md: kinds, members and enums, from the messages' Fields.
std::string MessagesPage();

}  // namespace weightcast::wire
