#include "transport/verbs/nic.h"
#include "transport/verbs/queue.h"
#include "unit/transport/verbs_world.h"

// Completions find the owners of their queue pairs.

namespace weightcast::transport::verbs {
namespace {

/// One end of a queue pair.
struct Talker final : QueueOwner {
  explicit Talker(Nic& nic) : queue(Queue::Create(nic, 64).value()) { queue->SetOwner(*this); }
  void OnSent(uint32_t sequence) override {
    ++sent;
    queue->Complete(sequence);
    if (then) then();
  }
  void OnSendError(uint32_t, Code, std::string_view) override { ++failed; }
  void OnMessage(std::string_view bytes) override { heard.emplace_back(bytes); }
  void OnImmediate(uint32_t) override {}
  void OnBroken(Status) override {}
  void Say(std::string_view text) {
    MessageBytes message;
    message.length = static_cast<uint32_t>(text.copy(message.bytes.data(), message.bytes.size()));
    queue->AddMessage(message);
    ASSERT_TRUE(queue->Flush().ok());
  }

  std::function<void()> then;  ///< At each message that was sent.
  int sent = 0;
  int failed = 0;
  std::vector<std::string> heard;
  std::unique_ptr<Queue> queue;
};

class VerbsNicTest : public ::testing::Test {
 protected:
  static std::unique_ptr<Nic> OpenOne(std::shared_ptr<Ibverbs> host) {
    auto opened = OpenNics(host, World::OwnSettings());
    Require(opened.ok(), opened.status().message());
    return std::move(opened->front());
  }
  void SetUp() override {
    fake::HostConfig config = Nics(1);
    config.devices[0].max_srq_wr = 4;
    config.devices[0].keeps_completions = true;
    a = OpenOne(fabric.NewHost(config));
    b = OpenOne(fabric.NewHost(config));
  }
  void Connect(Talker& x, Talker& y) const {
    ASSERT_TRUE(x.queue->Connect(b->port().address(), y.queue->name(), World::OwnSettings()).ok());
    ASSERT_TRUE(y.queue->Connect(a->port().address(), x.queue->name(), World::OwnSettings()).ok());
  }

  fake::Fabric fabric{{.virtual_time = true}};
  std::unique_ptr<Nic> a;
  std::unique_ptr<Nic> b;
};

TEST_F(VerbsNicTest, MoreMessagesThanBuffersArriveInTheirOrder) {
  Talker x(*a);
  Talker y(*b);
  Connect(x, y);
  std::vector<std::string> said;
  for (int i = 0; i < 20; ++i) x.Say(said.emplace_back(StrCat("message ", i)));
  for (int turn = 0; turn < 100 && x.sent < 20; ++turn) {
    fabric.Advance(1ms);
    b->Poll();
    a->Poll();
  }
  b->Drain();
  EXPECT_EQ(y.heard, said);
}

/// The queue pair goes at its first completion, and another one takes its slot before the rest are
/// dispatched.
TEST_F(VerbsNicTest, CompletionsOfOneThatIsGoneAreNotTheNextOnesAndItsRoomComesBack) {
  Talker y(*b);
  const uint32_t all = a->completions().room();
  Talker x(*a);
  Connect(x, y);
  for (int i = 0; i < 4; ++i) x.Say("of the first");
  fabric.Run();
  std::unique_ptr<Talker> next;
  x.then = [&] {
    x.queue.reset();
    next = std::make_unique<Talker>(*a);
  };
  a->Poll();
  ASSERT_NE(next, nullptr);
  a->Drain();
  EXPECT_EQ(x.sent, 1);
  EXPECT_EQ(next->sent + next->failed + x.failed, 0);
  next.reset();
  a->Drain();
  EXPECT_EQ(a->completions().room(), all);
  EXPECT_EQ(a->queues().size(), 0U);
}

}  // namespace
}  // namespace weightcast::transport::verbs
