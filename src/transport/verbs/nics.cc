// Which of the machine's RDMA ports are used.
#include <atomic>
#include <functional>
#include <memory>

#include "base/log.h"
#include "base/strings.h"
#include "topology/nic_wish.h"
#include "transport/verbs/nic.h"

namespace weightcast::transport::verbs {
namespace {

int PortsOf(Ibverbs& api, ibv_device* device) {
  ibv_context* const context = api.OpenDevice(device);
  if (context == nullptr) return 1;  // Opening it again says why not.
  ibv_device_attr attr{};
  const int error = api.QueryDevice(context, &attr);
  api.CloseDevice(context);
  return error == 0 ? attr.phys_port_cnt : 1;
}

/// Before Linux 5.12 a page that is pinned becomes another one for the parent when it writes after a fork.
void MakeForkSafe(Ibverbs& api) {
  if (api.ForkStatus() == IBV_FORK_UNNEEDED) return;
  const int error = api.ForkInit();
  static std::atomic<bool> told = false;
  if (error == 0 || told.exchange(true)) return;
  WC_LOG(kWarning,
         "verbs: on this kernel a process that forks (a DataLoader's workers, for instance) corrupts ",
         "memory that RDMA devices write to, and libibverbs cannot prevent it now: ", ErrnoText(error),
         "; set RDMAV_FORK_SAFE=1 in its environment, or start such workers by spawn, or use Linux 5.12");
}

}  // namespace

Result<std::vector<std::unique_ptr<Nic>>> OpenNics(const std::shared_ptr<Ibverbs>& api,
                                                   const Settings& settings) {
  MakeForkSafe(*api);
  const topology::NicWish wish(settings.nics);
  int count = 0;
  ibv_device** const list = api->GetDeviceList(&count);
  const std::unique_ptr<ibv_device*, std::function<void(ibv_device**)>> owned(
      list, [&api](ibv_device** l) { api->FreeDeviceList(l); });
  std::vector<std::unique_ptr<Nic>> nics;
  std::string refused;
  std::string seen;
  for (int i = 0; i < (list == nullptr ? 0 : count); ++i) {
    seen += StrCat(seen.empty() ? "" : ", ", list[i]->name);
    const int ports = PortsOf(*api, list[i]);
    for (int port = 1; port <= ports && nics.size() < kMaxNics; ++port) {
      if (!wish.Allows(list[i]->name, port)) continue;
      auto nic =
          Nic::Open(api, list[i], static_cast<uint8_t>(port), static_cast<uint8_t>(nics.size()), settings);
      if (nic.ok()) {
        nics.push_back(std::move(*nic));
      } else {
        refused += StrCat("; ", nic.status().message());
      }
    }
  }
  if (!nics.empty()) return nics;
  if (seen.empty())
    return Status(
        Code::kUnavailable,
        "this host has no RDMA device that libibverbs knows; install the driver of its NIC and rdma-core "
        "until ibv_devices lists it, or allow other transports in setting transport");
  if (refused.empty() && !wish.everything())
    return Error(Code::kUnavailable, "the setting nics, ", settings.nics,
                 ", must be corrected: it leaves none of ", seen);
  return Error(Code::kUnavailable, "none of the RDMA devices ", seen,
               wish.everything() ? "" : " that setting nics allows", " can be used", refused);
}

}  // namespace weightcast::transport::verbs
