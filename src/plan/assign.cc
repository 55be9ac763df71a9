#include "plan/assign.h"

#include <algorithm>
#include <array>
#include <functional>
#include <queue>
#include <tuple>
#include <utility>

#include "plan/quantise.h"

namespace weightcast::plan {
namespace {

/// The holders of one replica set by what they have sent. Entries may be out of date, always too
/// low: what is popped is put back until it is true.
using Heap =
    std::priority_queue<std::pair<int64_t, int>, std::vector<std::pair<int64_t, int>>, std::greater<>>;

int TakeLeastBusy(Heap& heap, std::span<const int> members, const std::vector<int64_t>& sent) {
  if (heap.empty()) {
    for (const int rank : members) heap.emplace(sent[rank], rank);
  }
  for (;;) {
    const auto [bytes, rank] = heap.top();
    if (bytes == sent[rank]) return rank;
    heap.pop();
    heap.emplace(sent[rank], rank);
  }
}

}  // namespace

std::vector<Shipment> AssignGreedy(const PieceList& list, int ranks) {
  std::vector<Shipment> out;
  out.reserve(list.pieces.size());
  std::vector<int64_t> sent(static_cast<size_t>(ranks), 0);
  std::vector<Heap> heaps(list.sets.size());
  for (uint32_t i = 0; i < list.pieces.size(); ++i) {
    const Piece& piece = list.pieces[i];
    const auto members = list.sets[piece.set];
    const int rank = members.size() == 1 ? members[0] : TakeLeastBusy(heaps[piece.set], members, sent);
    sent[rank] += piece.bytes;
    out.push_back({i, piece.link, rank, piece.to, piece.coord, piece.bytes});
  }
  return out;
}

namespace {

/// Lays the pieces of one replica set end to end and hands them to its members.
class Stretch {
 public:
  Stretch(PieceList& list, const FairShare& share, uint32_t set, int64_t slack, std::vector<Shipment>& out)
      : list_(list),
        members_(list.sets[set]),
        quota_(share.quota.data() + list.sets.FirstMember(set)),
        slack_(slack),
        out_(out),
        end_(quota_[0]) {}

  void Hand(uint32_t piece);

 private:
  /// Where to cut a piece, in elements, so that it is near `wanted` bytes; on a border between rows
  /// of the outermost dimension whose rows are no longer than the slack; of what is quantised between rows
  /// of blocks.
  [[nodiscard]] int64_t CutNear(const Piece& piece, int64_t wanted) const;
  /// Elements [first, last) of a piece to the current member.
  void Give(uint32_t index, int64_t first, int64_t last);
  void NextMember() { end_ += quota_[++member_]; }
  [[nodiscard]] bool LastMember() const { return member_ + 1 == members_.size(); }
  [[nodiscard]] int64_t ElementsOf(const Piece& piece) const;

