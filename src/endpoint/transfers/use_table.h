#pragma once

#include <array>
#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>

namespace weightcast::endpoint {

/// Things found by a small number and counted while they are used; finding takes no lock and allocates
/// nothing. Whose they are, and which numbers are free, is the owner's affair.
///
/// A number's life: Set -> Use and Drop by anyone -> Remove (from then on Use finds nothing) -> unused, told
/// once: by Remove, or by the last Drop, or by a Use that came too late and was the last to look. After that
/// the thing may go and the number may be Set again.
///
/// Threads: Use and Drop any. Set and Remove one at a time, under the owner's lock.
template <typename T>
class UseTable {
 public:
  UseTable() = default;
  UseTable(const UseTable&) = delete;
  UseTable& operator=(const UseTable&) = delete;
  ~UseTable() {
    for (auto& segment : segments_) delete[] segment.load(std::memory_order_relaxed);
  }

  struct Found {
    T* thing = nullptr;          ///< Null: there is none; otherwise counted until Drop.
    bool became_unused = false;  ///< This look delayed the report, which the caller makes now.
  };
  Found Use(uint32_t index) {
    Cell* const cell = CellOf(index);
    if (cell == nullptr) return {};
    if ((cell->uses.fetch_add(1, std::memory_order_acquire) & (kFree | kRemoved)) == 0) {
      return {cell->thing, false};
    }
    return {nullptr, Drop(index)};
  }

  /// Ends one Use. True: it was removed and nobody uses it any more.
  [[nodiscard]] bool Drop(uint32_t index) {
    Cell& cell = *CellOf(index);
    return cell.uses.fetch_sub(1, std::memory_order_acq_rel) == (kRemoved | 1) && Claim(cell);
  }

  void Set(uint32_t index, T* thing) {
    Cell& cell = MakeCell(index);
    cell.thing = thing;
    cell.uses.fetch_and(~kFree, std::memory_order_release);
  }

  /// True: nobody uses it. Not twice for one Set.
  [[nodiscard]] bool Remove(uint32_t index) {
    Cell& cell = *CellOf(index);
    return cell.uses.fetch_or(kRemoved, std::memory_order_acq_rel) == 0 && Claim(cell);
  }

 private:
  static constexpr uint32_t kRemoved = 1U << 31;
  static constexpr uint32_t kFree = 1U << 30;
  static constexpr uint32_t kFirstSegment = 32;  ///< Each has twice as many as the one before.

  struct Cell {
    std::atomic<uint32_t> uses{kFree};  ///< How many, and the two marks.
    T* thing = nullptr;                 ///< Written while kFree is set.
  };

  /// One of those who see that it is unused is the one who tells.
  static bool Claim(Cell& cell) {
    uint32_t unused = kRemoved;
    return cell.uses.compare_exchange_strong(unused, kFree, std::memory_order_acq_rel);
  }

  static std::pair<size_t, size_t> PlaceOf(uint32_t index) {
    const uint64_t from_one = uint64_t{index} + kFirstSegment;
    const auto segment = static_cast<size_t>(std::bit_width(from_one) - std::bit_width(kFirstSegment));
    return {segment, static_cast<size_t>(from_one - (uint64_t{kFirstSegment} << segment))};
  }
  Cell* CellOf(uint32_t index) {
    const auto [segment, place] = PlaceOf(index);
    Cell* const cells = segments_[segment].load(std::memory_order_acquire);
    return cells == nullptr ? nullptr : cells + place;
  }
  Cell& MakeCell(uint32_t index) {
    const auto [segment, place] = PlaceOf(index);
    Cell* cells = segments_[segment].load(std::memory_order_relaxed);
    if (cells == nullptr) {
      cells = std::make_unique<Cell[]>(size_t{kFirstSegment} << segment).release();
      segments_[segment].store(cells, std::memory_order_release);
    }
    return cells[place];
  }

  std::array<std::atomic<Cell*>, 28> segments_{};  ///< Enough for every uint32_t.
};

}  // namespace weightcast::endpoint
