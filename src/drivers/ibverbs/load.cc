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

/// Every function that we take out of the library, once: X(member of Symbols, the symbol there).
#define WC_IBVERBS_NEEDED(X)                        \
  X(get_device_list, ibv_get_device_list)           \
  X(free_device_list, ibv_free_device_list)         \
  X(open_device, ibv_open_device)                   \
  X(close_device, ibv_close_device)                 \
  X(query_device, ibv_query_device)                 \
  X(query_port, ibv_query_port)                     \
  X(query_gid_ex, _ibv_query_gid_ex)                \
  X(query_pkey, ibv_query_pkey)                     \
  X(get_async_event, ibv_get_async_event)           \
  X(ack_async_event, ibv_ack_async_event)           \
  X(alloc_pd, ibv_alloc_pd)                         \
  X(dealloc_pd, ibv_dealloc_pd)                     \
  X(reg_mr, ibv_reg_mr)                             \
  X(reg_mr_iova2, ibv_reg_mr_iova2)                 \
  X(dereg_mr, ibv_dereg_mr)                         \
  X(create_comp_channel, ibv_create_comp_channel)   \
  X(destroy_comp_channel, ibv_destroy_comp_channel) \
  X(create_cq, ibv_create_cq)                       \
  X(destroy_cq, ibv_destroy_cq)                     \
  X(get_cq_event, ibv_get_cq_event)                 \
  X(ack_cq_events, ibv_ack_cq_events)               \
  X(create_srq, ibv_create_srq)                     \
  X(destroy_srq, ibv_destroy_srq)                   \
  X(create_qp, ibv_create_qp)                       \
  X(modify_qp, ibv_modify_qp)                       \
  X(query_qp, ibv_query_qp)                         \
  X(destroy_qp, ibv_destroy_qp)                     \
  X(wc_status_str, ibv_wc_status_str)               \
  X(event_type_str, ibv_event_type_str)

/// Null before rdma-core 35 (is_fork_initialized) and 34 (reg_dmabuf_mr).
#define WC_IBVERBS_WANTED(X)                      \
  X(is_fork_initialized, ibv_is_fork_initialized) \
  X(fork_init, ibv_fork_init)                     \
  X(reg_dmabuf_mr, ibv_reg_dmabuf_mr)

/// The types come from the library's header, whose inline functions must not be called: they would want the
/// library at link time.
struct Symbols {
#define WC_MEMBER(member, symbol) decltype(&::symbol) member = nullptr;
  WC_IBVERBS_NEEDED(WC_MEMBER)
  WC_IBVERBS_WANTED(WC_MEMBER)
#undef WC_MEMBER
};

/// Fills `symbols`; returns the first name that is missing, or nothing.
const char* FindAll(void* library, Symbols& symbols) {
  const char* missing = nullptr;
#define WC_WANT(member, symbol) \
  symbols.member = reinterpret_cast<decltype(symbols.member)>(dlsym(library, #symbol));
#define WC_NEED(member, symbol) \
  WC_WANT(member, symbol)       \
  if (symbols.member == nullptr && missing == nullptr) missing = #symbol;
  WC_IBVERBS_NEEDED(WC_NEED)
  WC_IBVERBS_WANTED(WC_WANT)
#undef WC_NEED
#undef WC_WANT
  return missing;
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
    return Error(Code::kUnavailable, soname, " cannot be loaded (",
                 reason != nullptr ? reason : "no reason given", "): ", kPackages);
  }
  Symbols symbols;
  if (const char* const missing = FindAll(library, symbols); missing != nullptr) {
    dlclose(library);
    return Error(Code::kUnavailable, soname, " has no ", missing, ": it is older than rdma-core 32; ",
                 kPackages, " of that version or newer");
  }
  return std::shared_ptr<Ibverbs>(std::make_shared<LoadedIbverbs>(symbols));
}

Result<std::shared_ptr<Ibverbs>> LoadIbverbs() {
  static const Result<std::shared_ptr<Ibverbs>> loaded = LoadIbverbsFrom(kSoname);
  return loaded;
}

}  // namespace weightcast::drivers
