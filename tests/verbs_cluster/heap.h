#pragma once

#include <atomic>
#include <cstdint>

/// The program's heap, counted in operator new and delete: that of a scope, or of all threads, but for
/// libibverbs' own.
struct CountedHeap {
  static std::atomic<int64_t> bytes;
  static std::atomic<bool> all;
  static thread_local bool here;
  static thread_local bool provider;  ///< In libibverbs.
};

/// Sets a flag for the length of a scope.
class Scope {
 public:
  explicit Scope(bool& flag) : flag_(flag), before_(flag) { flag_ = true; }
  Scope(const Scope&) = delete;
  Scope& operator=(const Scope&) = delete;
  ~Scope() { flag_ = before_; }

 private:
  bool& flag_;
  bool before_;
};
