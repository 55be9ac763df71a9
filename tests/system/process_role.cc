#include "process_role.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <new>
#include <shared_mutex>
#include <stdexcept>
#include <thread>

#include "base/strings.h"
#include "weightcast/worker.h"
#include "weights.h"

namespace weightcast::test {
namespace {

constexpr const char* kVariable = "WC_TEST_ROLE_";

#if defined(__SANITIZE_THREAD__)
constexpr bool kThreadSanitizer = true;
#else
constexpr bool kThreadSanitizer = false;
#endif

Board* MapBoard(const std::string& file) {
  const int fd = ::open(file.c_str(), O_RDWR | O_CLOEXEC);
  void* memory = ::mmap(nullptr, sizeof(Board), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  ::close(fd);
  if (memory == MAP_FAILED) throw std::runtime_error("cannot map the board");
  return static_cast<Board*>(memory);
}

void SetError(Board::Process& process, const Status& status) {
  const std::string text = status.ToString();
  std::strncpy(process.error, text.c_str(), sizeof process.error - 1);
  ++process.errors;
}

std::string Option(const char* name, const char* otherwise) {
  const char* value = ::getenv((std::string(kVariable) + name).c_str());
  return value == nullptr ? otherwise : value;
}

/// One process of a cluster; its role and all else come from the environment.
class RoleProcess {
 public:
  RoleProcess()
      : board_(*MapBoard(Option("board", ""))),
        mine_(board_.process[std::stoul(Option("index", "0"))]),
        role_(Option("role", "")) {
    worker_.engine = Option("engine", "");
    worker_.rank = static_cast<uint32_t>(std::stoul(Option("rank", "0")));
    worker_.world_size = static_cast<uint32_t>(std::stoul(Option("ranks", "1")));
    settings_ = {{"job", Option("job", "test")},
                 {"lease", Option("lease", "0.5")},
                 {"bind", "127.0.0.1"},
                 {"min_engines", Option("engines", "1")},
                 {"policy", Option("policy", "all")},
                 {"commit_timeout", "3"}};
    if (const auto transport = Option("transport", ""); !transport.empty())
      settings_["transport"] = transport;
    worker_.settings = settings_;
  }

  int Run() {
    if (role_ == "controller") return RunController();
    if (!WaitForController()) return 0;
    worker_.controller = board_.controller;
    return role_ == "trainer" ? RunTrainer() : RunInference();
  }

 private:
  bool WaitForController() {
    while (!board_.controller_ready && !board_.stop)
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
    return !board_.stop;
  }

  int RunController() {
    auto controller = Controller::Start({.listen = "127.0.0.1:0", .settings = settings_});
    if (!controller.ok()) return Fail(controller.status());
    std::strncpy(board_.controller, (*controller)->address().c_str(), sizeof board_.controller - 1);
    board_.controller_ready = true;
    while (!board_.stop_controller) std::this_thread::sleep_for(std::chrono::milliseconds(5));
    (*controller)->Stop();
    return 0;
  }

  int Fail(const Status& status) {
    SetError(mine_, status);
    return 3;
  }

  /// Publishes version after version until told to stop, or until there is no going on.
  int RunTrainer() {
    auto trainer = Trainer::Connect(worker_);
    if (!trainer.ok()) return Fail(trainer.status());
    Weights weights(SmallModel(DType::kU64), Cut::kRows, worker_.rank, worker_.world_size);
    if (Status status = (*trainer)->Register({.shards = weights.shards()}); !status.ok()) return Fail(status);
    mine_.registered = true;
    // One failed update is got over (an engine is gone, others take the next); several in a row are the end.
    int failures = 0;
    for (int64_t version = 1; !board_.stop && failures < 3; ++version) {
      weights.Fill(version);
      auto update = (*trainer)->Publish(version);
      if (!update.ok()) return Fail(update.status());
      Status status = (*update)->WaitSources(In(60));
      if (status.ok()) status = (*update)->Wait(In(60)).status();
      failures = status.ok() ? 0 : failures + 1;
      status.ok() ? mine_.version.store(version) : SetError(mine_, status);
    }
    return failures == 0 ? 0 : 3;
  }

  /// Receives version after version; a second thread reads the tensors all the time.
  int RunInference() {
    auto inference = Inference::Connect(worker_);
    if (!inference.ok()) return Fail(inference.status());
    Weights weights(SmallModel(DType::kU64), Cut::kColumns, worker_.rank, worker_.world_size);
    const auto landing =
        Option("landing", "in_place") == "shadow" ? LandingMode::kShadow : LandingMode::kInPlace;
    if (Status status = (*inference)->Register({.shards = weights.shards()}, {.landing = landing});
        !status.ok())
      return Fail(status);
    mine_.registered = true;
    std::atomic<bool> over{false};
    std::shared_mutex engine;
    std::thread reader([&] {
      while (!over) Compare(**inference, weights, engine);
    });
    Version last;
    int code = 0;
    while (!board_.stop) {
      // The thread sanitizer cannot know that a version read twice means that nothing was written meanwhile.
      std::unique_lock<std::shared_mutex> pause(engine, std::defer_lock);
      if (kThreadSanitizer) pause.lock();
      auto version = (*inference)->Wait(last, In(0.5));
      if (version.ok()) {
        last = *version;
        if (weights.Wrong(last.number) != 0) ++mine_.violations;
        mine_.version = last.number;
      } else if (!IsToBeAskedAgain(version.status())) {
        code = Fail(version.status());
        break;
      }
    }
    over = true;
    reader.join();
    return code;
  }

  /// kFenced: the time of the call was over before what a lost source might still write was fenced.
  static bool IsToBeAskedAgain(const Status& status) {
    return status.code() == Code::kTimedOut || status.code() == Code::kFenced ||
           status.message().starts_with("no controller");
  }

  /// Whenever a version is reported, every byte is of that version.
  void Compare(const Inference& inference, const Weights& weights, std::shared_mutex& engine) {
    std::shared_lock<std::shared_mutex> lock(engine, std::defer_lock);
    if (kThreadSanitizer) lock.lock();
    const Version before = inference.version();
    if (before.number < 0) return std::this_thread::yield();
    const int64_t wrong = weights.Wrong(before.number);
    if (inference.version() != before) return;
    if (wrong != 0) ++mine_.violations;
    ++mine_.comparisons;
  }

  Board& board_;
  Board::Process& mine_;
  const std::string role_;
  WorkerOptions worker_;
  std::map<std::string, std::string> settings_;
};

/// Not a test: what this program does when a cluster starts it as one of its processes.
TEST(ProcessRole, DISABLED_Run) {
  if (Option("role", "").empty()) GTEST_SKIP() << "started by other tests only";
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  const int code = RoleProcess().Run();
  ::_exit(code);
}

}  // namespace

Cluster::Cluster() {
  char name[] = "/tmp/wc_board_XXXXXX";
  const int fd = ::mkstemp(name);
  if (fd < 0 || ::ftruncate(fd, sizeof(Board)) != 0) throw std::runtime_error("cannot make the board");
  ::close(fd);
  file_ = name;
  board_ = new (MapBoard(file_)) Board();
}

Cluster::~Cluster() {
  board_->stop = true;
  processes_.clear();
  ::munmap(board_, sizeof(Board));
  ::unlink(file_.c_str());
}

size_t Cluster::Start(Role role) {
  const size_t index = processes_.size();
  std::map<std::string, std::string> values = role.options;
  values["role"] = role.role;
  values["engine"] = role.engine;
  values["rank"] = std::to_string(role.rank);
  values["ranks"] = std::to_string(role.ranks);
  values["board"] = file_;
  values["index"] = std::to_string(index);
  values["job"] = file_;
  std::vector<std::string> environment;
  for (const auto& [name, value] : values) environment.push_back(std::string(kVariable) + name + "=" + value);
  processes_.push_back(Process::Start(
      {Process::Self(), "--gtest_filter=ProcessRole.DISABLED_Run", "--gtest_also_run_disabled_tests"},
      environment));
  return index;
}

std::string Cluster::ErrorOf(size_t index) const {
  const Board::Process& process = board_->process[index];
  return process.errors == 0 ? std::string() : std::string(process.error);
}

}  // namespace weightcast::test
