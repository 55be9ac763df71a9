#include "counters/reader.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include "unit/topology/tree.h"

namespace weightcast::counters {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class FakeNvml final : public drivers::Nvml {
 public:
  Result<uint32_t> Gpus() override { return 2U; }
  Result<drivers::NvlinkBytes> NvlinkOf(uint32_t gpu) override {
    if (gpu == 1) return Status(Code::kUnavailable, "NVLink's counters: Not Supported");
    return drivers::NvlinkBytes{.sent = 4096, .received = 1024};
  }
};

class ReaderTest : public ::testing::Test {
 protected:
  void SetUp() override {
    for (const auto& [file, value] : std::vector<std::pair<std::string, std::string>>{{"tx_bytes", "1000"},
                                                                                      {"rx_bytes", "2000"},
                                                                                      {"tx_packets", "10"},
                                                                                      {"rx_packets", "20"},
                                                                                      {"rx_dropped", "1"},
                                                                                      {"tx_dropped", "2"}})
      Net("eth0", file, value);
  }
  void Net(const std::string& name, const std::string& file, std::string_view value) {
    tree.Write(StrCat("sys/class/net/", name, "/statistics/", file), value);
  }
  void Ib(const std::string& file, std::string_view value, const std::string& port = "mlx5_0/ports/1") {
    tree.Write(StrCat("sys/class/infiniband/", port, "/", file), value);
  }
  Reader Start() { return Reader({.root = tree.root(), .driver = driver, .nvml = nvml}); }
  static const Device& Find(const Reading& reading, std::string_view name) {
    for (const Device& one : reading.devices)
      if (one.name == name) return one;
    static const Device none{.name = "none", .counts = {}};
    ADD_FAILURE() << "no " << name;
    return none;
  }
  /// In units of the quantity; -1: it is not counted.
  static int64_t Of(const Device& device, Quantity quantity) {
    const auto& count = device.counts[quantity];
    return count ? static_cast<int64_t>(count->value * count->unit) : -1;
  }

