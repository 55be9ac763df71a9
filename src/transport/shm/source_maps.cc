#include "transport/shm/source_maps.h"

#include <algorithm>

#include "base/advice.h"
#include "base/log.h"
#include "base/strings.h"

namespace weightcast::transport::shm {

/// A mapping that grows on wc-device. Only tasks there touch `import` and `failure`.
struct SourceMaps::Job {
  Key key;
  device::Device device;
  device::AllocationName name;
  size_t missing = 0;  ///< Handles.
  std::unique_ptr<device::Mappings::Import> import;
  Status failure;
};

const Source* SourceMaps::Find(const RegionId& region, const DeviceUuid& reader) const {
  const auto found = sources_.find(Key{region, reader});
  return found == sources_.end() || found->second.dropped ? nullptr : &found->second;
}

const Source* SourceMaps::FindOrAsk(const RegionId& region, const DeviceUuid& reader) {
  const auto [found, first] = sources_.try_emplace(Key{region, reader});
  // A failure of the socket is told by its hang-up.
  if (first) (void)channel_->Send(Encode(WantSource{.region = region, .reader = reader}));
  return found->second.dropped ? &gone_ : &found->second;
}

void SourceMaps::Report(const Key& key, bool reads) {
  (void)channel_->Send(Encode(SourceVerdict{.region = key.first, .reader = key.second, .reads = reads}));
}

Status SourceMaps::OnOffer(const SourceOffer& offer) {
  if (closed_) return Status::Ok();
  const Key key{offer.region, offer.reader};
  if (job_ != nullptr && (job_->key != key || offer.code == Code::kOk)) {
    return {Code::kProtocol, "it offered device memory before it sent the handles of its last offer"};
  }
  if (offer.code != Code::kOk) {
    if (job_ != nullptr) Abandon();
    if (offer.region.first == kTrialRegion) {
      sources_.erase(key);
      return Status::Ok();
    }
    Source& refused = sources_[key];
    refused.state = Source::State::kFailed;
    refused.failure = offer.code;
    return Status::Ok();
  }
  WC_RETURN_IF_ERROR(CheckOffer(offer));
  Source& source = sources_[key];
  if (source.device.worker != nullptr || sources_.size() > kMost) {
    return {Code::kProtocol, sources_.size() > kMost
                                 ? StrCat("it offered more than ", kMost, " pieces of device memory")
                                 : "it offered the same device memory twice"};
  }
  source.owner = offer.device;
  source.state = Source::State::kMapping;
  source.offset = offer.offset;
  source.length = offer.length;
  DeviceSide* const side = context_->devices();
  if (side != nullptr) source.device = side->Find(offer.reader);
  source.busy = source.device.worker != nullptr;
  Begin(offer, source.device);
  return Status::Ok();
}

/// Nothing is mapped over a way that was not tried: a way that lies gives no error.
Status SourceMaps::CheckOffer(const SourceOffer& offer) const {
  if (offer.own != (offer.process == device::ProcessName())) {
    return {Code::kProtocol, "it offered device memory of another process without handles"};
  }
  const auto way = ways_.find({offer.device, offer.reader});
  if (offer.region.first == kTrialRegion) {
    const bool fits = offer.length == device::TrialCell::kBytes && offer.device != offer.reader;
    if (fits && way == ways_.end() && ways_.size() < kMostWays) return Status::Ok();
    return {Code::kProtocol,
            "it asked for a second trial of a path between two GPUs, or for one of another size"};
  }
  if (offer.region.first >= kMaxRegions)
    return Error(Code::kProtocol, "it offered device memory of region ", offer.region.first,
                 ", but regions are numbered below ", kMaxRegions);
  if (offer.device == offer.reader || (way != ways_.end() && way->second)) return Status::Ok();
  return {Code::kProtocol, "it offered device memory before the path to it was tried"};
}

void SourceMaps::Begin(const SourceOffer& offer, device::Device device) {
  auto job = std::make_shared<Job>();
  job->key = {offer.region, offer.reader};
  job->device = std::move(device);
  job->name = {.process = offer.process,
               .identity = offer.identity,
               .device = offer.device,
               .exportable = offer.exportable,
               .address = reinterpret_cast<std::byte*>(offer.address),
               .lengths = LengthsOf(offer.blocks)};
  job->missing = offer.own ? 0 : job->name.lengths.size();
  job_ = std::move(job);
  if (job_->device.worker != nullptr && job_->missing > 0) {
    job_->device.worker->Run([job = job_] {
      auto begun = job->device.mappings->Begin(job->device.worker, job->name);
      job->failure = begun.status();
      if (begun.ok()) job->import = std::move(begun).value();
    });
  }
  if (job_->missing == 0) Finish();
}

Status SourceMaps::OnHandles(const SourceHandles& message, std::vector<UniqueFd> fds) {
  if (closed_) return Status::Ok();
  if (job_ == nullptr || message.count > job_->missing || message.exportable != job_->name.exportable) {
    return {Code::kProtocol, "it sent handles of device memory that it had not offered"};
  }
  const bool by_descriptor = message.exportable == device::Exportable::kDescriptors;
  if (by_descriptor ? fds.size() != message.count : !fds.empty()) {
    return {Code::kProtocol, "it sent handles of device memory without their descriptors"};
  }
  job_->missing -= message.count;
  auto handles = std::make_shared<std::vector<device::Handle>>();
  for (size_t i = 0; i < message.count; ++i) {
    if (by_descriptor) {
      handles->emplace_back(std::move(fds[i]));
    } else if (message.exportable == device::Exportable::kLegacy) {
      handles->emplace_back(device::LegacyHandle{message.handles[i]});
    } else {
      handles->emplace_back(device::FabricHandle{message.handles[i]});
    }
  }
  if (job_->device.worker != nullptr) {
    job_->device.worker->Run([job = job_, handles] {
      if (job->failure.ok()) job->failure = job->import->Add(std::move(*handles));
    });
  }
  if (job_->missing == 0) Finish();
  return Status::Ok();
}

/// The rest of the handles does not come. What is mapped of it goes on wc-device.
void SourceMaps::Abandon() {
  const std::shared_ptr<Job> job = std::move(job_);
  if (const auto found = sources_.find(job->key); found != sources_.end()) found->second.busy = false;
  if (job->device.worker == nullptr) return;
  ++jobs_;
  job->device.worker->Run(
      [job, reports = context_->devices()->reports(), alive = std::weak_ptr(alive_), this] {
        job->import.reset();
        reports->Leave([alive, this] {
          if (!alive.expired()) --jobs_;
        });
      });
}

/// All handles are with wc-device.
void SourceMaps::Finish() {
  const std::shared_ptr<Job> job = std::move(job_);
  if (job->device.worker == nullptr) {
    return OnFinished(
        job->key,
        Status(Code::kUnavailable,
               "this process uses no device that could read that memory; nothing needs to be done"));
  }
  ++jobs_;
  const bool own = job->name.process == device::ProcessName();
  job->device.worker->Run([job, own, reports = context_->devices()->reports(), alive = std::weak_ptr(alive_),
                           this] {
    using Shared = std::shared_ptr<const device::Mapping>;
    auto outcome = std::make_shared<Result<Shared>>(Shared());
    if (!job->failure.ok()) {
      *outcome = job->failure;
    } else {
      *outcome = own ? job->device.mappings->MapOwn(job->device.worker, job->name) : job->import->Finish();
    }
    job->import.reset();
    reports->Leave([alive, this, key = job->key, outcome] {
      if (alive.expired()) return;
      --jobs_;
      OnFinished(key, std::move(*outcome));
    });
  });
}

void SourceMaps::OnFinished(const Key& key, Result<std::shared_ptr<const device::Mapping>> mapping) {
  const auto found = sources_.find(key);
  if (found == sources_.end()) return;
  Source& source = found->second;
  source.busy = false;
  if (!mapping.ok() || (*mapping)->length < source.offset + source.length) {
    source.state = Source::State::kFailed;
    WC_LOG(kWarning, "this process cannot map memory of device ", device::UuidText(source.owner),
           " of the peer (", channel_->PeerName(),
           "), so it is staged through host memory, which is slower: ",
           WithSameRelease(mapping.ok() ? Error(Code::kProtocol, "only ", (*mapping)->length,
                                                " bytes are mapped, and the peer announced ",
                                                source.offset + source.length)
                                        : mapping.status())
               .message());
  } else {
    source.mapping = std::move(mapping).value();
    source.state = Source::State::kReady;
  }
  const bool ready = source.state == Source::State::kReady;
  if (key.first.first == kTrialRegion) return ready ? Try(key, source) : EndTrial(key, source, false);
  if (!source.dropped) Report(key, ready);
}

void SourceMaps::Try(const Key& key, Source& cell) {
  DeviceSide& side = *context_->devices();
  cell.busy = true;
  ++jobs_;
  side.TrialsOf(cell.device)
      .Try(cell.mapping, key.first.second,
           [reports = side.reports(), alive = std::weak_ptr(alive_), this, key](const Status& outcome) {
             reports->Leave([alive, this, key, outcome] {
               if (alive.expired()) return;
               --jobs_;
               OnTried(key, outcome);
             });
           });
}

void SourceMaps::OnTried(const Key& key, const Status& outcome) {
  const auto found = sources_.find(key);
  if (found == sources_.end()) return;
  Source& cell = found->second;
  cell.busy = false;
  if (!outcome.ok()) {
    WC_LOG(kWarning, "device ", device::UuidText(key.second), " cannot use the memory of device ",
           device::UuidText(cell.owner), " of the peer (", channel_->PeerName(),
           "), which it can map: ", outcome.message(),
           ". Their bytes are staged through host memory. Check the IOMMU (it must be off, or in "
           "pass-through mode), ACS of the PCIe switches and the partitions of the NVSwitch");
  }
  EndTrial(key, cell, outcome.ok());
}

void SourceMaps::EndTrial(const Key& key, Source& cell, bool works) {
  ways_[{cell.owner, key.second}] = works;
  cell.dropped = true;
  if (!closed_) verdicts_.emplace_back(key, works);
}

Status SourceMaps::OnDrop(const Drop& drop) {
  if (closed_) return Status::Ok();
  for (auto& [key, source] : sources_) {
    if (key.first == drop.region) source.dropped = true;
  }
  drops_.push_back(drop.region);
  return Status::Ok();
}

void SourceMaps::Close() {
  closed_ = true;
  verdicts_.clear();
  if (job_ != nullptr) Abandon();
  for (auto& [key, source] : sources_) source.dropped = true;
}

bool SourceMaps::Step() {
  if (drops_.empty() && verdicts_.empty() && (!closed_ || sources_.empty())) return false;
  bool any = false;
  for (auto at = sources_.begin(); at != sources_.end();) {
    const bool gone = at->second.dropped && Unmap(at->first, at->second);
    any |= gone;
    at = gone ? sources_.erase(at) : std::next(at);
  }
  std::erase_if(verdicts_, [this](const auto& verdict) {
    if (sources_.contains(verdict.first)) return false;
    Report(verdict.first, verdict.second);
    return true;
  });
  return std::erase_if(drops_,
                       [this](const RegionId& region) {
                         const auto of_region = [&](const auto& source) {
                           return source.first.first == region;
                         };
                         if (std::ranges::any_of(sources_, of_region)) return false;
                         (void)channel_->Send(Encode(Dropped{.region = region}));
                         return true;
                       }) > 0 ||
         any;
}

/// A step on the way out. True: there is nothing of it any more.
bool SourceMaps::Unmap(const Key& key, Source& source) {
  if (source.busy || source.unmapping) return false;
  if (source.mapping == nullptr) return true;
  if (!source.fence) source.fence = engines_->Fence();
  if (!engines_->Over(*source.fence)) return false;
  source.mapping.reset();
  source.unmapping = true;
  ++jobs_;
  // What is left with the worker now runs when it is unmapped.
  source.device.worker->RunAfterCopies(
      [reports = context_->devices()->reports(), alive = std::weak_ptr(alive_), this, key] {
        reports->Leave([alive, this, key] {
          if (alive.expired()) return;
          --jobs_;
          if (const auto found = sources_.find(key); found != sources_.end()) found->second.unmapping = false;
        });
      });
  return false;
}

}  // namespace weightcast::transport::shm
