#pragma once

#include <utility>

namespace weightcast {

/// One reference to a T that counts its references itself: T::AddReference and T::DropReference.
template <typename T>
class IntrusivePtr {
 public:
  IntrusivePtr() = default;
  /// Takes over a reference that was counted already.
  static IntrusivePtr Adopt(T* counted) {
    IntrusivePtr pointer;
    pointer.raw_ = counted;
    return pointer;
  }
  IntrusivePtr(const IntrusivePtr& other) : raw_(other.raw_) {
    if (raw_ != nullptr) raw_->AddReference();
  }
  IntrusivePtr(IntrusivePtr&& other) noexcept : raw_(std::exchange(other.raw_, nullptr)) {}
  IntrusivePtr& operator=(IntrusivePtr other) noexcept {
    std::swap(raw_, other.raw_);
    return *this;
  }
  ~IntrusivePtr() {
    if (raw_ != nullptr) raw_->DropReference();
  }

  /// The reference is the caller's now.
  [[nodiscard]] T* Release() { return std::exchange(raw_, nullptr); }
  [[nodiscard]] T* get() const { return raw_; }
  T& operator*() const { return *raw_; }
  T* operator->() const { return raw_; }
  friend bool operator==(const IntrusivePtr& a, const T* b) { return a.raw_ == b; }

 private:
  T* raw_ = nullptr;
};

}  // namespace weightcast
