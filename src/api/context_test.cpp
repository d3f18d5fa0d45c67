#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>

#include "api/made_up_call.h"
#include "tilewise/plan.h"

namespace tilewise {
namespace {

bool says(const Status& s, const char* part) { return s.message().find(part) != std::string::npos; }

Status create(void (*change)(ContextOptions&)) {
  ContextOptions options;
  change(options);
  return Context::create(options).status();
}

TEST(Context, OptionsAreChecked) {
  EXPECT_TRUE(says(create([](ContextOptions& o) { o.threads = -1; }), "threads is -1"));
  EXPECT_TRUE(says(create([](ContextOptions& o) { o.struct_bytes = 3; }), "struct_bytes is 3"));
  EXPECT_TRUE(says(create([](ContextOptions& o) { o.kernel = "forward_nonsense"; }),
                   "\"forward_nonsense\" is not in this library; known: "));
  EXPECT_TRUE(
      says(create([](ContextOptions& o) { o.tuning_text = "nonsense"; }), "tuning line 1 is \"nonsense\""));
  EXPECT_TRUE(says(create([](ContextOptions& o) { o.check_data = 7; }), "check_data is 7"));
  EXPECT_TRUE(says(
      create([](ContextOptions& o) { o.allocate = [](void*, size_t, size_t) -> void* { return nullptr; }; }),
      "release is NULL"));
  EXPECT_TRUE(create([](ContextOptions& o) { o.threads = 3; }).ok());
}

TEST(Context, Threads) {
  ContextOptions options;
  options.threads = 3;
  EXPECT_EQ(Context::create(options)->threads(), 3);
  EXPECT_GE(Context::create()->threads(), 1);
}

TEST(Context, ACallersParallelFor) {
  ContextOptions options;
  options.threads = 4;
  options.parallel_for = [](void*, int64_t count, int32_t, tilewise_task task, void* data) {
    for (int64_t i = 0; i < count; ++i) task(data, i, 0);
  };
  const Context context = made_up::reference_context(options);
  made_up::Call call;
  EXPECT_EQ(context.threads(), 4);
  EXPECT_TRUE(attention(context, call.options, call.t).ok());
}

// Variables for the life of one object.
struct Variable {
  Variable(const char* n, const char* value) : name(n) { setenv(n, value, 1); }
  ~Variable() { unsetenv(name); }
  const char* name;
};

TEST(Environment, IsReadOnlyWhenAsked) {
  const Variable threads("TILEWISE_THREADS", "2"), kernel("TILEWISE_KERNEL", "forward_reference_f64");
  EXPECT_EQ(Context::from_environment()->threads(), 2);
  made_up::Call call;
  auto problem = problem_from(call.options, call.t);
  EXPECT_STREQ(plan(*problem, *Context::from_environment())->kernel, "forward_reference_f64");
  EXPECT_NE(
      std::string(plan(*problem, *Context::create()).ok() ? plan(*problem, *Context::create())->kernel : ""),
      "forward_reference_f64");
}

TEST(Environment, FillsInWhatTheDefaultsLeaveToIt) {
  ContextOptions defaults;
  defaults.threads = 3;
  EXPECT_EQ(Context::from_environment(defaults)->threads(), 3);
  const Variable threads("TILEWISE_THREADS", "2");
  EXPECT_EQ(Context::from_environment(defaults)->threads(), 2);
}

TEST(Environment, BadVariablesAreNamed) {
  const struct {
    const char *name, *value, *says;
  } bad[] = {
      {"TILEWISE_THREADS", "two", "TILEWISE_THREADS is \"two\""},
      {"TILEWISE_THREADS", "2x", "TILEWISE_THREADS is \"2x\""},
      {"TILEWISE_THREADS", "-2", "threads is -2"},
      {"TILEWISE_KERNEL", "nonsense", "\"nonsense\" is not in this library"},
      {"TILEWISE_TUNING", "/no/such/file", "TILEWISE_TUNING is \"/no/such/file\", which cannot be read"},
      {"TILEWISE_CHECK", "yes", "TILEWISE_CHECK is \"yes\""},
      {"TILEWISE_LOG", "file", "TILEWISE_LOG is \"file\""}};
  for (const auto& b : bad) {
    const Variable variable(b.name, b.value);
    const auto context = Context::from_environment();
    EXPECT_FALSE(context.ok()) << b.name;
    EXPECT_TRUE(says(context.status(), b.says)) << context.status().message();
  }
}

TEST(Device, Query) {
  auto cpu = DeviceInfo::query();
  ASSERT_TRUE(cpu.ok());
  EXPECT_GE(cpu->cores, 1);
  const auto cuda = DeviceInfo::query(TILEWISE_CUDA);
  if (!cuda.ok()) {
    EXPECT_TRUE(says(cuda.status(), "this build has no CUDA code") || says(cuda.status(), "NVIDIA driver"))
        << cuda.status().message();
  }
  EXPECT_TRUE(says(DeviceInfo::query(static_cast<tilewise_device_kind>(9)).status(), "device kind is 9"));
}

TEST(PlanBorder, MadeUpDevicesAndExplain) {
  DeviceInfo device = *DeviceInfo::query();
  made_up::Call call;
  auto problem = problem_from(call.options, call.t);
  device.kind = TILEWISE_CUDA;
  const auto none = plan(*problem, device);
  EXPECT_EQ(none.status().code(), Code::unsupported);
  device.kind = TILEWISE_CPU;
  Limits limits;
  limits.kernel = "forward_reference_f64";
  auto forced = plan(*problem, device, limits);
  ASSERT_TRUE(forced.ok()) << forced.status().message();
  EXPECT_TRUE(*forced == *plan(*problem, device, limits));
  EXPECT_NE(forced->to_string().find("forward_reference_f64 for forward f32"), std::string::npos);
  const std::string text = explain(*problem, device);
  EXPECT_NE(text.find("refused: the oracle in double precision"), std::string::npos) << text;
  device.struct_bytes = 1;
  EXPECT_EQ(plan(*problem, device).status().code(), Code::invalid);
}

}  // namespace
}  // namespace tilewise
