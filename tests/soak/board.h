#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string_view>

/// What the processes of one soaked cluster tell the program that torments them, in memory that they share.
namespace weightcast::soak {

/// The processes, in the order of their numbers.
struct Place {
  std::string_view role;    ///< "controller", "trainer", "inference"
  std::string_view engine;  ///< Of an inference rank.
  uint32_t rank = 0;
  uint32_t ranks = 1;
  std::string_view text;  ///< As errors name it.
};
inline constexpr std::array<Place, 6> kPlaces = {{{"controller", "", 0, 1, "controller"},
                                                  {"trainer", "", 0, 2, "trainer 0"},
                                                  {"trainer", "", 1, 2, "trainer 1"},
                                                  {"inference", "a", 0, 2, "engine a rank 0"},
                                                  {"inference", "a", 1, 2, "engine a rank 1"},
                                                  {"inference", "b", 0, 1, "engine b rank 0"}}};
inline constexpr size_t kProcesses = kPlaces.size();
inline constexpr size_t kController = 0;
inline constexpr size_t kFirstTrainer = 1;
inline constexpr size_t kFirstRank = 3;

/// How far a process is. A trainer's and an inference rank's are told by themselves, the controller's is what
/// the others are in.
enum class Stage : int {
  kStarting,    ///< Until it is welcomed.
  kPlanning,    ///< Registered, not in an update: being planned and connected, at first.
  kSending,     ///< A trainer between publish and the return of wait_sources.
  kCommitting,  ///< A trainer after that, until wait returns.
  kUpdating,    ///< An inference rank whose memory is granted.
  kReady,
  kSwitching,  ///< Between receive and finish.
  kCommitted,  ///< In finish.
  kServing,
  kCount
};
inline constexpr std::array<std::string_view, static_cast<size_t>(Stage::kCount)> kStageNames = {
    "starting", "planning",  "sending",   "committing", "updating",
    "ready",    "switching", "committed", "serving"};

/// What a process is to do to its own driver, on the fake one.
enum class Order : int { kNone, kLoseContext, kBlockCall };

struct Board {
  struct Process {
    std::atomic<Order> order{Order::kNone};  ///< Taken back by the process once it is carried out ...
    std::atomic<int> blocked{0};             ///< ... calls that are held up then.
    std::atomic<int> lost{0};                ///< Ends as FAILED, with the driver's words.
    std::atomic<uint64_t> left{0};           ///< Objects of the driver's, after a proper end.
    std::atomic<Stage> stage{Stage::kStarting};
    std::atomic<int64_t> run{-1};         ///< Inference: of the version served ...
    std::atomic<int64_t> served{-1};      ///< ... and its number, compared.
    std::atomic<int64_t> finished{-1};    ///< Trainer: the last number whose update is over here.
    std::atomic<int64_t> committed{-1};   ///< Trainer: the last number that was committed.
    std::atomic<int64_t> mixtures{0};     ///< Bytes found that are not of the version reported.
    std::atomic<int64_t> comparisons{0};  ///< By the reader, whole ones.
    std::atomic<uint32_t> errors{0};      ///< Ever.
    std::array<std::array<char, 1000>, 8> error = {};  ///< The last ones; number n lies at n % 8.
  };
  std::atomic<int64_t> publish{0};  ///< The number that all trainers are to publish.
  std::atomic<bool> stop{false};
  std::atomic<bool> hold_b{false};      ///< Engine b generates on and does not come for an update ...
  std::atomic<bool> b_is_held{false};   ///< ... from here on.
  std::atomic<bool> loads_fail{false};  ///< Loader landing: an engine refuses one switch in thirty.
  std::array<Process, kProcesses> process;
};

}  // namespace weightcast::soak
