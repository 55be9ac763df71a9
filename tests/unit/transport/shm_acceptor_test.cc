#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <array>

#include "transport/shm/acceptor.h"

namespace weightcast::transport::shm {
namespace {

bool Readable(const Poller& poller) {
  std::array<epoll_event, 1> events;
  return poller.Wait(events, Duration(0)) > 0;
}

/// No descriptor can be made while this exists.
class NoMoreDescriptors {
 public:
  NoMoreDescriptors() {
    getrlimit(RLIMIT_NOFILE, &before_);
    rlimit none = before_;
    none.rlim_cur = 0;
    setrlimit(RLIMIT_NOFILE, &none);
  }
  NoMoreDescriptors(const NoMoreDescriptors&) = delete;
  NoMoreDescriptors& operator=(const NoMoreDescriptors&) = delete;
  ~NoMoreDescriptors() { setrlimit(RLIMIT_NOFILE, &before_); }

 private:
  rlimit before_{};
};

TEST(ShmAcceptor, RestsWhenDescriptorsHaveRunOut) {
#ifdef __SANITIZE_ADDRESS__
  GTEST_SKIP()
      << "UBSan's check of vptr opens a pipe: without descriptors it takes every object for a wrong one";
#endif
  auto poller = Poller::Create();
  ASSERT_TRUE(poller.ok());
  auto acceptor = Acceptor::Create(*poller);
  ASSERT_TRUE(acceptor.ok());
  auto guest = Channel::Connect(acceptor->name());
  ASSERT_TRUE(guest.ok());
  ASSERT_TRUE(Readable(*poller));
  const TimePoint now = Clock::now();
  ::testing::internal::CaptureStderr();
  {
    const NoMoreDescriptors none;
    acceptor->Accept(*poller, now);
    acceptor->Accept(*poller, now);
  }
  const std::string log = ::testing::internal::GetCapturedStderr();
  EXPECT_NE(log.find("ulimit -n"), std::string::npos) << log;
  EXPECT_EQ(log.find("ulimit -n"), log.rfind("ulimit -n")) << "said at every try: " << log;
  EXPECT_FALSE(Readable(*poller)) << "whoever polls would spin";
  ASSERT_TRUE(acceptor->due().has_value());
  EXPECT_GT(*acceptor->due(), now);
  acceptor->Expire(*poller, *acceptor->due());
  EXPECT_TRUE(Readable(*poller));
  acceptor->Accept(*poller, Clock::now());
  EXPECT_FALSE(Readable(*poller)) << "the guest has been let in";
}

}  // namespace
}  // namespace weightcast::transport::shm
