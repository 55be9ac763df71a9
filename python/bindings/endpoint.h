#pragma once

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "host.h"

// What Python holds of an endpoint. Everything here belongs to the holder of the GIL.
namespace weightcast::bindings {

/// Some bytes of a registered region.
struct LocalSlice {
  std::shared_ptr<Host> host;
  std::shared_ptr<Registered> registered;
  uint64_t offset = 0;
  uint64_t length = 0;
};
/// The whole of one, as register() returns it: it alone can be closed.
struct LocalRegion : LocalSlice {};

/// One connection, and what was imported on it.
struct Link {
  std::shared_ptr<Host> host;
  Connection connection;
};
/// A peer's region, until the last slice of it goes.
class Imported {
 public:
  Imported(std::shared_ptr<Link> link, const weightcast::RemoteRegion& region)
      : link_(std::move(link)), region_(region) {}
  Imported(const Imported&) = delete;
  Imported& operator=(const Imported&) = delete;
  ~Imported() {
    if (!link_->host->keeper()->forked()) link_->connection.Release(region_);
  }
  [[nodiscard]] const Link& link() const { return *link_; }
  [[nodiscard]] const weightcast::RemoteRegion& region() const { return region_; }

 private:
  const std::shared_ptr<Link> link_;
  const weightcast::RemoteRegion region_;
};
struct RemoteSlice {
  std::shared_ptr<Imported> imported;
  uint64_t offset = 0;
  uint64_t length = 0;
};
struct RemoteRegion : RemoteSlice {};

/// A transfer and the memory that it uses.
class Flight {
 public:
  Flight(std::shared_ptr<Host> host, Transfer transfer, Registrations registrations)
      : host_(std::move(host)), transfer_(std::move(transfer)), registrations_(std::move(registrations)) {}
  Flight(Flight&&) noexcept = default;
  Flight& operator=(Flight&&) = delete;
  /// The transfer goes on without its handle; its memory is kept until it is fenced.
  ~Flight() {
    if (host_ == nullptr || host_->keeper()->forked() || transfer_.fenced()) return;
    host_->keeper()->Keep(std::move(transfer_), std::move(registrations_));
  }
  Transfer& transfer() { return transfer_; }
  [[nodiscard]] const Host& host() const { return *host_; }

 private:
  std::shared_ptr<Host> host_;
  Transfer transfer_;
  Registrations registrations_;
};

// What the classes of Python wrap: plain values, so that no deleter ever needs the GIL on another thread.
struct HeldCompletions {
  std::shared_ptr<Completions> queue;
};
struct HeldLink {
  std::shared_ptr<Link> link;
};
struct HeldHost {
  std::shared_ptr<Host> host;
};

/// `list[a:b]` of bytes: whole, step 1, not beyond the ends. Returns (offset, length).
std::pair<uint64_t, uint64_t> RangeOf(const nb::slice& slice, uint64_t length);

void BindRegions(nb::module_& module);
void BindConnection(nb::module_& module);
void BindEndpoint(nb::module_& module);

}  // namespace weightcast::bindings
