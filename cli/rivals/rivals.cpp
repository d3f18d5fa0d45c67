#include <dlfcn.h>

#include <algorithm>
#include <cmath>
#include <filesystem>

#include "cli/rivals/rival.h"
#include "tune/problem_data.h"

namespace tilewise::cli {
namespace {

// build/rivals for build/bin/tilewise: where scripts/rivals.sh puts what it gets.
std::filesystem::path rivals_folder() {
  std::error_code error;
  const auto self = std::filesystem::read_symlink("/proc/self/exe", error);
  return error ? std::filesystem::path() : self.parent_path().parent_path() / "rivals";
}

Expected<std::unique_ptr<Rival>> find_rival(const std::string& name) {
  if (name == "three-step") return find_three_step();
  if (name == "three-step-again") return find_three_step(true);
  if (name == "ggml") return find_ggml((rivals_folder() / "ggml").string());
  return Status(Code::unsupported, "cuDNN needs an NVIDIA GPU, and this version runs on CPUs");
}

}  // namespace

Expected<SharedLibrary> SharedLibrary::open(const std::vector<std::string>& names, bool global) {
  for (const std::string& name : names) {
    void* handle = dlopen(name.c_str(), RTLD_NOW | (global ? RTLD_GLOBAL : RTLD_LOCAL));
    if (handle) return SharedLibrary(handle, name);
  }
  std::string tried;
  for (const std::string& name : names) tried += (tried.empty() ? "" : ", ") + name;
  return Status(Code::unsupported, "no shared library found; tried " + tried);
}

void* SharedLibrary::symbol(const char* name) const { return dlsym(handle_, name); }

void SharedLibrary::close() {
  dlclose(handle_);
  handle_ = nullptr;
}

std::vector<std::string> rival_names() {
  return {"three-step", "three-step-again", "ggml", "pytorch", "cudnn"};
}

std::vector<RivalEntry> find_rivals(const std::vector<std::string>& wanted) {
  std::vector<RivalEntry> entries;
  for (const std::string& name : rival_names()) {
    if (!wanted.empty() && std::find(wanted.begin(), wanted.end(), name) == wanted.end()) continue;
    RivalEntry entry;
    entry.name = name;
    if (name == "pytorch") {
      auto timer = find_pytorch(rivals_folder().string());
      if (timer)
        entry.foreign = *timer;
      else
        entry.absent = timer.status().message();
    } else {
      auto rival = find_rival(name);
      if (rival)
        entry.rival = std::move(*rival);
      else
        entry.absent = rival.status().message();
    }
    entries.push_back(std::move(entry));
  }
  return entries;
}

double largest_difference(const tilewise_tensor& ours, const float* theirs) {
  const int64_t count = ours.shape[0] * ours.shape[1] * ours.shape[2] * ours.shape[3];
  double apart = 0;
  for (int64_t i = 0; i < count; i += 97) {
    const double difference = std::fabs(tune::value_at(ours, i) - static_cast<double>(theirs[i]));
    if (!(difference <= apart)) apart = difference;
  }
  return apart;
}

}  // namespace tilewise::cli
