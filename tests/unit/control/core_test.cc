#include "control/core.h"

#include <gtest/gtest.h>

#include <condition_variable>
#include <memory>
#include <mutex>
#include <string>

#include "protocol/identity.h"

namespace weightcast::control {
namespace {

constexpr Duration kPatience = std::chrono::seconds(20);

/// A stream without a network.
class FakeStream final : public WorkerStream {
 public:
  explicit FakeStream(std::shared_ptr<FakeStream> before = nullptr) : before_(std::move(before)) {}
  [[nodiscard]] const stream::Member& member() const override { return member_; }
  void Bind(std::shared_ptr<SessionLink> link) override {
    const bool alone = before_ == nullptr || before_->link() == nullptr;
    const std::lock_guard lock(mutex_);
    alone_ = alone;
    link_ = std::move(link);
    changed_.notify_all();
  }
  void Kick() override {
    const std::lock_guard lock(mutex_);
    kicked_ = true;
    changed_.notify_all();
  }
  void Continue() override {}
  void CloseWhenIdle(const Status&) override {}
  void Abort() override {}

  std::shared_ptr<SessionLink> link() {
    const std::lock_guard lock(mutex_);
    return link_;
  }
  bool WaitBound() {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, kPatience, [&] { return link_ != nullptr; });
  }
  bool WaitKicked() {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, kPatience, [&] { return kicked_; });
  }
  /// When it was bound the stream before it was not bound any more.
  [[nodiscard]] bool alone() {
    const std::lock_guard lock(mutex_);
    return alone_;
  }

 private:
  const stream::Member member_{.role = stream::Role::kTrainer};
  const std::shared_ptr<FakeStream> before_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::shared_ptr<SessionLink> link_;
  bool kicked_ = false;
  bool alone_ = false;
};

Incoming HelloFor(uint64_t session) {
  protocol::Hello hello;
  hello.job = "default";
  hello.model = "policy";
  hello.world_size = 1;
  hello.secret = std::string(protocol::kSecretBytes, 's');
  hello.incarnation = protocol::IncarnationOf(hello.secret);
  return {.number = 0, .acknowledged = 0, .session = session, .message = hello};
}

TEST(Core, AStreamThatIsReplacedTakesNothingMoreFromTheSession) {
  Core core(*Settings::From({}), {.number = 1, .id = 7});
  ASSERT_TRUE(core.Start().ok());
  const ListenerHandlers handlers = core.Handlers();
  const auto first = std::make_shared<FakeStream>();
  handlers.on_open(first);
  handlers.on_message(first, HelloFor(0));
  ASSERT_TRUE(first->WaitBound());
  ASSERT_TRUE(first->WaitKicked());
  const auto welcome = first->link()->Next();
  ASSERT_TRUE(welcome);
  ASSERT_NE(welcome->session, 0U);

  // The worker has noticed the break first.
  const auto second = std::make_shared<FakeStream>(first);
  handlers.on_open(second);
  handlers.on_message(second, HelloFor(welcome->session));
  ASSERT_TRUE(second->WaitBound());
  EXPECT_TRUE(second->alone());
}

}  // namespace
}  // namespace weightcast::control
