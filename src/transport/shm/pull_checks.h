#pragma once

#include <atomic>
#include <cstdint>

#include "transport/shm/layout.h"

/// How a pull finds out that its source was what the writer promised, although the target's engine or
/// processor does the copying and cannot be stopped:
///
///     writer                            target
///     orders a pull                     grant[slot] == id?  SourceStands?       (check 1)
///                                       it copies, piece by piece
///     CloseSource, or generation = 0    the copy is over
///     changes the source                SourceStands?                           (check 2)
///                                       counts the signal if grant[slot] == id
///
/// The writer closes its word before it changes a byte, and the target reads the word after it has seen the
/// end of the copy. So a word that still stands at check 2 stood when the last byte was read: every byte is
/// older than any change. A generation is never used twice, so a source that was closed and offered again
/// does not stand either. What check 2 refuses lies in memory that the target's own grant allowed, and is not
/// signalled.
namespace weightcast::transport::shm {

/// Inbox::source_open of a link that is ready.
inline constexpr uint64_t kSourcesOpen = 1;

/// Checks 1 and 2: the writer has not closed its sources, and this is still the source of that generation.
inline bool SourceStands(const Word& open, const std::atomic<uint32_t>& generation, uint32_t named) {
  return open.load(std::memory_order_seq_cst) == kSourcesOpen &&
         generation.load(std::memory_order_seq_cst) == named;
}

/// The writer's side, before anything may be changed. An exchange: later stores do not come before it.
inline void CloseSource(Word& open) { open.exchange(0, std::memory_order_seq_cst); }

}  // namespace weightcast::transport::shm
