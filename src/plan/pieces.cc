#include "plan/pieces.h"

#include <algorithm>
#include <map>
#include <memory>
#include <tuple>
#include <utility>

#include "base/hash.h"
#include "base/strings.h"
#include "plan/box_index.h"
#include "plan/cover.h"
#include "plan/segments.h"

namespace weightcast::plan {

uint32_t ReplicaSets::Intern(std::span<const int> ranks) {
  const uint64_t hash = Hash64(std::as_bytes(ranks));
  const auto [begin, end] = by_hash_.equal_range(hash);
  for (auto at = begin; at != end; ++at) {
    if (std::ranges::equal((*this)[at->second], ranks)) return at->second;
  }
  const auto set = static_cast<uint32_t>(size());
  ranks_.insert(ranks_.end(), ranks.begin(), ranks.end());
  first_.push_back(ranks_.size());
  by_hash_.emplace(hash, set);
  return set;
}

namespace {

constexpr int64_t kMaxPlanBytes = int64_t{1} << 60;
/// Of memory that a plan takes at most while it is made, verified and encoded: its pieces, who sends them by
/// two strategies, the table, what is sent of it; boxes while their array grows.
constexpr uint64_t kBytesPerRoute = 160;
constexpr uint64_t kBytesPerCoord = 24;

/// The boxes of one tensor of one side, as they come: by part, then rank.
struct Boxes {
  std::vector<int> ranks;
  std::vector<int64_t> coords;  ///< Per box: offsets, then sizes.
};

Boxes BoxesOf(const Layout& layout, int tensor) {
  Boxes out;
  layout.ForEachBox(tensor, [&](int rank, const Box& box) {
    out.ranks.push_back(rank);
    out.coords.insert(out.coords.end(), box.offset.begin(), box.offset.end());
    out.coords.insert(out.coords.end(), box.size.begin(), box.size.end());
  });
  return out;
}

/// The distinct boxes of a source tensor and the replica set of each.
struct Sources {
  BoxIndex index;
  std::vector<uint32_t> set_of_box;
};

/// The boxes of a destination tensor, and which rank holds which.
struct Destinations {
  struct Holder {
    RankCopy to;
    uint32_t box;
  };
  std::vector<int64_t> coords;
  std::vector<Holder> holders;  ///< By rank.
  size_t boxes = 0;
};

/// A part of a source box that a destination box needs.
struct Cut {
  uint32_t set;
  uint32_t coord;
  int64_t bytes;
};

/// The cuts of all boxes of one link.
struct Geometry {
  std::vector<Cut> cuts;
  std::vector<size_t> first{0};  ///< Per destination box its first cut, and one more.
};

/// Cuts the destination boxes of one link.
class Cutter {
 public:
  Cutter(const Layout& trainers, const Layout& inference, const Link& link, const Sources& sources,
         PieceList& out)
      : source_(trainers.tensor(link.src_tensor)),
        destination_(inference.tensor(link.dst_tensor)),
        link_(link),
        sources_(sources),
        out_(out) {}

  Result<Geometry> CutAll(const Destinations& destinations);

 private:
  /// What a destination box needs of this link, in source coordinates, into wanted_; false if nothing.
  bool Want(const int64_t* box);
  Status CutBox(const int64_t* box, Geometry& geometry);
  Cut CutSource(int hit);
  Status CheckBytes(const Cut& cut, int hit, const int64_t* box) const;
  [[nodiscard]] Box BoxAt(const int64_t* coords) const {
    const auto dims = static_cast<ptrdiff_t>(source_.shape.size());
    return {Shape(coords, coords + dims), Shape(coords + dims, coords + 2 * dims)};
  }

