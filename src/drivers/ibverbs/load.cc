#include "drivers/ibverbs/load.h"

#include <dlfcn.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <string_view>

#include "base/strings.h"
#include "drivers/ibverbs/ibverbs.h"

namespace weightcast::drivers {
namespace {

constexpr const char* kSoname = "libibverbs.so.1";
constexpr std::string_view kPackages =
    "install libibverbs1 and ibverbs-providers (Debian, Ubuntu) or rdma-core (elsewhere)";

/// What we take out of the library. The types come from its header, whose inline functions must not be
/// called: they would want the library at link time.
struct Symbols {
  decltype(&::ibv_is_fork_initialized) is_fork_initialized = nullptr;  // rdma-core 35; null before.
  decltype(&::ibv_fork_init) fork_init = nullptr;
  decltype(&::ibv_get_device_list) get_device_list = nullptr;
  decltype(&::ibv_free_device_list) free_device_list = nullptr;
  decltype(&::ibv_open_device) open_device = nullptr;
  decltype(&::ibv_close_device) close_device = nullptr;
  decltype(&::ibv_query_device) query_device = nullptr;
  decltype(&::ibv_query_port) query_port = nullptr;
  decltype(&::_ibv_query_gid_ex) query_gid_ex = nullptr;
  decltype(&::ibv_query_pkey) query_pkey = nullptr;
  decltype(&::ibv_get_async_event) get_async_event = nullptr;
  decltype(&::ibv_ack_async_event) ack_async_event = nullptr;
  decltype(&::ibv_alloc_pd) alloc_pd = nullptr;
  decltype(&::ibv_dealloc_pd) dealloc_pd = nullptr;
  decltype(&::ibv_reg_mr) reg_mr = nullptr;
  decltype(&::ibv_reg_mr_iova2) reg_mr_iova2 = nullptr;
  decltype(&::ibv_reg_dmabuf_mr) reg_dmabuf_mr = nullptr;  // rdma-core 34; null before.
  decltype(&::ibv_dereg_mr) dereg_mr = nullptr;
  decltype(&::ibv_create_comp_channel) create_comp_channel = nullptr;
  decltype(&::ibv_destroy_comp_channel) destroy_comp_channel = nullptr;
  decltype(&::ibv_create_cq) create_cq = nullptr;
  decltype(&::ibv_destroy_cq) destroy_cq = nullptr;
  decltype(&::ibv_get_cq_event) get_cq_event = nullptr;
  decltype(&::ibv_ack_cq_events) ack_cq_events = nullptr;
  decltype(&::ibv_create_srq) create_srq = nullptr;
  decltype(&::ibv_destroy_srq) destroy_srq = nullptr;
  decltype(&::ibv_create_qp) create_qp = nullptr;
  decltype(&::ibv_modify_qp) modify_qp = nullptr;
  decltype(&::ibv_query_qp) query_qp = nullptr;
  decltype(&::ibv_destroy_qp) destroy_qp = nullptr;
  decltype(&::ibv_wc_status_str) wc_status_str = nullptr;
  decltype(&::ibv_event_type_str) event_type_str = nullptr;
};

/// Looks names up one by one and remembers the first that is missing.
class Finder {
 public:
  explicit Finder(void* library) : library_(library) {}

  template <typename Function>
  void Need(const char* name, Function& function) {
    Want(name, function);
    if (function == nullptr && missing_.empty()) missing_ = name;
  }
  template <typename Function>
  void Want(const char* name, Function& function) {
    function = reinterpret_cast<Function>(dlsym(library_, name));
  }
  [[nodiscard]] const std::string& missing() const { return missing_; }

