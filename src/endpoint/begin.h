#pragma once

#include <memory>
#include <span>

#include "endpoint/connection.h"

namespace weightcast::endpoint {

/// Makes a transfer of a caller's pieces: checked, translated and counted, on the caller's thread. Ready for
/// Links::Begin.
Result<TransferRef> BuildTransfer(const std::shared_ptr<Connection::State>& connection,
                                  transport::OpKind kind, std::span<const Piece> pieces,
                                  TransferOptions options);

}  // namespace weightcast::endpoint
