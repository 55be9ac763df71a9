#include <endian.h>

#include <algorithm>
#include <cstdio>
#include <cstring>

#include "base/strings.h"
#include "fake_ibverbs/host.h"

namespace weightcast::fake {
namespace {

constexpr int kGidTable = 16;

ibv_gid LinkLocal(uint64_t guid, uint64_t prefix = 0xfe80ULL << 48) {
  ibv_gid gid{};
  gid.global.subnet_prefix = htobe64(prefix);
  gid.global.interface_id = htobe64(guid);
  return gid;
}

ibv_gid Mapped(const std::array<unsigned, 4>& ipv4) {
  ibv_gid gid{};
  gid.raw[10] = gid.raw[11] = 0xff;
  for (size_t i = 0; i < 4; ++i) gid.raw[12 + i] = static_cast<uint8_t>(ipv4[i]);
  return gid;
}

std::array<unsigned, 4> AddressOf(const PortConfig& config, unsigned device, unsigned host) {
  std::array<unsigned, 4> out = {10, static_cast<unsigned>(config.rail), device, host + 1};
  if (!config.ipv4.empty() &&
      std::sscanf(config.ipv4.c_str(), "%u.%u.%u.%u", &out[0], &out[1], &out[2], &out[3]) != 4) {
    std::fprintf(stderr, "fake_ibverbs: %s is no IPv4 address\n", config.ipv4.c_str());
    std::abort();
  }
  return out;
}

void Add(Port& port, uint32_t number, const ibv_gid& gid, ibv_gid_type type) {
  const auto index = static_cast<uint32_t>(port.gids.size());
  const uint32_t ifindex = port.config.infiniband ? 0 : port.config.ifindex;
  port.gids.push_back({gid, index, number, static_cast<uint32_t>(type), ifindex});
}

}  // namespace

Port MakePort(const PortConfig& config, uint32_t number, const Device& device, unsigned device_index) {
  Port port{.config = config, .link = Link::kUp, .lid = 0, .gids = {}};
  const auto host = static_cast<unsigned>(device.host->number);
  const uint64_t guid = device.guid + number;
  if (config.infiniband) {
    const auto own = static_cast<uint16_t>(1 + host * 64 + device_index * 4 + number);
    port.lid = config.lid != 0 ? config.lid : own;
    Add(port, number, LinkLocal(guid, config.subnet_prefix), IBV_GID_TYPE_IB);
    return port;
  }
  for (const ibv_gid& gid : {LinkLocal(guid), Mapped(AddressOf(config, device_index, host))}) {
    if (config.roce_v1) Add(port, number, gid, IBV_GID_TYPE_ROCE_V1);
    Add(port, number, gid, IBV_GID_TYPE_ROCE_V2);
  }
  return port;
}

namespace {

std::unique_ptr<Device> MakeDevice(Host& host, const DeviceConfig& config, unsigned index) {
  auto device = std::make_unique<Device>();
  device->host = &host;
  device->config = config;
  device->guid = 0x0202c9fffe000000ULL + static_cast<uint64_t>(host.number) * 0x10000 + index * 0x100U;
  device->node_type = IBV_NODE_CA;
  device->transport_type = IBV_TRANSPORT_IB;
  const std::string path =
      config.ibdev_path.empty() ? StrCat("/sys/class/infiniband/", config.name) : config.ibdev_path;
  std::snprintf(device->name, sizeof device->name, "%s", config.name.c_str());
  std::snprintf(device->dev_name, sizeof device->dev_name, "uverbs%u", index);
  std::snprintf(device->ibdev_path, sizeof device->ibdev_path, "%s", path.c_str());
  for (const PortConfig& port : config.ports) {
    const auto number = static_cast<uint32_t>(device->ports.size() + 1);
    device->ports.push_back(MakePort(port, number, *device, index));
  }
  return device;
}

uint32_t& OwedBy(const ibv_async_event& event, uint32_t& nobody) {
  switch (event.event_type) {
    case IBV_EVENT_CQ_ERR:
      return static_cast<Cq*>(event.element.cq)->unacked_async;
    case IBV_EVENT_SRQ_ERR:
    case IBV_EVENT_SRQ_LIMIT_REACHED:
      return static_cast<Srq*>(event.element.srq)->unacked_async;
    default:
      return IsQpEvent(event.event_type) ? static_cast<Qp*>(event.element.qp)->unacked_async : nobody;
  }
}

}  // namespace

FakeIbverbs::FakeIbverbs(std::shared_ptr<Core> core, const HostConfig& config) : core_(std::move(core)) {
  host_.number = core_->hosts_made++;
  host_.fork_status = config.fork_status;
  for (const DeviceConfig& device : config.devices) {
    host_.devices.push_back(MakeDevice(host_, device, static_cast<unsigned>(host_.devices.size())));
  }
  core_->hosts.push_back(&host_);
}

// Like the end of a process: what is left goes without a word.
FakeIbverbs::~FakeIbverbs() {
  const std::lock_guard lock(core_->mutex);
  std::erase(core_->hosts, &host_);
  for (const auto& device : host_.devices) {
    for (auto& [id, qp] : device->qps) core_->Forget(*qp);
    for (auto& [id, mr] : device->mrs) core_->Forget(*mr);
    for (auto& [id, cq] : device->cqs) core_->Disarm(*cq);
  }
}

void FakeIbverbs::Wait(Call call) {
  std::function<void()> wait;
  {
    const std::lock_guard lock(core_->mutex);
    wait = host_.before[static_cast<size_t>(call)];
  }
  if (wait) wait();
}

int FakeIbverbs::Planned(Call call) {
  Host::Failure& failure = host_.failures[static_cast<size_t>(call)];
  if (failure.times == 0 || (failure.countdown > 0 && --failure.countdown > 0)) return 0;
  --failure.times;
  return failure.error;
}

int FakeIbverbs::Refused(Call call) {
  const int error = Planned(call);
  return error == 0 && host_.dead ? EIO : error;
}

int FakeIbverbs::Refused(Call call, const Device& device) {
  const int error = Refused(call);
  return error == 0 && device.removed ? EIO : error;
}

void FakeIbverbs::AwaitAcks(std::unique_lock<std::mutex>& lock, const uint32_t& owed, const char* kind) {
  if (core_->acked.wait_for(lock, std::chrono::seconds(10), [&] { return owed == 0; })) return;
  std::fprintf(stderr, "fake_ibverbs: a %s is destroyed, and %u of its events were never acknowledged\n",
               kind, owed);
  std::abort();
}

ibv_fork_status FakeIbverbs::ForkStatus() {
  const std::lock_guard lock(core_->mutex);
  return host_.fork_status;
}

int FakeIbverbs::ForkInit() {
  const std::lock_guard lock(core_->mutex);
  if (const int error = Planned(Call::kForkInit); error != 0) return error;
  if (host_.fork_status == IBV_FORK_DISABLED) host_.fork_status = IBV_FORK_ENABLED;
  return 0;
}

ibv_device** FakeIbverbs::GetDeviceList(int* count) {
  const std::lock_guard lock(core_->mutex);
  if (const int error = Refused(Call::kGetDeviceList); error != 0) return Errno(error);
  auto** list = new ibv_device*[host_.devices.size() + 1];
  std::transform(host_.devices.begin(), host_.devices.end(), list,
                 [](const auto& device) { return device.get(); });
  list[host_.devices.size()] = nullptr;
  if (count != nullptr) *count = static_cast<int>(host_.devices.size());
  return list;
}

void FakeIbverbs::FreeDeviceList(ibv_device** list) { delete[] list; }

ibv_context* FakeIbverbs::OpenDevice(ibv_device* device) {
  const std::lock_guard lock(core_->mutex);
  if (const int error = Refused(Call::kOpenDevice); error != 0) return Errno(error);
  Device& owner = *static_cast<Device*>(device);
  auto context = std::make_unique<Context>();
  context->device = device;
  context->owner = &owner;
  context->cmd_fd = -1;
  context->async_fd = context->events.fd();
  context->num_comp_vectors = owner.config.completion_vectors;
  return owner.contexts.Add(std::move(context), core_->NextId());
}

int FakeIbverbs::CloseDevice(ibv_context* context) {
  const std::lock_guard lock(core_->mutex);
  Context& mine = *static_cast<Context*>(context);
  if (mine.users > 0) return EBUSY;
  mine.owner->contexts.Remove(&mine, "context");
  return 0;
}

int FakeIbverbs::QueryDevice(ibv_context* context, ibv_device_attr* attr) {
  const std::lock_guard lock(core_->mutex);
  const Device& device = DeviceOf(context);
  if (const int error = Refused(Call::kQueryDevice, device); error != 0) return error;
  const DeviceConfig& config = device.config;
  *attr = {};
  std::snprintf(attr->fw_ver, sizeof attr->fw_ver, "fake");
  attr->node_guid = attr->sys_image_guid = htobe64(device.guid);
  attr->max_mr_size = config.max_mr_size;
  attr->page_size_cap = 0xfffff000;
  attr->max_qp = config.max_qp;
  attr->max_qp_wr = config.max_qp_wr;
  attr->device_cap_flags = IBV_DEVICE_RC_RNR_NAK_GEN | IBV_DEVICE_PORT_ACTIVE_EVENT;
  attr->max_sge = attr->max_sge_rd = attr->max_srq_sge = config.max_sge;
  attr->max_cq = config.max_cq;
  attr->max_cqe = config.max_cqe;
  attr->max_mr = config.max_mr;
  attr->max_pd = config.max_pd;
  attr->max_qp_rd_atom = attr->max_qp_init_rd_atom = config.max_rd_atom;
  attr->max_res_rd_atom = config.max_rd_atom * config.max_qp;
  attr->max_srq = config.max_srq;
  attr->max_srq_wr = config.max_srq_wr;
  attr->max_pkeys = 1;
  attr->local_ca_ack_delay = 15;
  attr->phys_port_cnt = static_cast<uint8_t>(device.ports.size());
  return 0;
}

int FakeIbverbs::QueryPort(ibv_context* context, uint8_t port, ibv_port_attr* attr) {
  const std::lock_guard lock(core_->mutex);
  const Device& device = DeviceOf(context);
  if (const int error = Refused(Call::kQueryPort, device); error != 0) return error;
  if (port == 0 || port > device.ports.size()) return EINVAL;
  const Port& mine = device.ports[port - 1U];
  const bool down = mine.link == Link::kDown;
  *attr = {};
  attr->state = down ? IBV_PORT_DOWN : IBV_PORT_ACTIVE;
  attr->max_mtu = IBV_MTU_4096;
  attr->active_mtu = mine.config.mtu;
  attr->gid_tbl_len = kGidTable;
  attr->max_msg_sz = device.config.max_msg_sz;
  attr->pkey_tbl_len = static_cast<uint16_t>(mine.config.pkeys.size());
  if (mine.config.infiniband && mine.config.grh_required) attr->flags = IBV_QPF_GRH_REQUIRED;
  attr->lid = mine.lid;
  attr->sm_lid = mine.config.infiniband ? 1 : 0;
  attr->active_width = mine.config.active_width;
  attr->active_speed = mine.config.active_speed;
  attr->phys_state = down ? 3 : 5;
  attr->link_layer = mine.config.infiniband ? IBV_LINK_LAYER_INFINIBAND : IBV_LINK_LAYER_ETHERNET;
  return 0;
}

int FakeIbverbs::QueryGid(ibv_context* context, uint8_t port, uint32_t index, ibv_gid_entry* entry) {
  const std::lock_guard lock(core_->mutex);
  if (const int error = Refused(Call::kQueryGid); error != 0) return error;
  const Device& device = DeviceOf(context);
  if (port == 0 || port > device.ports.size() || index >= kGidTable) return EINVAL;
  const Port& mine = device.ports[port - 1U];
  if (index >= mine.gids.size()) return ENODATA;
  *entry = mine.gids[index];
  return 0;
}

int FakeIbverbs::QueryPkey(ibv_context* context, uint8_t port, int index, __be16* key) {
  const std::lock_guard lock(core_->mutex);
  const Device& device = DeviceOf(context);
  if (port == 0 || port > device.ports.size()) return -1;
  const std::vector<uint16_t>& keys = device.ports[port - 1U].config.pkeys;
  if (index < 0 || static_cast<size_t>(index) >= keys.size()) return -1;
  *key = htobe16(keys[static_cast<size_t>(index)]);
  return 0;
}

int FakeIbverbs::GetAsyncEvent(ibv_context* context, ibv_async_event* event) {
  return GetEvent(core_->mutex, static_cast<Context*>(context)->events, event,
                  [](const ibv_async_event& got) {
                    uint32_t nobody = 0;
                    ++OwedBy(got, nobody);
                  });
}

void FakeIbverbs::AckAsyncEvent(ibv_async_event* event) {
  const std::lock_guard lock(core_->mutex);
  uint32_t nobody = 1;
  --OwedBy(*event, nobody);
  core_->acked.notify_all();
}

}  // namespace weightcast::fake