 private:
  void* library_;
  std::string missing_;
};

std::string FindAll(void* library, Symbols& symbols) {
  Finder finder(library);
  finder.Want("ibv_is_fork_initialized", symbols.is_fork_initialized);
  finder.Want("ibv_fork_init", symbols.fork_init);
  finder.Need("ibv_get_device_list", symbols.get_device_list);
  finder.Need("ibv_free_device_list", symbols.free_device_list);
  finder.Need("ibv_open_device", symbols.open_device);
  finder.Need("ibv_close_device", symbols.close_device);
  finder.Need("ibv_query_device", symbols.query_device);
  finder.Need("ibv_query_port", symbols.query_port);
  finder.Need("_ibv_query_gid_ex", symbols.query_gid_ex);
  finder.Need("ibv_query_pkey", symbols.query_pkey);
  finder.Need("ibv_get_async_event", symbols.get_async_event);
  finder.Need("ibv_ack_async_event", symbols.ack_async_event);
  finder.Need("ibv_alloc_pd", symbols.alloc_pd);
  finder.Need("ibv_dealloc_pd", symbols.dealloc_pd);
  finder.Need("ibv_reg_mr", symbols.reg_mr);
  finder.Need("ibv_reg_mr_iova2", symbols.reg_mr_iova2);
  finder.Want("ibv_reg_dmabuf_mr", symbols.reg_dmabuf_mr);
  finder.Need("ibv_dereg_mr", symbols.dereg_mr);
  finder.Need("ibv_create_comp_channel", symbols.create_comp_channel);
  finder.Need("ibv_destroy_comp_channel", symbols.destroy_comp_channel);
  finder.Need("ibv_create_cq", symbols.create_cq);
  finder.Need("ibv_destroy_cq", symbols.destroy_cq);
  finder.Need("ibv_get_cq_event", symbols.get_cq_event);
  finder.Need("ibv_ack_cq_events", symbols.ack_cq_events);
  finder.Need("ibv_create_srq", symbols.create_srq);
  finder.Need("ibv_destroy_srq", symbols.destroy_srq);
  finder.Need("ibv_create_qp", symbols.create_qp);
  finder.Need("ibv_modify_qp", symbols.modify_qp);
  finder.Need("ibv_query_qp", symbols.query_qp);
  finder.Need("ibv_destroy_qp", symbols.destroy_qp);
  finder.Need("ibv_wc_status_str", symbols.wc_status_str);
  finder.Need("ibv_event_type_str", symbols.event_type_str);
  return finder.missing();
}

/// Some providers answer a post with -EINVAL where the manual says EINVAL.
int Positive(int error) { return std::abs(error); }

class LoadedIbverbs final : public Ibverbs {
 public:
  explicit LoadedIbverbs(const Symbols& symbols) : symbols_(symbols) {}

  ibv_fork_status ForkStatus() override {
    return symbols_.is_fork_initialized == nullptr ? IBV_FORK_DISABLED : symbols_.is_fork_initialized();
  }
  int ForkInit() override { return symbols_.fork_init == nullptr ? ENOSYS : Positive(symbols_.fork_init()); }

  ibv_device** GetDeviceList(int* count) override { return symbols_.get_device_list(count); }
  void FreeDeviceList(ibv_device** list) override { symbols_.free_device_list(list); }
  ibv_context* OpenDevice(ibv_device* device) override { return symbols_.open_device(device); }
  int CloseDevice(ibv_context* context) override { return symbols_.close_device(context); }
  int QueryDevice(ibv_context* context, ibv_device_attr* attr) override {
    return symbols_.query_device(context, attr);
  }
  // As the header's inline function, which would want the library at link time. Drivers fill only what they
  // know.
  int QueryPort(ibv_context* context, uint8_t port, ibv_port_attr* attr) override {
    std::memset(attr, 0, sizeof *attr);
    const verbs_context* extended = verbs_get_ctx(context);
    constexpr size_t kReach = sizeof(verbs_context) - offsetof(verbs_context, query_port);
    if (extended == nullptr || extended->sz < kReach || extended->query_port == nullptr) {
      return symbols_.query_port(context, port, reinterpret_cast<_compat_ibv_port_attr*>(attr));
    }
    return extended->query_port(context, port, attr, sizeof *attr);
  }
  int QueryGid(ibv_context* context, uint8_t port, uint32_t index, ibv_gid_entry* entry) override {
    return symbols_.query_gid_ex(context, port, index, entry, 0, sizeof *entry);
  }
  int QueryPkey(ibv_context* context, uint8_t port, int index, __be16* key) override {
    return symbols_.query_pkey(context, port, index, key);
  }
  int GetAsyncEvent(ibv_context* context, ibv_async_event* event) override {
    return symbols_.get_async_event(context, event);
  }
  void AckAsyncEvent(ibv_async_event* event) override { symbols_.ack_async_event(event); }

