// Mistakes on purpose: each sanitizer must find its own, or its silence about everything else means nothing.
//
//     planted leak | overflow | shift | race
#include <cstdio>
#include <memory>
#include <string_view>
#include <thread>
#include <vector>

namespace {

void* volatile sink = nullptr;
int shared = 0;

void Leak() {
  sink = new std::vector<int>(100);
  sink = nullptr;
}

void Overflow() {
  std::vector<int> numbers(4);
  volatile size_t beyond = numbers.size();
  numbers.data()[beyond] = 1;
}

void Shift() {
  volatile int places = 40;
  std::printf("%d\n", 1 << places);
}

void Race() {
  std::thread other([] { ++shared; });
  ++shared;
  other.join();
}

}  // namespace

int main(int count, char** words) {
  const std::string_view what = count == 2 ? words[1] : "";
  if (what == "leak") {
    Leak();
  } else if (what == "overflow") {
    Overflow();
  } else if (what == "shift") {
    Shift();
  } else if (what == "race") {
    Race();
  } else {
    return 2;
  }
  std::puts("not found");
  return 0;
}
