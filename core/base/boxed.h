#pragma once
// A value on the heap that copies as the value does: for what is large and rare among the alternatives of a
// variant, which is as large as its largest. Not thread-safe.

#include <memory>
#include <utility>

namespace tidepool {

template <typename T>
class Boxed {
 public:
  Boxed() : value_(std::make_unique<T>()) {}
  Boxed(T value)
      : value_(std::make_unique<T>(std::move(value))) {
  }  // NOLINT(google-explicit-constructor): it stands for a T
  Boxed(const Boxed& other) : value_(std::make_unique<T>(*other)) {}
  Boxed(Boxed&& other) noexcept = default;  // what is left may be assigned to or destroyed, nothing else
  Boxed& operator=(Boxed other) noexcept {
    value_ = std::move(other.value_);
    return *this;
  }
  ~Boxed() = default;
  [[nodiscard]] T& operator*() { return *value_; }
  [[nodiscard]] const T& operator*() const { return *value_; }
  [[nodiscard]] T* operator->() { return value_.get(); }
  [[nodiscard]] const T* operator->() const { return value_.get(); }

 private:
  std::unique_ptr<T> value_;
};

}  // namespace tidepool
