// Pieces of sentences: error texts, plans and logs are put together with these.
#ifndef TILEWISE_CORE_TEXT_H_
#define TILEWISE_CORE_TEXT_H_

#include <charconv>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <type_traits>

namespace tilewise {

// Not printf: a host program's locale must not turn 0.5 into 0,5.
inline std::string number_text(double value, int digits = 6) {
  char text[64];
  const auto end = std::to_chars(text, text + sizeof text, value, std::chars_format::general, digits);
  return std::string(text, end.ptr);
}

inline std::string fixed_text(double value, int decimals) {
  char text[400];
  const auto end = std::to_chars(text, text + sizeof text, value, std::chars_format::fixed, decimals);
  return std::string(text, end.ptr);
}

// 512 B, 12.3 KiB, 6.1 GiB.
inline std::string bytes_text(double bytes) {
  const char* units[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB"};
  int unit = 0;
  while (unit < 5 && bytes >= 1024.0) {
    bytes /= 1024.0;
    ++unit;
  }
  return fixed_text(bytes, unit == 0 ? 0 : 1) + " " + units[unit];
}

// "a, b": appends with a separator between.
inline void append_listed(std::string& list, std::string_view name, std::string_view separator = ", ") {
  if (!list.empty()) list += separator;
  list += name;
}

inline std::string shape_text(const int64_t* shape, int rank) {
  std::string text = "[";
  for (int i = 0; i < rank; ++i) {
    if (i) text += ", ";
    text += std::to_string(shape[i]);
  }
  return text + "]";
}

namespace detail {
inline void append(std::string& text, std::string_view piece) { text += piece; }
template <typename T>
requires std::is_arithmetic_v<T>
void append(std::string& text, T value) {
  if constexpr (std::is_floating_point_v<T>) {
    text += number_text(static_cast<double>(value));
  } else {
    text += std::to_string(value);
  }
}
}  // namespace detail

// cat("heads_q is ", 6, "; accepted: ...")
template <typename... Pieces>
std::string cat(const Pieces&... pieces) {
  std::string text;
  (detail::append(text, pieces), ...);
  return text;
}

// Fills a caller's buffer as snprintf does; returns the length that was needed.
inline size_t copy_text(std::string_view text, char* out, size_t out_bytes) {
  if (out && out_bytes > 0) {
    const size_t n = text.size() < out_bytes - 1 ? text.size() : out_bytes - 1;
    std::memcpy(out, text.data(), n);
    out[n] = '\0';
  }
  return text.size();
}

}  // namespace tilewise
#endif  // TILEWISE_CORE_TEXT_H_
