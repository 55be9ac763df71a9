#include "transport/verbs/receive_buffers.h"

#include <unistd.h>

#include <algorithm>
#include <numeric>

namespace weightcast::transport::verbs {

Status ReceiveBuffers::Create(ibv_pd* domain, uint32_t count) {
  ibv_srq_init_attr attr{};
  attr.attr.max_wr = count;
  attr.attr.max_sge = 1;
  queue_ = device_.api().CreateSrq(domain, &attr);
  if (queue_ == nullptr) return device_.NotMade("a shared receive queue");
  const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  const size_t bytes = (count * sizeof(Buffer) + page - 1) / page * page;
  buffers_.reset(static_cast<Buffer*>(std::aligned_alloc(page, bytes)));
  if (buffers_ == nullptr) return device_.NotMade("receive buffers");
  region_ = device_.api().RegMr(domain, buffers_.get(), bytes, IBV_ACCESS_LOCAL_WRITE);
  if (region_ == nullptr) return device_.NotMade("receive buffers");
  requests_.resize(count);
  places_.resize(count);
  taken_.resize(count);
  std::iota(taken_.begin(), taken_.end(), 0U);
  return Repost();
}

ReceiveBuffers::~ReceiveBuffers() {
  if (queue_ != nullptr) device_.api().DestroySrq(queue_);
  if (region_ != nullptr && device_.api().DeregMr(region_) != 0) device_.FreeWhenClosed(buffers_.release());
}

std::string_view ReceiveBuffers::Take(const ibv_wc& completion) {
  const auto index = static_cast<uint32_t>(completion.wr_id & ~kId);
  taken_.push_back(index);
  return {buffers_[index].data(), std::min<size_t>(completion.byte_len, kMaxMessage)};
}

Status ReceiveBuffers::Repost() {
  if (taken_.empty()) return Status::Ok();
  for (size_t i = 0; i < taken_.size(); ++i) {
    const uint32_t index = taken_[i];
    places_[i] = {.addr = reinterpret_cast<uint64_t>(buffers_[index].data()),
                  .length = kMaxMessage,
                  .lkey = region_->lkey};
    requests_[i] = {.wr_id = kId | index,
                    .next = i + 1 < taken_.size() ? &requests_[i + 1] : nullptr,
                    .sg_list = &places_[i],
                    .num_sge = 1};
  }
  ibv_recv_wr* bad = nullptr;
  if (const int error = device_.api().PostSrqRecv(queue_, requests_.data(), &bad); error != 0)
    return device_.Failed("cannot post receives", error);
  taken_.clear();
  return Status::Ok();
}

}  // namespace weightcast::transport::verbs
