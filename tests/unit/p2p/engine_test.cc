#include "p2p/engine.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <future>
#include <numeric>

#include "base/strings.h"

namespace weightcast::p2p {
namespace {

using ::testing::HasSubstr;

constexpr Duration kPatience = std::chrono::seconds(30);
TimePoint Soon() { return Clock::now() + kPatience; }
bool Never() { return false; }

using Bytes = std::vector<std::byte>;

Bytes Pattern(size_t size, uint64_t seed) {
  Bytes bytes(size);
  uint64_t state = seed * 0x9e3779b97f4a7c15 + 1;
  for (auto& byte : bytes) {
    state = state * 6364136223846793005 + 1442695040888963407;
    byte = static_cast<std::byte>(state >> 56);
  }
  return bytes;
}

std::unique_ptr<Engine> MakeEngine(const std::string& transport, uint32_t rank,
                                   const std::string& token = "the-token-of-these-tests") {
  EngineOptions options;
  options.rank = rank;
  options.gpu.index = static_cast<int32_t>(rank);
  options.token = token;
  EXPECT_TRUE(options.settings.Set("bind", "127.0.0.1").ok());
  EXPECT_TRUE(options.settings.Set("transport", transport).ok());
  EXPECT_TRUE(options.settings.Set("lease", "2").ok());
  auto engine = Engine::Create(std::move(options));
  EXPECT_TRUE(engine.ok()) << engine.status().ToString();
  return *std::move(engine);
}

/// Two engines with a channel between them, over each transport.
class EngineTest : public ::testing::TestWithParam<const char*> {
 protected:
  EngineTest() : a(MakeEngine(GetParam(), 0)), b(MakeEngine(GetParam(), 1)) {
    auto connected = a->Connect(b->metadata(), false, Soon(), Never);
    EXPECT_TRUE(connected.ok()) << connected.status().ToString();
    to_b = connected.ok() ? *connected : 0;
    auto accepted = b->Accept(Soon(), Never);
    EXPECT_TRUE(accepted.ok()) << accepted.status().ToString();
    to_a = accepted.ok() ? accepted->channel : 0;
  }

  static LocalSlice All(uint64_t memory, Bytes& bytes) { return {memory, bytes.data(), bytes.size()}; }
  static uint64_t Reg(Engine& engine, Bytes& bytes) {
    const auto memory = engine.Register(bytes);
    EXPECT_TRUE(memory.ok()) << memory.status().ToString();
    return memory.ok() ? *memory : 0;
  }
  static Status WaitFor(Engine& engine, const Result<uint64_t>& operation) {
    return operation.ok() ? engine.Wait(*operation, Never) : operation.status();
  }

