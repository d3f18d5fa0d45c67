// The C border's own tools: no exception crosses it, and a Status becomes a code and a sentence.
#ifndef TILEWISE_API_BORDER_H_
#define TILEWISE_API_BORDER_H_

#include <exception>
#include <new>

#include "core/text.h"
#include "tilewise/status.h"

namespace tilewise {

inline void write_message(tilewise_error* error, std::string_view message) {
  if (!error) return;
  constexpr std::string_view kCut = "\n  ... (tilewise_plan_explain has the rest)";
  if (copy_text(message, error->message, sizeof error->message) >= sizeof error->message)
    copy_text(kCut, error->message + sizeof error->message - kCut.size() - 1, kCut.size() + 1);
}

inline tilewise_code report(const Status& status, tilewise_error* error) {
  if (status.ok()) {
    if (error) error->message[0] = '\0';
  } else {
    write_message(error, status.message());
  }
  return static_cast<tilewise_code>(status.code());
}

// Runs `body`, which returns a Status.
template <typename Body>
tilewise_code guarded(tilewise_error* error, Body&& body) noexcept {
  try {
    return report(body(), error);
  } catch (const std::bad_alloc&) {
    write_message(error, "out of memory");
    return TILEWISE_OUT_OF_MEMORY;
  } catch (const std::exception& e) {
    write_message(error, e.what());
    return TILEWISE_DEVICE;
  } catch (...) {
    write_message(error, "unknown failure");
    return TILEWISE_DEVICE;
  }
}

inline Status null_argument(const char* name) {
  return {Code::invalid, cat(name, " is NULL; accepted: a valid pointer")};
}

}  // namespace tilewise
#endif  // TILEWISE_API_BORDER_H_