  const TensorInfo& source_;
  const TensorInfo& destination_;
  const Link& link_;
  const Sources& sources_;
  PieceList& out_;
  Box wanted_;
  std::vector<int> hits_;
  int64_t found_ = 0;  ///< Elements of wanted_ that cuts cover.
};

bool Cutter::Want(const int64_t* box) {
  const auto dims = static_cast<ptrdiff_t>(source_.shape.size());
  wanted_.offset.assign(box, box + dims);
  wanted_.size.assign(box + dims, box + 2 * dims);
  if (dims == 0) return true;
  int64_t& offset = wanted_.offset[static_cast<size_t>(link_.dim)];
  int64_t& size = wanted_.size[static_cast<size_t>(link_.dim)];
  const int64_t begin = std::max(offset, link_.dst_start);
  const int64_t end = std::min(offset + size, link_.dst_start + link_.extent);
  offset = begin - link_.dst_start + link_.src_start;
  size = end - begin;
  return begin < end;
}

Cut Cutter::CutSource(int hit) {
  const size_t dims = wanted_.offset.size();
  const size_t coord = out_.coords.size();
  out_.coords.resize(coord + 2 * dims);
  const auto offset = sources_.index.offset(hit);
  const auto extent = sources_.index.extent(hit);
  int64_t elements = 1;
  for (size_t d = 0; d < dims; ++d) {
    const int64_t begin = std::max(wanted_.offset[d], offset[d]);
    const int64_t end = std::min(wanted_.offset[d] + wanted_.size[d], offset[d] + extent[d]);
    out_.coords[coord + d] = begin;
    out_.coords[coord + dims + d] = end - begin;
    elements *= end - begin;
  }
  found_ += elements;
  return {sources_.set_of_box[static_cast<size_t>(hit)], static_cast<uint32_t>(coord),
          BytesOf(destination_.dtype, elements)};
}

Status Cutter::CheckBytes(const Cut& cut, int hit, const int64_t* box) const {
  const Box part = BoxAt(out_.coords.data() + cut.coord);
  Shape dst_offset = part.offset;
  if (!dst_offset.empty()) dst_offset[static_cast<size_t>(link_.dim)] += link_.dst_start - link_.src_start;
  const Box source = BoxAt(sources_.index.offset(hit).data());
  const Status status =
      Segments::Of(source, source_.dtype, BoxAt(box), destination_.dtype, part, dst_offset).status();
  return status.ok() ? status : Error(status.code(), "tensor '", destination_.name, "': ", status.message());
}

Status Cutter::CutBox(const int64_t* box, Geometry& geometry) {
  if (!Want(box)) return Status::Ok();
  hits_.clear();
  sources_.index.Query(wanted_.offset, wanted_.size, [&](int hit) {
    hits_.push_back(hit);
    return true;
  });
  std::sort(hits_.begin(), hits_.end());
  if (out_.coords.size() + hits_.size() * 2 * kMaxDims > kMaxCoords)
    return Error(Code::kExhausted, "the plan has more than ", kMaxCoords / (2 * kMaxDims),
                 " boxes, the most that it can hold; use fewer engines or larger shards");
  found_ = 0;
  for (const int hit : hits_) {
    geometry.cuts.push_back(CutSource(hit));
    // Elements below one byte can only be addressed where a cut falls between bytes.
    if (BitsOf(source_.dtype) % 8 != 0) WC_RETURN_IF_ERROR(CheckBytes(geometry.cuts.back(), hit, box));
  }
  if (found_ == ElementsOf(wanted_)) return Status::Ok();
  return Error(Code::kInvalidArgument, "the trainers do not hold the box ", ToString(wanted_), " of tensor '",
               source_.name, "' exactly once; correct the trainers' layout");
}

Result<Geometry> Cutter::CutAll(const Destinations& destinations) {
  Geometry geometry;
  const size_t width = 2 * source_.shape.size();
  for (size_t box = 0; box < destinations.boxes; ++box) {
    WC_RETURN_IF_ERROR(CutBox(destinations.coords.data() + box * width, geometry));
    geometry.first.push_back(geometry.cuts.size());
  }
  return geometry;
}

/// Goes through the links. Tensors of one shape under the same patterns (the layers of a model) are
/// alike: what is worked out for one is kept for the others.
class Collector {
 public:
  Collector(const Layout& trainers, const Layout& inference, uint64_t memory)
      : trainers_(trainers), inference_(inference), memory_(memory) {}

  Result<PieceList> Run(std::vector<Link> links);

