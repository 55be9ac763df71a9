#pragma once

#include "plan/table_format.h"
#include "protocol/messages.h"
#include "weightcast/status.h"

namespace weightcast::worker {

/// The table of a plan, out of the message or out of the file that it names in the folder `tables`.
/// Never waits for a FIFO. Errors say which file and what is wrong with it: kUnavailable when it cannot
/// be read, kProtocol for another format version or a path that leaves the folder, kCorrupt for a wrong
/// checksum or content, kInvalidArgument when it is another rank's or another epoch's.
Result<plan::RankTable> LoadTable(const protocol::Plan& plan, const std::string& tables,
                                  plan::RankTable::Role role);

}  // namespace weightcast::worker
