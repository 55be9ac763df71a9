#include "device/mapping.h"

#include <numeric>
#include <span>

#include "base/advice.h"
#include "base/strings.h"
#include "device/mapped_range.h"

namespace weightcast::device {
namespace {

/// More than any device has; a peer that names more is wrong.
constexpr uint64_t kMostBytes = uint64_t{1} << 44;

size_t Total(const AllocationName& name) {
  return std::accumulate(name.lengths.begin(), name.lengths.end(), size_t{0});
}

Status CheckName(const AllocationName& name) {
  if (name.exportable == Exportable::kNo)
    return {Code::kUnavailable,
            "the peer cannot export its device memory; allocate it there with cudaMalloc or weightcast"};
  uint64_t total = 0;
  for (const uint64_t length : name.lengths) {
    if (length == 0 || length > kMostBytes - total)
      return Error(Code::kProtocol, "the peer described an allocation with a block of ", length,
                   " bytes after ", total, "; its blocks must have 1 to ", kMostBytes, " bytes together");
    total += length;
  }
  if (name.lengths.empty() || (name.exportable == Exportable::kLegacy && name.lengths.size() > 1))
    return Error(Code::kProtocol, "the peer described an allocation of ", name.lengths.size(),
                 " blocks; it must have ", name.exportable == Exportable::kLegacy ? "1" : "at least 1");
  return Status::Ok();
}

}  // namespace

Mappings::Mappings(std::shared_ptr<const Gpus> gpus, std::shared_ptr<Health> health)
    : gpus_(std::move(gpus)), health_(std::move(health)) {}

Mappings::~Mappings() = default;

std::shared_ptr<const Mapping> Mappings::HandleOf(const std::shared_ptr<Worker>& worker, const Key& key,
                                                  Record& record) {
  if (auto live = record.handle.lock(); live != nullptr) return live;
  auto let_go = [worker, self = shared_from_this(), key](const Mapping* mapping) {
    delete mapping;
    worker->RunAfterCopies([self, key] { self->Release(key); });
  };
  const std::shared_ptr<const Mapping> handle(
      new Mapping{.address = record.range->address(), .length = record.range->length()}, std::move(let_go));
  record.handle = handle;
  return handle;
}

/// Somebody may have asked for it again since its last handle went.
void Mappings::Release(const Key& key) {
  const auto found = records_.find(key);
  if (found != records_.end() && found->second.handle.expired()) records_.erase(found);
}

std::shared_ptr<const Mapping> Mappings::Find(const std::shared_ptr<Worker>& worker,
                                              const AllocationName& name) {
  const Key key{name.process, name.identity};
  const auto found = records_.find(key);
  return found == records_.end() ? nullptr : HandleOf(worker, key, found->second);
}

Result<std::shared_ptr<const Mapping>> Mappings::MapOwn(const std::shared_ptr<Worker>& worker,
                                                        const AllocationName& name) {
  if (auto found = Find(worker, name); found != nullptr) return found;
  WC_RETURN_IF_ERROR(Reach(name));
  Record record{.range = std::make_unique<Range>(health_), .handle = {}};
  record.range->Own(name.address, Total(name));
  const Key key{name.process, name.identity};
  return HandleOf(worker, key, records_.emplace(key, std::move(record)).first->second);
}

/// Lets this device use memory that another device of this process holds.
Status Mappings::Reach(const AllocationName& name) {
  const auto ordinal = gpus_->OrdinalOf(name.device);
  if (name.process != ProcessName() || !ordinal)
    return {Code::kInvalidArgument,
            "the peer's memory is of a device that this process does not see; check CUDA_VISIBLE_DEVICES of "
            "this process"};
  WC_ASSIGN_OR_RETURN(const auto owner, gpus_->Retain(*ordinal));
  WC_ASSIGN_OR_RETURN(const uint64_t identity, IdentityOf(*owner, {name.address, Total(name)}));
  if (identity != name.identity)
    return {Code::kInvalidArgument,
            "the device memory was freed since it was registered; keep it until its region is closed"};
  if (owner->ordinal() == health_->context().ordinal()) return Status::Ok();
  drivers::Cuda& cuda = health_->context().cuda();
  if (name.exportable == Exportable::kLegacy) {
    const auto result = cuda.CtxEnablePeerAccess(owner->raw(), 0);
    if (result == drivers::CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED) return Status::Ok();
    return health_->Check(result, "cuCtxEnablePeerAccess");
  }
  Range range(health_);
  range.Own(name.address, Total(name));
  return range.GiveAccess();
}

Result<std::unique_ptr<Mappings::Import>> Mappings::Begin(const std::shared_ptr<Worker>& worker,
                                                          const AllocationName& name) {
  WC_RETURN_IF_ERROR(CheckName(name));
  auto import = std::make_unique<Import>(shared_from_this(), worker, name);
  if (name.exportable != Exportable::kLegacy) WC_RETURN_IF_ERROR(import->range_->Reserve(Total(name)));
  return import;
}

Mappings::Import::Import(std::shared_ptr<Mappings> mappings, std::shared_ptr<Worker> worker,
                         AllocationName name)
    : mappings_(std::move(mappings)),
      worker_(std::move(worker)),
      name_(std::move(name)),
      range_(std::make_unique<Range>(mappings_->health_)) {}

Mappings::Import::~Import() = default;

size_t Mappings::Import::missing() const { return name_.lengths.size() - range_->blocks(); }

Status Mappings::Import::Add(std::vector<Handle> handles) {
  if (handles.size() > missing())
    return Error(Code::kProtocol, "the peer sent ", handles.size(), " handles for ", missing(), " blocks");
  for (const Handle& handle : handles) {
    const uint64_t length = name_.lengths[range_->blocks()];
    if (name_.exportable != Exportable::kLegacy) {
      WC_RETURN_IF_ERROR(range_->MapBlock(handle, length));
      continue;
    }
    const auto* const legacy = std::get_if<LegacyHandle>(&handle);
    if (legacy == nullptr)
      return Error(Code::kInternal, "memory of cuMemAlloc came with a handle of kind ", handle.index(),
                   kReportBug);
    WC_RETURN_IF_ERROR(range_->OpenLegacy(*legacy, length));
  }
  return Status::Ok();
}

Result<std::shared_ptr<const Mapping>> Mappings::Import::Finish() {
  if (missing() > 0) return Error(Code::kProtocol, "the peer sent no handle for ", missing(), " blocks");
  if (auto found = mappings_->Find(worker_, name_); found != nullptr) return found;
  if (name_.exportable != Exportable::kLegacy) WC_RETURN_IF_ERROR(range_->GiveAccess());
  const Key key{name_.process, name_.identity};
  auto& record = mappings_->records_[key];
  record.range = std::move(range_);
  return mappings_->HandleOf(worker_, key, record);
}

}  // namespace weightcast::device
