#pragma once

#include <string_view>

#include "stream/connection.h"
#include "weightcast/status.h"

/// Why a client finds no controller at an address, in words that say what to do.
namespace weightcast::stream {

/// `why`: of the connection's attempt, which names the address.
Status ExplainConnect(const Status& why);
/// A handshake that has failed, by all that came before: an alert, another protocol, nothing.
Status ExplainHandshake(const Connection& connection, std::string_view address);
Status ExplainImpostor(std::string_view address, std::string_view why);

}  // namespace weightcast::stream