  std::unique_ptr<Engine> a;
  std::unique_ptr<Engine> b;
  uint64_t to_b = 0;
  uint64_t to_a = 0;
};
INSTANTIATE_TEST_SUITE_P(Transports, EngineTest, ::testing::Values("tcp", "shm"),
                         [](const auto& one) { return std::string(one.param); });

TEST_P(EngineTest, SendMeetsRecvWhicheverIsCalledFirst) {
  Bytes source = Pattern(100000, 1);
  Bytes target(100000);
  const uint64_t from = Reg(*a, source);
  const uint64_t to = Reg(*b, target);
  const LocalSlice source_all = All(from, source);
  const LocalSlice target_all = All(to, target);
  for (const bool send_first : {true, false}) {
    std::fill(target.begin(), target.end(), std::byte{0});
    Result<uint64_t> send = Status(Code::kInternal, "");
    Result<uint64_t> receive = Status(Code::kInternal, "");
    if (send_first) send = a->Send(to_b, {&source_all, 1});
    receive = b->Receive(to_a, {&target_all, 1});
    if (!send_first) send = a->Send(to_b, {&source_all, 1});
    EXPECT_EQ(WaitFor(*b, receive), Status::Ok());
    EXPECT_EQ(WaitFor(*a, send), Status::Ok());
    EXPECT_EQ(target, source);
  }
}

TEST_P(EngineTest, ManySendsMeetTheirRecvsInOrderBothWays) {
  constexpr size_t kCount = 300;  // More than a connection has grants.
  constexpr size_t kSize = 1000;
  Bytes sources[2] = {Pattern(kCount * kSize, 1), Pattern(kCount * kSize, 2)};
  Bytes targets[2] = {Bytes(kCount * kSize), Bytes(kCount * kSize)};
  Engine* engines[2] = {a.get(), b.get()};
  const uint64_t channels[2] = {to_b, to_a};
  std::vector<std::pair<int, uint64_t>> operations;
  for (int side : {0, 1}) {
    const uint64_t from = Reg(*engines[side], sources[side]);
    const uint64_t to = Reg(*engines[side], targets[side]);
    for (size_t i = 0; i < kCount; ++i) {
      const LocalSlice source{from, sources[side].data() + i * kSize, kSize};
      const LocalSlice target{to, targets[side].data() + i * kSize, kSize};
      const auto receive = engines[side]->Receive(channels[side], {&target, 1});
      const auto send = engines[side]->Send(channels[side], {&source, 1});
      ASSERT_TRUE(receive.ok() && send.ok());
      operations.emplace_back(side, *receive);
      operations.emplace_back(side, *send);
    }
  }
  for (const auto& [side, operation] : operations)
    EXPECT_EQ(engines[side]->Wait(operation, Never), Status::Ok());
  EXPECT_EQ(targets[0], sources[1]);
  EXPECT_EQ(targets[1], sources[0]);
}

TEST_P(EngineTest, VectorsMayBeCutDifferently) {
  Bytes source = Pattern(60000, 3);
  Bytes target(60000);
  const uint64_t from = Reg(*a, source);
  const uint64_t to = Reg(*b, target);
  const std::vector<LocalSlice> sends = {
      {from, source.data(), 10000}, {from, source.data() + 10000, 0}, {from, source.data() + 10000, 50000}};
  std::vector<LocalSlice> receives;
  for (size_t i = 0; i < 60000; i += 20) receives.push_back({to, target.data() + i, 20});  // Three messages.
  const auto receive = b->Receive(to_a, receives);
  const auto send = a->Send(to_b, sends);
  EXPECT_EQ(WaitFor(*a, send), Status::Ok());
  EXPECT_EQ(WaitFor(*b, receive), Status::Ok());
  EXPECT_EQ(target, source);
}

TEST_P(EngineTest, NothingIsSentAndReceivedToo) {
  const auto receive = b->Receive(to_a, {});
  const auto send = a->Send(to_b, {});
  EXPECT_EQ(WaitFor(*a, send), Status::Ok());
  EXPECT_EQ(WaitFor(*b, receive), Status::Ok());
}

TEST_P(EngineTest, ARecvMayBeLargerAndGetsTheBytesInFront) {
  Bytes source = Pattern(60, 3);
  Bytes target(100);
  const uint64_t from = Reg(*a, source);
  const uint64_t to = Reg(*b, target);
  const LocalSlice begin{from, source.data(), 10};
  const LocalSlice rest{from, source.data() + 10, 50};
  const LocalSlice small{to, target.data(), 20};
  const LocalSlice large{to, target.data() + 20, 80};
  const LocalSlice all{to, target.data(), 100};
  const LocalSlice beyond{to, target.data(), 1000};
  const auto filled = [&](const std::vector<std::tuple<size_t, size_t, size_t>>& copies) {
    Bytes bytes(100);
    for (const auto& [at, offset, length] : copies)
      std::copy_n(source.begin() + offset, length, bytes.begin() + at);
    return bytes;
  };
  const std::tuple<std::vector<LocalSlice>, std::vector<LocalSlice>, Bytes> cases[] = {
      {{begin, rest}, {small, large}, filled({{0, 0, 10}, {20, 10, 50}})},
      {{rest, begin}, {small, large}, filled({{0, 10, 50}, {50, 0, 10}})},  // No room for the first: a row.
      {{begin, rest}, {all}, filled({{0, 0, 60}})},
      {{rest}, {small, large}, filled({{0, 10, 50}})},
      {{begin, rest}, {beyond}, filled({{0, 0, 60}})},  // Up to the end of the memory.
      {{}, {small, large}, filled({})},
  };
  for (const auto& [sends, receives, wanted] : cases) {
    std::fill(target.begin(), target.end(), std::byte{0});
    const auto receive = b->Receive(to_a, receives);
    EXPECT_EQ(WaitFor(*a, a->Send(to_b, sends)), Status::Ok());
    EXPECT_EQ(WaitFor(*b, receive), Status::Ok());
    EXPECT_EQ(target, wanted);
  }
}

TEST_P(EngineTest, ASendLargerThanItsRecvFailsOnBothSidesAndNamesBothSizes) {
  Bytes source = Pattern(100, 1);
  Bytes target(99);
  const LocalSlice from = All(Reg(*a, source), source);
  const LocalSlice to = All(Reg(*b, target), target);
  const auto send = a->Send(to_b, {&from, 1});
  const auto receive = b->Receive(to_a, {&to, 1});
  EXPECT_THAT(WaitFor(*a, send).message(), HasSubstr("a send of 100 bytes meets a recv of 99"));
  const Status there = WaitFor(*b, receive);
  EXPECT_EQ(there.code(), Code::kInvalidArgument);
  EXPECT_THAT(there.message(), HasSubstr("a send of 100 bytes meets a recv of 99"));
  EXPECT_EQ(target, Bytes(99));
  // The next pair is not disturbed.
  const LocalSlice part{from.memory, source.data(), 99};
  const auto again = a->Send(to_b, {&part, 1});
  EXPECT_EQ(WaitFor(*b, b->Receive(to_a, {&to, 1})), Status::Ok());
  EXPECT_EQ(WaitFor(*a, again), Status::Ok());
  EXPECT_EQ(target, Bytes(source.begin(), source.begin() + 99));
}

TEST_P(EngineTest, AdvertisedMemoryIsReadAndWritten) {
  Bytes mine = Pattern(5000, 1);
  Bytes theirs = Pattern(5000, 2);
  const Bytes before = theirs;
  const LocalSlice here = All(Reg(*a, mine), mine);
  const uint64_t there = Reg(*b, theirs);
  const auto advert = b->Advertise({there, theirs.data() + 1000, 3000});
  ASSERT_TRUE(advert.ok());
  const LocalSlice first{here.memory, mine.data(), 2000};
  EXPECT_EQ(WaitFor(*a, a->Write(to_b, {&first, 1}, {&*advert, 1})), Status::Ok());
  EXPECT_EQ(Bytes(theirs.begin() + 1000, theirs.begin() + 3000), Bytes(mine.begin(), mine.begin() + 2000));
  EXPECT_EQ(Bytes(theirs.begin() + 3000, theirs.end()), Bytes(before.begin() + 3000, before.end()));
  const LocalSlice last{here.memory, mine.data() + 2000, 3000};
  EXPECT_EQ(WaitFor(*a, a->Read(to_b, {&last, 1}, {&*advert, 1})), Status::Ok());
  EXPECT_EQ(Bytes(mine.begin() + 2000, mine.end()), Bytes(theirs.begin() + 1000, theirs.begin() + 4000));

  const LocalSlice all = All(here.memory, mine);
  const auto beyond = a->Write(to_b, {&all, 1}, {&*advert, 1});
  EXPECT_EQ(beyond.status().code(), Code::kOutOfBounds);
  Advert forged = *advert;
  forged.offset = 4000;  // Beyond the end of the memory.
  EXPECT_EQ(WaitFor(*a, a->Write(to_b, {&last, 1}, {&forged, 1})).code(), Code::kOutOfBounds);
  EXPECT_EQ(a->Write(to_b, {&first, 1}, std::vector<Advert>{a->Advertise(first).value()}).status().code(),
            Code::kInvalidArgument)
      << "its own";
}

TEST_P(EngineTest, DeregisteredMemoryIsRefusedByName) {
  Bytes mine = Pattern(100, 1);
  Bytes theirs(100);
  const LocalSlice here = All(Reg(*a, mine), mine);
  const uint64_t memory = Reg(*b, theirs);
  const auto advert = b->Advertise(All(memory, theirs));
  ASSERT_TRUE(advert.ok());
  ASSERT_EQ(WaitFor(*a, a->Write(to_b, {&here, 1}, {&*advert, 1})), Status::Ok());
  ASSERT_EQ(b->Deregister(memory), Status::Ok());
  std::fill(theirs.begin(), theirs.end(), std::byte{0});
  EXPECT_FALSE(WaitFor(*a, a->Write(to_b, {&here, 1}, {&*advert, 1})).ok());
  EXPECT_EQ(theirs, Bytes(100));
  EXPECT_EQ(b->Deregister(memory).code(), Code::kInvalidArgument);
  EXPECT_EQ(b->Advertise(All(memory, theirs)).status().code(), Code::kInvalidArgument);
}

TEST_P(EngineTest, MemoryOfOneCall) {
  Bytes source = Pattern(3000, 1);
  Bytes target(3000);
  for (int i = 0; i < 3; ++i) {
    const LocalSlice from = All(0, source);
    const LocalSlice to = All(0, target);
    const auto receive = b->Receive(to_a, {&to, 1});
    EXPECT_EQ(WaitFor(*a, a->Send(to_b, {&from, 1})), Status::Ok());
    EXPECT_EQ(WaitFor(*b, receive), Status::Ok());
    EXPECT_EQ(target, source);
  }
  const auto advert = b->Advertise(All(0, target));
  ASSERT_TRUE(advert.ok());
  EXPECT_EQ(b->Advertise(All(0, target)).value().memory, advert->memory) << "not once more for each call";
  source = Pattern(3000, 2);
  const LocalSlice from = All(0, source);
  EXPECT_EQ(WaitFor(*a, a->Write(to_b, {&from, 1}, {&*advert, 1})), Status::Ok());
  EXPECT_EQ(target, source);
}

TEST_P(EngineTest, AnInterruptedRecvLetsGoOfItsMemory) {
  Bytes source = Pattern(100, 1);
  Bytes target(100);
  const LocalSlice from = All(Reg(*a, source), source);
  const LocalSlice to = All(Reg(*b, target), target);
  const auto receive = b->Receive(to_a, {&to, 1});
  ASSERT_TRUE(receive.ok());
  EXPECT_EQ(b->Wait(*receive, [] { return true; }).code(), Code::kCancelled);
  const auto send = a->Send(to_b, {&from, 1});
  EXPECT_THAT(WaitFor(*a, send).message(), HasSubstr(" has ended: the wait for operation 1 was interrupted"));
  EXPECT_EQ(target, Bytes(100));

  const auto unwanted = a->Send(to_b, {&from, 1});
  EXPECT_EQ(a->Wait(*unwanted, [] { return true; }).code(), Code::kCancelled);
  EXPECT_THAT(WaitFor(*b, b->Receive(to_a, {&to, 1})).message(), HasSubstr("the send of "));
}

TEST_P(EngineTest, ARecvThatIsInterruptedMidwayEndsItsSendTheSameWay) {
  Bytes source = Pattern(32 << 20, 1);
  Bytes target(source.size());
  const LocalSlice from = All(Reg(*a, source), source);
  const LocalSlice to = All(Reg(*b, target), target);
  for (int round = 0; round < 10; ++round) {
    const auto receive = b->Receive(to_a, {&to, 1});
    const auto send = a->Send(to_b, {&from, 1});
    ASSERT_TRUE(receive.ok() && send.ok());
    auto sent = std::async(std::launch::async, [&] { return a->Wait(*send, Never); });
    const Status received = b->Wait(*receive, [] { return true; });
    ASSERT_EQ(sent.wait_for(kPatience), std::future_status::ready) << "it would go on for ever";
    const Status end = sent.get();
    EXPECT_EQ(end.ok(), received.ok()) << end.ToString() << " / " << received.ToString();
  }
}

TEST_P(EngineTest, PollTellsTheEndOnce) {
  Bytes source = Pattern(100, 1);
  Bytes target(100);
  const LocalSlice from = All(Reg(*a, source), source);
  const LocalSlice to = All(Reg(*b, target), target);
  const auto receive = b->Receive(to_a, {&to, 1});
  EXPECT_EQ(b->Poll(*receive), std::nullopt);
  const auto send = a->Send(to_b, {&from, 1});
  std::optional<Status> end;
  for (const TimePoint limit = Soon(); !end && Clock::now() < limit; std::this_thread::yield())
    end = b->Poll(*receive);
  EXPECT_EQ(end, Status::Ok());
  EXPECT_EQ(b->Poll(*receive)->code(), Code::kInvalidArgument);
  EXPECT_EQ(WaitFor(*a, send), Status::Ok());
}

TEST_P(EngineTest, PollLoopsEndManyOperations) {
  constexpr size_t kCount = 50;
  constexpr size_t kSize = 64 << 10;
  Bytes source = Pattern(kCount * kSize, 1);
  Bytes target(source.size());
  const uint64_t from = Reg(*a, source);
  const uint64_t to = Reg(*b, target);
  std::vector<std::pair<Engine*, uint64_t>> open;
  for (size_t i = 0; i < kCount; ++i) {
    const LocalSlice here{from, source.data() + i * kSize, kSize};
    const LocalSlice there{to, target.data() + i * kSize, kSize};
    open.emplace_back(a.get(), a->Send(to_b, {&here, 1}).value());
    open.emplace_back(b.get(), b->Receive(to_a, {&there, 1}).value());
  }
  const TimePoint limit = Soon();
  while (!open.empty() && Clock::now() < limit) {
    std::erase_if(open, [](const auto& one) {
      const auto end = one.first->Poll(one.second);
      EXPECT_EQ(end.value_or(Status::Ok()), Status::Ok());
      return end.has_value();
    });
  }
  EXPECT_TRUE(open.empty());
  EXPECT_EQ(target, source);
}

TEST_P(EngineTest, WhatWaitsEndsWithThePeer) {
  Bytes bytes(100);
  const LocalSlice all = All(Reg(*a, bytes), bytes);
  const auto send = a->Send(to_b, {&all, 1});
  const auto receive = a->Receive(to_b, {&all, 1});
  b.reset();
  for (const auto& operation : {send, receive}) {
    const Status end = WaitFor(*a, operation);
    EXPECT_FALSE(end.ok());
    EXPECT_THAT(end.message(), HasSubstr("p2p 1"));
  }
  EXPECT_FALSE(a->Send(to_b, {&all, 1}).ok());
}

TEST_P(EngineTest, ARemovedChannelEndsAtBothEndsAndNoOther) {
  const auto second = b->Connect(a->metadata(), false, Soon(), Never);
  ASSERT_TRUE(second.ok());
  const auto accepted = a->Accept(Soon(), Never);
  ASSERT_TRUE(accepted.ok());
  Bytes bytes(100);
  const LocalSlice in_a = All(Reg(*a, bytes), bytes);
  Bytes other(100);
  const LocalSlice in_b = All(Reg(*b, other), other);
  const auto receive = b->Receive(to_a, {&in_b, 1});
  EXPECT_TRUE(a->HasChannel(to_b));
  ASSERT_EQ(a->CloseChannel(to_b), Status::Ok());
  EXPECT_FALSE(a->HasChannel(to_b));
  EXPECT_THAT(WaitFor(*b, receive).message(), HasSubstr("removed"));
  EXPECT_TRUE(b->HasChannel(to_a)) << "until its own script removes it";
  EXPECT_EQ(a->Send(to_b, {&in_a, 1}).status().code(), Code::kInvalidArgument);
  const auto kept = b->Receive(*second, {&in_b, 1});
  EXPECT_EQ(WaitFor(*a, a->Send(accepted->channel, {&in_a, 1})), Status::Ok());
  EXPECT_EQ(WaitFor(*b, kept), Status::Ok());
}

TEST_P(EngineTest, TheSharedChannelIsOneForBoth) {
  const auto here = a->Shared(b->metadata(), Soon(), Never);
  const auto there = b->Shared(a->metadata(), Soon(), Never);
  ASSERT_TRUE(here.ok() && there.ok());
  EXPECT_EQ(a->Shared(b->metadata(), Soon(), Never).value(), *here);
  EXPECT_EQ(a->ChannelTo(1), *here);
  EXPECT_EQ(a->ChannelTo(5), std::nullopt);
  Bytes source = Pattern(100, 1);
  Bytes target(100);
  const LocalSlice from = All(Reg(*a, source), source);
  const LocalSlice to = All(Reg(*b, target), target);
  const auto receive = b->Receive(*there, {&to, 1});
  EXPECT_EQ(WaitFor(*a, a->Send(*here, {&from, 1})), Status::Ok());
  EXPECT_EQ(WaitFor(*b, receive), Status::Ok());
  EXPECT_EQ(target, source);
}

TEST_P(EngineTest, ByHostAndPortToo) {
  const auto address = b->metadata().addresses.front();
  const auto port = static_cast<uint16_t>(std::stoi(address.substr(address.rfind(':') + 1)));
  const auto connected = a->Connect("127.0.0.1", port, true, Soon(), Never);
  ASSERT_TRUE(connected.ok()) << connected.status().ToString();
  const auto accepted = b->Accept(Soon(), Never);
  ASSERT_TRUE(accepted.ok());
  EXPECT_EQ(accepted->host, "127.0.0.1");
  EXPECT_EQ(accepted->gpu, (Gpu{.index = 0, .label = "cpu", .by_index = true}));
}

TEST_P(EngineTest, WrongArgumentsAreRefused) {
  Bytes bytes(100);
  const uint64_t memory = Reg(*a, bytes);
  const LocalSlice beyond{memory, bytes.data() + 50, 51};
  EXPECT_EQ(a->Send(to_b, {&beyond, 1}).status().code(), Code::kOutOfBounds);
  const LocalSlice before{memory, bytes.data() - 1, 1};
  EXPECT_EQ(a->Receive(to_b, {&before, 1}).status().code(), Code::kOutOfBounds);
  const LocalSlice end{memory, bytes.data() + 100, 1};
  EXPECT_EQ(a->Receive(to_b, {&end, 1}).status().code(), Code::kOutOfBounds);
  const LocalSlice unknown{memory + 17, bytes.data(), 1};
  EXPECT_EQ(a->Send(to_b, {&unknown, 1}).status().code(), Code::kInvalidArgument);
  EXPECT_EQ(a->Send(to_b + 99, {}).status().code(), Code::kInvalidArgument);
  EXPECT_EQ(a->Connect(a->metadata(), false, Soon(), Never).status().code(), Code::kInvalidArgument);
  EXPECT_EQ(a->Accept(Clock::now(), Never).status().code(), Code::kTimedOut);
}

TEST(Engine, ListensWhereScriptsLook) {
  std::unique_ptr<Engine> engine;
  uint32_t index = 0;
  std::string wanted;
  // Another program may have the port.
  for (index = 2000; index < 2100 && engine == nullptr; ++index) {
    engine = MakeEngine("tcp", index);
    wanted = StrCat("127.0.0.1:", kFirstPort + index);
    if (engine->metadata().addresses.front() != wanted) engine.reset();
  }
  ASSERT_NE(engine, nullptr);
  const auto other = MakeEngine("tcp", index - 1);
  EXPECT_NE(other->metadata().addresses.front(), wanted) << "any other";
  const auto connected =
      other->Connect("127.0.0.1", static_cast<uint16_t>(kFirstPort + index - 1), false, Soon(), Never);
  EXPECT_TRUE(connected.ok()) << connected.status().ToString();
}

TEST(Engine, AnotherTokenIsRefusedAndNobodyIsWaitedFor) {
  const auto a = MakeEngine("tcp", 0);
  const auto stranger = MakeEngine("tcp", 1, "the-token-of-another-job");
  EXPECT_EQ(a->Connect(stranger->metadata(), false, Soon(), Never).status().code(), Code::kPermission);
  EngineMetadata gone = stranger->metadata();
  gone.addresses = {"127.0.0.1:1"};
  const auto nobody = a->Connect(gone, false, Clock::now() + std::chrono::milliseconds(300), Never);
  EXPECT_FALSE(nobody.ok());
}

}  // namespace
}  // namespace weightcast::p2p
