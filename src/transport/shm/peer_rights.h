#pragma once

#include "transport/region_table.h"
#include "transport/shm/inbox.h"
#include "transport/shm/records.h"
#include "transport/shm/regions.h"

namespace weightcast::transport::shm {

/// kOk, or why the peer may not write what its record says. `region`: the one that the record names; null:
/// there is none, or the peer may not write there in this way.
template <typename Record>
Code JudgeWrite(const OwnInbox& inbox, const Record& record, const LocalRegion* region) {
  const bool granted = record.slot != 0;
  if (!inbox.IsOpen(record.slot, record.grant)) return granted ? Code::kFenced : Code::kPermission;
  if (region == nullptr || !PeersWrite(region->access, granted)) return Code::kPermission;
  if (!InBounds(record.offset, record.length, region->length)) return Code::kOutOfBounds;
  return inbox.Covers(record.slot, record.region, record.generation, record.offset, record.length)
             ? Code::kOk
             : Code::kPermission;
}

/// The same of a read.
inline Code JudgeRead(const OwnInbox& inbox, const GetRecord& get, const LocalRegion* region) {
  if (region == nullptr || !PeersRead(region->access) || !inbox.IsOpen(0, 0)) return Code::kPermission;
  const bool inside = get.length > 0 && InBounds(get.offset, get.length, region->length);
  return inside ? Code::kOk : Code::kOutOfBounds;
}

}  // namespace weightcast::transport::shm
