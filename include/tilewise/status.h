// Status and Expected: how every C++ call reports. Source: this project; C border in c.h.
#ifndef TILEWISE_STATUS_H_
#define TILEWISE_STATUS_H_

#include <string>
#include <utility>
#include <variant>

#include "tilewise/c.h"

namespace tilewise {

enum class Code {
  ok = TILEWISE_OK,
  invalid = TILEWISE_INVALID,
  unsupported = TILEWISE_UNSUPPORTED,
  out_of_memory = TILEWISE_OUT_OF_MEMORY,
  device = TILEWISE_DEVICE,
};

// A code and, where it is not ok, a sentence for a person.
class [[nodiscard]] Status {
 public:
  Status() = default;
  Status(Code code, std::string message) : code_(code), message_(std::move(message)) {}

  bool ok() const { return code_ == Code::ok; }
  explicit operator bool() const { return ok(); }
  Code code() const { return code_; }
  const std::string& message() const { return message_; }

 private:
  Code code_ = Code::ok;
  std::string message_;
};

// A value, or the Status that says why there is none.
template <typename T>
class [[nodiscard]] Expected {
 public:
  Expected(T value) : value_(std::move(value)) {}
  Expected(Status status) : value_(std::move(status)) {}

  bool ok() const { return std::holds_alternative<T>(value_); }
  explicit operator bool() const { return ok(); }
  Status status() const { return ok() ? Status() : std::get<Status>(value_); }
  T& value() { return std::get<T>(value_); }
  const T& value() const { return std::get<T>(value_); }
  T& operator*() { return value(); }
  const T& operator*() const { return value(); }
  T* operator->() { return &value(); }
  const T* operator->() const { return &value(); }

 private:
  std::variant<T, Status> value_;
};

namespace detail {
inline Status make_status(tilewise_code code, const tilewise_error& error) {
  return code == TILEWISE_OK ? Status() : Status(static_cast<Code>(code), error.message);
}
}  // namespace detail

}  // namespace tilewise
#endif  // TILEWISE_STATUS_H_