  topology::Tree tree;
  std::function<std::map<std::string, uint64_t>(const std::string&)> driver;
  std::function<Result<std::shared_ptr<drivers::Nvml>>()> nvml;
};

TEST_F(ReaderTest, AnInterfaceHasTheKernelsStatistics) {
  tree.Write("sys/class/net/bonding_masters", "bond0");
  const Reading reading = Start().Read();
  ASSERT_EQ(reading.devices.size(), 1U);
  const Device& eth0 = Find(reading, "eth0");
  EXPECT_EQ(eth0.kind, DeviceKind::kInterface);
  EXPECT_EQ(Of(eth0, Quantity::kSentBytes), 1000);
  EXPECT_EQ(Of(eth0, Quantity::kReceivedBytes), 2000);
  EXPECT_EQ(Of(eth0, Quantity::kSentPackets), 10);
  EXPECT_EQ(Of(eth0, Quantity::kReceivedPackets), 20);
  EXPECT_EQ(Of(eth0, Quantity::kDrops), 3);
  EXPECT_EQ(Of(eth0, Quantity::kCnpsSent), -1);
  EXPECT_EQ(Of(eth0, Quantity::kPausesSent), -1);
}

TEST_F(ReaderTest, Mlx5CountsWordsAndItsOwnNames) {
  Ib("counters/port_xmit_data", "250");
  Ib("counters/port_rcv_data", "500");
  Ib("counters/port_xmit_packets", "7");
  Ib("counters/port_rcv_packets", "8");
  Ib("counters/port_xmit_discards", "1");
  Ib("counters/port_rcv_errors", "2");
  Ib("hw_counters/packet_seq_err", "3");
  Ib("hw_counters/local_ack_timeout_err", "4");
  Ib("hw_counters/rnr_nak_retry_err", "5");
  Ib("hw_counters/np_cnp_sent", "6");
  Ib("hw_counters/rp_cnp_handled", "9");
  const Reading reading = Start().Read();
  const Device& port = Find(reading, "mlx5_0:1");
  EXPECT_EQ(port.kind, DeviceKind::kRdma);
  EXPECT_EQ(Of(port, Quantity::kSentBytes), 1000);
  EXPECT_EQ(Of(port, Quantity::kReceivedBytes), 2000);
  EXPECT_EQ(Of(port, Quantity::kSentPackets), 7);
  EXPECT_EQ(Of(port, Quantity::kReceivedPackets), 8);
  EXPECT_EQ(Of(port, Quantity::kRetransmissions), 12);
  EXPECT_EQ(Of(port, Quantity::kCnpsSent), 6);
  EXPECT_EQ(Of(port, Quantity::kCnpsReceived), 9);
  EXPECT_EQ(Of(port, Quantity::kDrops), 3);
}

TEST_F(ReaderTest, ASoftwareDeviceHasPacketsAndNoBytes) {
  Ib("hw_counters/sent_pkts", "70", "rxe0/ports/1");
  Ib("hw_counters/rcvd_pkts", "80", "rxe0/ports/1");
  Ib("hw_counters/completer_retry_err", "2", "rxe0/ports/1");
  const Reading reading = Start().Read();
  const Device& port = Find(reading, "rxe0:1");
  EXPECT_EQ(Of(port, Quantity::kSentBytes), -1);
  EXPECT_EQ(Of(port, Quantity::kSentPackets), 70);
  EXPECT_EQ(Of(port, Quantity::kReceivedPackets), 80);
  EXPECT_EQ(Of(port, Quantity::kRetransmissions), 2);
  EXPECT_EQ(Of(port, Quantity::kCnpsSent), -1);
}

TEST_F(ReaderTest, TcpsRetransmissionsAreThoseOfTheNamespace) {
  tree.Write("proc/net/snmp",
             "Ip: Forwarding DefaultTTL\nIp: 1 64\n"
             "Tcp: RtoAlgorithm MaxConn InSegs OutSegs RetransSegs InErrs\nTcp: 1 -1 300 400 5 0\n"
             "Udp: InDatagrams\nUdp: 9");
  const Reading reading = Start().Read();
  const Device& tcp = Find(reading, "tcp");
  EXPECT_EQ(Of(tcp, Quantity::kReceivedPackets), 300);
  EXPECT_EQ(Of(tcp, Quantity::kSentPackets), 400);
  EXPECT_EQ(Of(tcp, Quantity::kRetransmissions), 5);
  EXPECT_EQ(Of(tcp, Quantity::kSentBytes), -1);
}

TEST_F(ReaderTest, PauseFramesAreCountedOnce) {
  std::map<std::string, uint64_t> statistics{
      {"rx_prio3_pause", 5}, {"rx_prio4_pause", 6}, {"tx_pause", 7}, {"rx_prio3_pause_duration", 900}};
  driver = [&](const std::string& interface) {
    return interface == "eth0" ? statistics : std::map<std::string, uint64_t>();
  };
  Reader reader = Start();
  EXPECT_EQ(Of(Find(reader.Read(), "eth0"), Quantity::kPausesReceived), 11);
  EXPECT_EQ(Of(Find(reader.Read(), "eth0"), Quantity::kPausesSent), 7);
  statistics["rx_pause_ctrl_phy"] = 12;  // The port's total.
  EXPECT_EQ(Of(Find(reader.Read(), "eth0"), Quantity::kPausesReceived), 12);
}

TEST_F(ReaderTest, NvlinkIsThereWhereNvmlIs) {
  nvml = [] { return Result<std::shared_ptr<drivers::Nvml>>(std::make_shared<FakeNvml>()); };
  Reader reader = Start();
  const Reading reading = reader.Read();
  EXPECT_EQ(Of(Find(reading, "gpu0"), Quantity::kSentBytes), 4096);
  EXPECT_EQ(Of(Find(reading, "gpu0"), Quantity::kReceivedBytes), 1024);
  EXPECT_EQ(reading.devices.size(), 2U) << "the second GPU does not count";
  EXPECT_THAT(reader.Troubles(), ElementsAre(HasSubstr("gpu1: NVLink's counters: Not Supported")));
  EXPECT_EQ(reader.no_nvlink(), "");
  nvml = [] { return Result<std::shared_ptr<drivers::Nvml>>(Status(Code::kUnavailable, "no library")); };
  Reader without = Start();
  EXPECT_EQ(without.Read().devices.size(), 1U);
  EXPECT_EQ(without.no_nvlink(), "no library");
  EXPECT_THAT(without.Troubles(), IsEmpty());
}

TEST_F(ReaderTest, WhatMayNotBeReadIsSaidOnceAndTheRestGoesOn) {
  if (geteuid() != 0) GTEST_SKIP() << "only root can become somebody else";
  Ib("hw_counters/np_cnp_sent", "6");
  Ib("hw_counters/rp_cnp_handled", "9");
  const auto hidden = tree.root() / "sys/class/infiniband/mlx5_0/ports/1/hw_counters/np_cnp_sent";
  std::filesystem::permissions(hidden, std::filesystem::perms::none);
  std::filesystem::permissions(tree.root(), std::filesystem::perms::all);
  Reader reader = Start();
  ASSERT_EQ(seteuid(65534), 0);
  const Reading first = reader.Read();
  const auto troubles = reader.Troubles();
  reader.Read();
  const auto again = reader.Troubles();
  ASSERT_EQ(seteuid(0), 0);
  EXPECT_THAT(troubles,
              ElementsAre(::testing::AllOf(HasSubstr("np_cnp_sent cannot be read: Permission denied"),
                                           HasSubstr("run as root"), HasSubstr("the others are counted"))));
  EXPECT_THAT(again, IsEmpty());
  EXPECT_EQ(Of(Find(first, "mlx5_0:1"), Quantity::kCnpsSent), -1);
  EXPECT_EQ(Of(Find(first, "mlx5_0:1"), Quantity::kCnpsReceived), 9);
  EXPECT_EQ(Of(Find(first, "eth0"), Quantity::kSentBytes), 1000);
}

TEST_F(ReaderTest, WhatIsNoNumberIsSaid) {
  Net("eth0", "tx_bytes", "many");
  Reader reader = Start();
  EXPECT_EQ(Of(Find(reader.Read(), "eth0"), Quantity::kSentBytes), -1);
  EXPECT_THAT(reader.Troubles(), ElementsAre(HasSubstr("tx_bytes cannot be read: it has no number")));
}

TEST_F(ReaderTest, AFullCounterIsSaid) {
  Ib("counters/port_xmit_data", "4294967295");
  Reader reader = Start();
  reader.Read();
  EXPECT_THAT(reader.Troubles(), ElementsAre(HasSubstr("perfquery -R")));
}

TEST_F(ReaderTest, AMachineWithoutAnythingIsNoError) {
  std::filesystem::remove_all(tree.root() / "sys");
  Reader reader = Start();
  EXPECT_THAT(reader.Read().devices, IsEmpty());
  EXPECT_THAT(reader.Troubles(), IsEmpty());
}

TEST(LocalSources, ThisMachineHasAnInterfaceAndTcp) {
  Reader reader(LocalSources());
  bool tcp = false;
  bool interface = false;
  for (const Device& one : reader.Read().devices) {
    tcp = tcp || one.kind == DeviceKind::kTcp;
    interface = interface || (one.kind == DeviceKind::kInterface && one.counts[Quantity::kSentBytes]);
  }
  EXPECT_TRUE(tcp);
  EXPECT_TRUE(interface);
}

}  // namespace
}  // namespace weightcast::counters