  PieceList& list_;
  std::span<const int> members_;
  const int64_t* quota_;
  int64_t slack_;
  std::vector<Shipment>& out_;
  size_t member_ = 0;
  int64_t at_ = 0;   ///< Bytes of this set laid out so far.
  int64_t end_ = 0;  ///< Where the member's share ends.
};

int64_t Stretch::ElementsOf(const Piece& piece) const {
  int64_t elements = 1;
  for (const int64_t extent : list_.size(piece.link, piece.coord)) elements *= extent;
  return elements;
}

int64_t Stretch::CutNear(const Piece& piece, int64_t wanted) const {
  const auto size = list_.size(piece.link, piece.coord);
  const int64_t elements = ElementsOf(piece);
  const int64_t bytes_each = list_.element_bits[piece.link] / 8;
  // Below one byte an element cannot be cut off anywhere: such a piece stays whole.
  if (list_.element_bits[piece.link] % 8 != 0) return wanted * 2 < piece.bytes ? 0 : elements;
  int64_t row = elements;
  for (const int64_t extent : size) {
    if (row * bytes_each <= slack_) break;
    row /= extent;
  }
  if (list_.links[piece.link].transform == Transform::kQuantise) row = kBlockSize * size[1];
  const int64_t step = row * bytes_each;
  return std::min((wanted + step / 2) / step * row, elements);
}

void Stretch::Give(uint32_t index, int64_t first, int64_t last) {
  const Piece& piece = list_.pieces[index];
  const int rank = members_[member_];
  if (first == 0 && last == ElementsOf(piece)) {
    out_.push_back({index, piece.link, rank, piece.to, piece.coord, piece.bytes});
    return;
  }
  const size_t dims = list_.dims[piece.link];
  // Copied: the cuts are appended to the vector that the piece's own box lies in.
  std::array<int64_t, 2 * kMaxDims> box;
  std::copy_n(list_.coords.begin() + static_cast<ptrdiff_t>(piece.coord), 2 * dims, box.begin());
  auto coord = static_cast<uint32_t>(list_.coords.size());
  CutRowMajor({box.data(), dims}, {box.data() + dims, dims}, first, last, list_.coords);
  for (; coord < list_.coords.size(); coord += static_cast<uint32_t>(2 * dims)) {
    int64_t elements = 1;
    for (const int64_t extent : list_.size(piece.link, coord)) elements *= extent;
    const int64_t bytes = elements * list_.element_bits[piece.link] / 8;
    out_.push_back({index, piece.link, rank, piece.to, coord, bytes});
  }
}

void Stretch::Hand(uint32_t index) {
  const Piece piece = list_.pieces[index];
  const int64_t elements = ElementsOf(piece);
  int64_t begin = 0;  // Elements, and the same in bytes, that are given away.
  int64_t given = 0;
  while (!LastMember() && end_ < at_ + piece.bytes) {
    const int64_t wanted = end_ - at_;
    int64_t cut = wanted - given < piece.bytes - wanted ? begin : elements;
    if (wanted - given > slack_ && piece.bytes - wanted > slack_)
      cut = std::max(CutNear(piece, wanted), begin);
    if (cut > begin) {
      Give(index, begin, cut);
      given = cut == elements ? piece.bytes : cut * (list_.element_bits[piece.link] / 8);
      begin = cut;
    }
    NextMember();
  }
  if (begin < elements) Give(index, begin, elements);
  at_ += piece.bytes;
}

}  // namespace

std::vector<Shipment> AssignBalanced(PieceList& list, const FairShare& share, int64_t slack) {
  std::vector<Shipment> out;
  out.reserve(list.pieces.size());
  std::vector<uint32_t> choices;
  for (uint32_t i = 0; i < list.pieces.size(); ++i) {
    const Piece& piece = list.pieces[i];
    const auto members = list.sets[piece.set];
    if (members.size() == 1) {
      out.push_back({i, piece.link, members[0], piece.to, piece.coord, piece.bytes});
    } else {
      choices.push_back(i);
    }
  }
  std::ranges::sort(choices, {}, [&](uint32_t choice) {
    return std::tuple(list.pieces[choice].set, list.pieces[choice].to.rank(), choice);
  });
  for (size_t first = 0; first < choices.size();) {
    const uint32_t set = list.pieces[choices[first]].set;
    Stretch stretch(list, share, set, slack, out);
    for (; first < choices.size() && list.pieces[choices[first]].set == set; ++first)
      stretch.Hand(choices[first]);
  }
  return out;
}

std::vector<int64_t> BytesPerSender(std::span<const Shipment> shipments, int ranks) {
  std::vector<int64_t> bytes(static_cast<size_t>(ranks), 0);
  for (const Shipment& shipment : shipments) bytes[shipment.src_rank] += shipment.bytes;
  return bytes;
}

namespace {

/// Appends rows [first, last) of dimension `dim` of a box whose outer dimensions are one element.
void AppendRows(std::span<int64_t> offset, std::span<int64_t> size, size_t dim, int64_t first, int64_t last,
                LargeVector<int64_t>& out) {
  const int64_t old_offset = offset[dim];
  const int64_t old_size = size[dim];
  offset[dim] += first;
  size[dim] = last - first;
  out.insert(out.end(), offset.begin(), offset.end());
  out.insert(out.end(), size.begin(), size.end());
  offset[dim] = old_offset;
  size[dim] = old_size;
}

void CutFrom(std::span<int64_t> offset, std::span<int64_t> size, size_t dim, int64_t first, int64_t last,
             LargeVector<int64_t>& out) {
  if (first >= last) return;
  int64_t row = 1;
  for (size_t d = dim + 1; d < size.size(); ++d) row *= size[d];
  const int64_t whole_from = (first + row - 1) / row;
  const int64_t whole_to = last / row;
  // The elements of one row, one dimension further in.
  const auto inside = [&](int64_t index, int64_t from, int64_t to) {
    const int64_t old_offset = std::exchange(offset[dim], offset[dim] + index);
    const int64_t old_size = std::exchange(size[dim], 1);
    CutFrom(offset, size, dim + 1, from, to, out);
    offset[dim] = old_offset;
    size[dim] = old_size;
  };
  if (whole_from > whole_to) {  // Both ends inside one row.
    inside(whole_to, first - whole_to * row, last - whole_to * row);
    return;
  }
  if (first < whole_from * row) inside(whole_from - 1, first - (whole_from - 1) * row, row);
  if (whole_from < whole_to) AppendRows(offset, size, dim, whole_from, whole_to, out);
  if (whole_to * row < last) inside(whole_to, 0, last - whole_to * row);
}

}  // namespace

void CutRowMajor(std::span<const int64_t> offset, std::span<const int64_t> size, int64_t first, int64_t last,
                 LargeVector<int64_t>& out) {
  std::array<int64_t, 2 * kMaxDims> box;
  const size_t dims = offset.size();
  std::copy(offset.begin(), offset.end(), box.begin());
  std::copy(size.begin(), size.end(), box.begin() + dims);
  CutFrom({box.data(), dims}, {box.data() + dims, dims}, 0, first, last, out);
}

}  // namespace weightcast::plan
