#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "contract/devices.h"
#include "contract/side.h"
#include "contract/transports.h"

namespace weightcast::transport {

/// What one run of the suite is about.
struct Subject {
  TransportFactory factory;
  TestPlace place = TestPlace::kPrivate;
  std::optional<TestPlace> other_place;  ///< Of the other process's memory, where it is not the same.
  [[nodiscard]] TestPlace peer_place() const { return other_place.value_or(place); }
  [[nodiscard]] bool on_device() const { return IsDevice(place) || IsDevice(peer_place()); }
};

/// The machine of a subject that needs one.
using Machine = std::unique_ptr<const FakeMachine>;  ///< Null: none is needed.
inline Machine MachineOf(const Subject& subject) {
  if (!subject.on_device()) return nullptr;
  // No device of it reads another where everything is to be staged.
  const bool stages = subject.place == TestPlace::kSecluded || subject.peer_place() == TestPlace::kSecluded;
  return std::make_unique<const FakeMachine>(stages ? "peer=none" : "");
}
/// This process as its user. Made after the fork, and before all that uses devices.
struct DeviceUse {
  explicit DeviceUse(const Machine& machine) {
    if (machine != nullptr) devices.emplace(*machine);
  }
  std::optional<DevicesInUse> devices;
};

class ContractTest : public ::testing::TestWithParam<Subject> {
 protected:
  [[nodiscard]] static const TransportFactory& factory() { return GetParam().factory; }
  [[nodiscard]] static TestMemory NewMemory(size_t size) { return {size, GetParam().place}; }
};

/// A connected pair with one region on each side: a's is the source, b's the target.
class PairTest : public ContractTest {
 protected:
  void SetUp() override { ASSERT_TRUE(pair.Connect()); }

  /// Registers both memories and imports b's at a.
  void Map(const TestMemory& source, const TestMemory& target, Access access) {
    local = a.Register(source, Access::kLocal);
    target_region = b.Register(target, access);
    remote = a.Import(Pair::kA, target_region);
  }
  [[nodiscard]] Op WriteOp(uint64_t local_offset, uint64_t remote_offset, uint64_t length,
                           GrantName grant = {}) const {
    return {.kind = OpKind::kWrite,
            .local = local.name.id,
            .local_offset = local_offset,
            .remote = remote,
            .remote_offset = remote_offset,
            .length = length,
            .grant = grant,
            .signal = {}};
  }
  [[nodiscard]] Op ReadOp(uint64_t local_offset, uint64_t remote_offset, uint64_t length) const {
    Op op = WriteOp(local_offset, remote_offset, length);
    op.kind = OpKind::kRead;
    return op;
  }
  /// Posts from a on lane 0 and waits for the completion.
  Completion Run(const Op& op) {
    const uint64_t cookie = a.Post(Pair::kA, 0, op);
    EXPECT_TRUE(pair.Until([&] { return a.Completed(cookie); }));
    return a.completions[cookie];
  }

  Machine machine = MachineOf(GetParam());
  DeviceUse use{machine};
  Pair pair{factory()};
  Side& a = pair.a;
  Side& b = pair.b;
  Described local;
  Described target_region;
  RemoteRegion remote{};
};

inline std::vector<Subject> SubjectsThat(const std::function<bool(const TestedTransport&)>& serve) {
  std::vector<Subject> subjects;
  for (const TestedTransport& tested : TestedTransports()) {
    if (!serve(tested)) continue;
    for (const TestPlace place : tested.places) subjects.push_back({tested.factory, place, {}});
  }
  return subjects;
}
inline std::vector<Subject> AllSubjects() {
  return SubjectsThat([](const TestedTransport&) { return true; });
}
inline std::vector<Subject> SubjectsAcrossProcesses() {
  return SubjectsThat([](const TestedTransport& tested) { return tested.crosses_processes; });
}

/// The same, and those with device memory at one end only.
inline std::vector<Subject> SubjectsAcrossProcessesAndMixed() {
  auto subjects = SubjectsAcrossProcesses();
  subjects.push_back(
      {{"shm_gpu_ring_to_host", &CreateShmTransport}, TestPlace::kSecluded, TestPlace::kPrivate});
  subjects.push_back(
      {{"shm_host_to_gpu_ring", &CreateShmTransport}, TestPlace::kPrivate, TestPlace::kSecluded});
  return subjects;
}

inline std::vector<Subject> Hosts(std::vector<Subject> subjects) {
  std::erase_if(subjects, [](const Subject& subject) { return subject.on_device(); });
  return subjects;
}

inline std::string SubjectName(const ::testing::TestParamInfo<Subject>& info) {
  return std::string(info.param.factory.name) + (info.param.on_device()                   ? "_device"
                                                 : info.param.place == TestPlace::kShared ? "_shared"
                                                                                          : "_private");
}

/// After the last test of each suite.
#define WC_CONTRACT(suite) \
  INSTANTIATE_TEST_SUITE_P(All, suite, ::testing::ValuesIn(AllSubjects()), SubjectName)
/// The same for a suite whose peer is another process.
#define WC_CONTRACT_ACROSS_PROCESSES(suite) \
  INSTANTIATE_TEST_SUITE_P(All, suite, ::testing::ValuesIn(SubjectsAcrossProcesses()), SubjectName)
#define WC_CONTRACT_ACROSS_PROCESSES_AND_MIXED(suite) \
  INSTANTIATE_TEST_SUITE_P(All, suite, ::testing::ValuesIn(SubjectsAcrossProcessesAndMixed()), SubjectName)
/// The first two for a suite that is about host memory.
#define WC_CONTRACT_ON_HOST(suite) \
  INSTANTIATE_TEST_SUITE_P(All, suite, ::testing::ValuesIn(Hosts(AllSubjects())), SubjectName)
#define WC_CONTRACT_ON_HOST_ACROSS_PROCESSES(suite) \
  INSTANTIATE_TEST_SUITE_P(All, suite, ::testing::ValuesIn(Hosts(SubjectsAcrossProcesses())), SubjectName)

}  // namespace weightcast::transport
