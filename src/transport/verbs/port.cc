#include "transport/verbs/port.h"

#include <algorithm>

#include "base/log.h"
#include "base/strings.h"
#include "topology/gid.h"
#include "topology/pkey.h"

namespace weightcast::transport::verbs {
namespace {

/// Reads of one peer that are served at once, where the device can more.
constexpr int kReads = 16;

}  // namespace

Port::Port(const RdmaDevice& device, uint8_t number, const Settings& settings)
    : device_(device), number_(number), gid_setting_(settings.gid_index), pkey_setting_(settings.pkey) {}

void Port::Read() { why_down_ = ReadAddress(); }

void Port::OnChanged() {
  const bool was_up = up();
  Read();
  lost_peers_.Clear();
  if (was_up && !up()) WC_LOG(kWarning, "verbs: ", why_down_.message(), "; going on without it");
  if (!was_up && up()) WC_LOG(kInfo, "verbs: ", device_.name(), " is up again");
}

Status Port::ReadAddress() {
  Ibverbs& api = device_.api();
  ibv_port_attr attr{};
  if (const int error = api.QueryPort(device_.context(), number_, &attr); error != 0)
    return device_.Failed(StrCat("cannot query port ", static_cast<int>(number_)), error);
  if (attr.state != IBV_PORT_ACTIVE) {
    return Error(Code::kUnavailable, device_.name(), ": port ", static_cast<int>(number_),
                 " is not up; check cable and switch");
  }
  Address found;
  found.infiniband = attr.link_layer != IBV_LINK_LAYER_ETHERNET;
  found.mtu = static_cast<uint8_t>(attr.active_mtu);
  found.lid = attr.lid;
  found.grh = found.infiniband && (attr.flags & IBV_QPF_GRH_REQUIRED) != 0;
  found.reads = static_cast<uint8_t>(std::clamp(device_.limits().max_qp_rd_atom, 1, kReads));
  const auto gid = topology::ChooseGid(api, device_.context(), number_, attr, gid_setting_);
  if (!gid.ok()) return Error(gid.status().code(), device_.name(), ": ", gid.status().message());
  found.gid = gid->gid;
  found.subnet_bits = gid->subnet_bits;
  const auto pkey = topology::ChoosePkey(api, device_.context(), number_, attr, pkey_setting_);
  if (!pkey.ok()) return Error(pkey.status().code(), device_.name(), ": ", pkey.status().message());
  found.pkey = pkey->key;
  gid_index_ = gid->index;
  pkey_index_ = pkey->index;
  address_ = found;
  return Status::Ok();
}

}  // namespace weightcast::transport::verbs
