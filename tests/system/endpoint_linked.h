#pragma once

#include "system/endpoint_peer.h"

namespace weightcast::system_test {

/// The test's end of a connection to a peer process, with memory on both sides.
class Linked {
 public:
  Linked(const PeerSetup& setup, size_t size, const std::string& access = "readwrite")
      : Linked(setup, setup, size, access) {}
  Linked(const PeerSetup& ours, const PeerSetup& theirs, size_t size, const std::string& access = "readwrite")
      : peer(theirs, size), area(size, ours.shared) {
    endpoint = *Endpoint::Create(OptionsOf(ours, "test"));
    peer.Open();
    auto connected = endpoint->Connect(peer.addresses(), peer.identity(), Soon());
    EXPECT_TRUE(connected.ok()) << connected.status().ToString();
    connection.emplace(std::move(connected).value());
    peer.Do("accepted");
    region.emplace(std::move(endpoint->Register(area.bytes, Access::kReadWrite)).value());
    auto made = connection->Import(peer.Region(access));
    EXPECT_TRUE(made.ok()) << made.status().ToString();
    imported = *made;
  }
  [[nodiscard]] Piece At(uint64_t offset, uint64_t length) const {
    return {region->Slice(offset, length).value(), imported.Slice(offset, length).value()};
  }
  [[nodiscard]] uint64_t Hash() const { return Hash64(area.bytes); }

  Peer peer;
  Area area;
  std::unique_ptr<Endpoint> endpoint;
  std::optional<Connection> connection;
  std::optional<Region> region;
  RemoteRegion imported;
};

}  // namespace weightcast::system_test