  ibv_pd* AllocPd(ibv_context* context) override { return symbols_.alloc_pd(context); }
  int DeallocPd(ibv_pd* pd) override { return symbols_.dealloc_pd(pd); }
  // ibv_reg_mr itself refuses optional flags; iova2 leaves out those that the kernel does not know.
  ibv_mr* RegMr(ibv_pd* pd, void* address, size_t length, int access) override {
    const auto flags = static_cast<unsigned int>(access);
    if ((flags & IBV_ACCESS_OPTIONAL_RANGE) == 0) return symbols_.reg_mr(pd, address, length, access);
    return symbols_.reg_mr_iova2(pd, address, length, reinterpret_cast<uintptr_t>(address), flags);
  }
  ibv_mr* RegDmabufMr(ibv_pd* pd, uint64_t offset, size_t length, uint64_t iova, int fd,
                      int access) override {
    if (symbols_.reg_dmabuf_mr == nullptr) {
      errno = EOPNOTSUPP;
      return nullptr;
    }
    return symbols_.reg_dmabuf_mr(pd, offset, length, iova, fd, access);
  }
  int DeregMr(ibv_mr* mr) override { return symbols_.dereg_mr(mr); }

  ibv_comp_channel* CreateCompChannel(ibv_context* context) override {
    return symbols_.create_comp_channel(context);
  }
  int DestroyCompChannel(ibv_comp_channel* channel) override {
    return symbols_.destroy_comp_channel(channel);
  }
  ibv_cq* CreateCq(ibv_context* context, int entries, ibv_comp_channel* channel) override {
    return symbols_.create_cq(context, entries, nullptr, channel, 0);
  }
  int DestroyCq(ibv_cq* cq) override { return symbols_.destroy_cq(cq); }
  int GetCqEvent(ibv_comp_channel* channel, ibv_cq** cq) override {
    void* unused = nullptr;
    return symbols_.get_cq_event(channel, cq, &unused);
  }
  void AckCqEvents(ibv_cq* cq, unsigned int count) override { symbols_.ack_cq_events(cq, count); }
  ibv_srq* CreateSrq(ibv_pd* pd, ibv_srq_init_attr* attr) override { return symbols_.create_srq(pd, attr); }
  int DestroySrq(ibv_srq* srq) override { return symbols_.destroy_srq(srq); }
  ibv_qp* CreateQp(ibv_pd* pd, ibv_qp_init_attr* attr) override { return symbols_.create_qp(pd, attr); }
  int ModifyQp(ibv_qp* qp, ibv_qp_attr* attr, int mask) override {
    return Positive(symbols_.modify_qp(qp, attr, mask));
  }
  int QueryQp(ibv_qp* qp, ibv_qp_attr* attr, int mask, ibv_qp_init_attr* init) override {
    return symbols_.query_qp(qp, attr, mask, init);
  }
  int DestroyQp(ibv_qp* qp) override { return symbols_.destroy_qp(qp); }

  int PostSend(ibv_qp* qp, ibv_send_wr* list, ibv_send_wr** bad) override {
    return Positive(qp->context->ops.post_send(qp, list, bad));
  }
  int PostSrqRecv(ibv_srq* srq, ibv_recv_wr* list, ibv_recv_wr** bad) override {
    return Positive(srq->context->ops.post_srq_recv(srq, list, bad));
  }
  int PollCq(ibv_cq* cq, int entries, ibv_wc* out) override {
    return cq->context->ops.poll_cq(cq, entries, out);
  }
  int ReqNotifyCq(ibv_cq* cq, bool solicited_only) override {
    return Positive(cq->context->ops.req_notify_cq(cq, solicited_only ? 1 : 0));
  }

  [[nodiscard]] std::string StatusText(ibv_wc_status status) const override {
    return symbols_.wc_status_str(status);
  }
  [[nodiscard]] std::string EventText(ibv_event_type type) const override {
    return symbols_.event_type_str(type);
  }

 private:
  Symbols symbols_;
};

}  // namespace

// The library is never closed: drivers that it has loaded may hold threads and atfork handlers.
Result<std::shared_ptr<Ibverbs>> LoadIbverbsFrom(const char* soname) {
  void* library = dlopen(soname, RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    const char* reason = dlerror();
    return Status(Code::kUnavailable,
                  StrCat(soname, " cannot be loaded (", reason != nullptr ? reason : "no reason given",
                         "): ", kPackages));
  }
  Symbols symbols;
  if (const std::string missing = FindAll(library, symbols); !missing.empty()) {
    dlclose(library);
    return Status(Code::kUnavailable,
                  StrCat(soname, " has no ", missing, ": it is older than rdma-core 32, ", kPackages));
  }
  return std::shared_ptr<Ibverbs>(std::make_shared<LoadedIbverbs>(symbols));
}

Result<std::shared_ptr<Ibverbs>> LoadIbverbs() {
  static const Result<std::shared_ptr<Ibverbs>> loaded = LoadIbverbsFrom(kSoname);
  return loaded;
}

}  // namespace weightcast::drivers