 private:
  /// A tensor's patterns and shifts, part by part, and its shape. Empty patterns: it has irregular parts.
  using Key = std::pair<std::vector<int>, Shape>;
  using Alike = std::tuple<const Sources*, const Destinations*, int, int64_t, int64_t, int64_t, DType>;

  static Key KeyOf(const Layout& layout, int tensor);
  std::shared_ptr<const Sources> SourcesOf(int tensor, const Key& key);
  std::shared_ptr<const Destinations> DestinationsOf(int tensor, const Key& key);
  Status CollectLink(uint32_t link);
  Status AddPieces(uint32_t link, const Destinations& destinations, const Geometry& geometry);
  /// From here on pieces are only counted if there would be too many.
  void Weigh();
  [[nodiscard]] uint64_t MemoryWanted() const { return routes_ * kBytesPerRoute + coords_ * kBytesPerCoord; }
  [[nodiscard]] Status TooLarge() const;

  const Layout& trainers_;
  const Layout& inference_;
  PieceList out_;
  std::map<Key, std::shared_ptr<const Sources>> sources_;
  std::map<Key, std::shared_ptr<const Destinations>> destinations_;
  std::map<Alike, std::shared_ptr<const Geometry>> geometries_;
  const uint64_t memory_;
  bool keeps_ = true;  ///< Pieces are kept, not only counted.
  uint64_t routes_ = 0;
  uint64_t coords_ = 0;
  int64_t total_bytes_ = 0;
};

Collector::Key Collector::KeyOf(const Layout& layout, int tensor) {
  Key key{{}, layout.tensor(tensor).shape};
  for (const Layout::Part& part : layout.parts(tensor)) {
    if (part.pattern < 0) return {};
    key.first.push_back(part.pattern);
    key.first.push_back(part.first_rank);
  }
  return key;
}

std::shared_ptr<const Sources> Collector::SourcesOf(int tensor, const Key& key) {
  if (const auto known = sources_.find(key); known != sources_.end()) return known->second;
  const int dims = static_cast<int>(trainers_.tensor(tensor).shape.size());
  const Boxes boxes = BoxesOf(trainers_, tensor);
  DistinctBoxes distinct = GroupEqual(dims, boxes.ranks, boxes.coords);
  std::vector<uint32_t> sets(distinct.size());
  for (size_t box = 0; box < sets.size(); ++box) sets[box] = out_.sets.Intern(distinct.HoldersOf(box));
  auto made = std::make_shared<const Sources>(BoxIndex(dims, std::move(distinct.coords)), std::move(sets));
  if (!key.first.empty()) sources_.emplace(key, made);
  return made;
}

std::shared_ptr<const Destinations> Collector::DestinationsOf(int tensor, const Key& key) {
  if (const auto known = destinations_.find(key); known != destinations_.end()) return known->second;
  Boxes boxes = BoxesOf(inference_, tensor);
  Destinations out;
  if (key.first.empty()) {  // Irregular boxes are hardly ever alike: each stands for itself.
    out.boxes = boxes.ranks.size();
    out.coords = std::move(boxes.coords);
    const size_t width = out.boxes > 0 ? out.coords.size() / out.boxes : 0;
    const auto coords = [&](uint32_t box) { return std::span(out.coords).subspan(box * width, width); };
    uint32_t copy = 0;  // Copies stand together.
    for (uint32_t box = 0; box < out.boxes; ++box) {
      const bool again = box > 0 && boxes.ranks[box] == boxes.ranks[box - 1] &&
                         std::ranges::equal(coords(box), coords(box - 1));
      copy = again ? copy + 1 : 0;
      out.holders.push_back({RankCopy(boxes.ranks[box], copy), box});
    }
    return std::make_shared<const Destinations>(std::move(out));
  }
  DistinctBoxes distinct =
      GroupEqual(static_cast<int>(inference_.tensor(tensor).shape.size()), boxes.ranks, boxes.coords);
  out.boxes = distinct.size();
  for (uint32_t box = 0; box < out.boxes; ++box) {
    for (const int rank : distinct.HoldersOf(box)) out.holders.push_back({RankCopy(rank, 0), box});
  }
  std::ranges::sort(out.holders, {}, &Destinations::Holder::to);  // A pattern gives each rank one box.
  out.coords = std::move(distinct.coords);
  return destinations_.emplace(key, std::make_shared<const Destinations>(std::move(out))).first->second;
}

Status Collector::AddPieces(uint32_t link, const Destinations& destinations, const Geometry& geometry) {
  for (const auto& [to, box] : destinations.holders) {
    routes_ += geometry.first[box + 1] - geometry.first[box];
    Weigh();
    for (size_t i = geometry.first[box]; i < geometry.first[box + 1]; ++i) {
      const Cut& cut = geometry.cuts[i];
      if (keeps_) out_.pieces.push_back({link, to, cut.set, cut.coord, cut.bytes});
      total_bytes_ += cut.bytes;
    }
    if (routes_ > kMaxPieces || total_bytes_ > kMaxPlanBytes)
      return Error(Code::kExhausted, "the plan has over ", routes_, " routes for over ", total_bytes_,
                   " bytes; at most ", kMaxPieces, " routes and ", kMaxPlanBytes,
                   " bytes fit: use fewer engines or larger shards");
  }
  return Status::Ok();
}

void Collector::Weigh() {
  if (!keeps_ || MemoryWanted() <= memory_) return;
  keeps_ = false;
  out_.pieces = {};
}

Status Collector::TooLarge() const {
  return Error(
      Code::kExhausted, "a plan from ", trainers_.ranks(), " ranks to ", inference_.ranks(), " has ", routes_,
      " routes for ", HumanBytes(static_cast<double>(total_bytes_)), "; making it takes about ",
      HumanBytes(static_cast<double>(MemoryWanted())), " of memory, and ",
      HumanBytes(static_cast<double>(memory_)),
      " are allowed (setting plan_memory; if 0, half of what is available); raise plan_memory, or use "
      "fewer engines or larger shards");
}

Status Collector::CollectLink(uint32_t link) {
  const Link& here = out_.links[link];
  const Key src_key = KeyOf(trainers_, here.src_tensor);
  const Key dst_key = KeyOf(inference_, here.dst_tensor);
  const auto sources = SourcesOf(here.src_tensor, src_key);
  const auto destinations = DestinationsOf(here.dst_tensor, dst_key);
  const Alike alike{sources.get(),
                    destinations.get(),
                    here.dim,
                    here.src_start,
                    here.dst_start,
                    here.extent,
                    inference_.tensor(here.dst_tensor).dtype};
  const bool keeps = !src_key.first.empty() && !dst_key.first.empty();
  if (const auto known = keeps ? geometries_.find(alike) : geometries_.end(); known != geometries_.end())
    return AddPieces(link, *destinations, *known->second);
  const size_t before = out_.coords.size();
  WC_ASSIGN_OR_RETURN(Geometry geometry,
                      Cutter(trainers_, inference_, here, *sources, out_).CutAll(*destinations));
  coords_ += out_.coords.size() - before;
  if (!keeps_) out_.coords.resize(before);
  WC_RETURN_IF_ERROR(AddPieces(link, *destinations, geometry));
  if (keeps) geometries_.emplace(alike, std::make_shared<const Geometry>(std::move(geometry)));
  return Status::Ok();
}

Result<PieceList> Collector::Run(std::vector<Link> links) {
  out_.links = std::move(links);
  for (const Link& link : out_.links) {
    out_.dims.push_back(static_cast<uint8_t>(trainers_.tensor(link.src_tensor).shape.size()));
    out_.element_bits.push_back(BitsOf(inference_.tensor(link.dst_tensor).dtype));
  }
  for (uint32_t link = 0; link < out_.links.size(); ++link) WC_RETURN_IF_ERROR(CollectLink(link));
  if (!keeps_) return TooLarge();
  return std::move(out_);
}

}  // namespace

Result<PieceList> CollectPieces(const Layout& trainers, const Layout& inference, std::vector<Link> links,
                                uint64_t memory) {
  return Collector(trainers, inference, memory).Run(std::move(links));
}

}  // namespace weightcast::plan
