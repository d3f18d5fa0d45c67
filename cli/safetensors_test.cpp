#include "cli/safetensors.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <csignal>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <random>

#include "tests/fuzz/safetensors_check.h"

namespace tilewise::cli {
namespace {

std::vector<std::byte> file_of(const std::string& header, size_t data_bytes) {
  std::vector<std::byte> bytes(8 + header.size() + data_bytes);
  for (size_t i = 0; i < 8; ++i) bytes[i] = static_cast<std::byte>(header.size() >> (8 * i) & 0xff);
  std::memcpy(bytes.data() + 8, header.data(), header.size());
  return bytes;
}

// The refusal's sentence, or "" where the header is accepted.
std::string refusal(const std::string& header, size_t data_bytes = 0) {
  const auto bytes = file_of(header, data_bytes);
  const auto file = SafetensorsFile::parse("f", bytes.data(), bytes.size());
  return file ? "" : file.status().message();
}

std::string one(const std::string& fields) { return "{\"a\":{" + fields + "}}"; }

TEST(Safetensors, ReadsTensorsAndMetadata) {
  const auto bytes = file_of(
      R"({"__metadata__":{"k":"v"},"b":{"dtype":"F16","shape":[2,3],"data_offsets":[4,16]},)"
      R"("a":{"dtype":"I32","shape":[],"data_offsets":[0,4]},"z":{"dtype":"F32","shape":[0,9],"data_offsets":[16,16]}}  )",
      16);
  const auto file = SafetensorsFile::parse("f", bytes.data(), bytes.size());
  ASSERT_TRUE(file) << file.status().message();
  ASSERT_EQ(file->tensors().size(), 3u);
  EXPECT_EQ(file->find("b")->to_string(), "b F16 [2,3]");
  EXPECT_EQ(file->find("b")->data, bytes.data() + bytes.size() - 12);
  EXPECT_EQ(file->find("a")->elements(), 1);
  EXPECT_EQ(file->find("z")->bytes, 0);
  EXPECT_EQ(file->find("none"), nullptr);
  EXPECT_EQ(file->metadata().at("k"), "v");
}

TEST(Safetensors, AcceptsAnEmptyHeader) { EXPECT_EQ(refusal("{}"), ""); }

TEST(Safetensors, RefusesWhatTheFormatForbids) {
  struct Case {
    std::string header;
    size_t data_bytes;
    const char* says;
  };
  const std::string f4 = R"("dtype":"F32","shape":[1],"data_offsets":[0,4])";
  const Case cases[] = {
      {"", 0, "'{'"},
      {" {}", 0, "'{'"},
      {"[]", 0, "'{'"},
      {"{\"a\":", 0, "not JSON"},
      {"{} {}", 0, "not JSON"},
      {"{\"\xff\":1}", 0, "not JSON"},
      {one(f4) + std::string(3, '\0'), 4, "not JSON"},
      {one(f4), 3, "cut off"},
      {one(f4), 5, "belong to no tensor"},
      {R"({"a":{)" + f4 + R"(},"a":{)" + f4 + "}}", 4, "'a' stands twice"},
      {one(f4 + R"(,"dtype":"F32")"), 4, "dtype twice"},
      {one(f4 + R"(,"shape":[1])"), 4, "shape twice"},
      {one(f4 + R"(,"data_offsets":[0,4])"), 4, "data_offsets twice"},
      {one(R"("shape":[1],"data_offsets":[0,4])"), 4, "'a' has no dtype"},
      {one(R"("dtype":"F32","data_offsets":[0,4])"), 4, "'a' has no shape"},
      {one(R"("dtype":"F32","shape":[1])"), 4, "'a' has no data_offsets"},
      {one(R"("dtype":"F31","shape":[1],"data_offsets":[0,4])"), 4, "unknown dtype 'F31'"},
      {one(R"("dtype":7,"shape":[1],"data_offsets":[0,4])"), 4, "'dtype' of tensor 'a'"},
      {one(R"("dtype":"F32","shape":[-1],"data_offsets":[0,4])"), 4, "negative"},
      {one(R"("dtype":"F32","shape":[1.5],"data_offsets":[0,4])"), 4, "1.5"},
      {one(R"("dtype":"F32","shape":[[1]],"data_offsets":[0,4])"), 4, "a list"},
      {one(R"("dtype":"F32","shape":1,"data_offsets":[0,4])"), 4, "a number"},
      {one(R"("dtype":"F32","shape":[18446744073709551615],"data_offsets":[0,4])"), 4, "2^63"},
      {one(R"("dtype":"F32","shape":[99999999999999999999],"data_offsets":[0,4])"), 4, "the number"},
      {one(R"("dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,4])"), 4, "2^63"},
      {one(R"("dtype":"F32","shape":[4611686018427387904],"data_offsets":[0,4])"), 4, "2^63"},
      {one(R"("dtype":"F4","shape":[3],"data_offsets":[0,1])"), 1, "no whole number of bytes"},
      {one(R"("dtype":"F32","shape":[2],"data_offsets":[0,4])"), 4, "needs 8 bytes"},
      {one(R"("dtype":"F32","shape":[1],"data_offsets":[4,0])"), 4, "backwards"},
      {one(R"("dtype":"F32","shape":[1],"data_offsets":[4,8])"), 8, "belong to no tensor"},
      {one(R"("dtype":"F32","shape":[1],"data_offsets":[0,4,8])"), 8, "more than two"},
      {one(R"("dtype":"F32","shape":[1],"data_offsets":[0])"), 4, "two data_offsets"},
      {one(R"("dtype":"F32","shape":[1],"data_offsets":[18446744073709551612,18446744073709551615])"), 4,
       "cut off"},
      {R"({"a":{)" + f4 + R"(},"b":{"dtype":"F32","shape":[1],"data_offsets":[2,6]}})", 6,
       "'b' overlaps 'a'"},
      {R"({"a":{)" + f4 + R"(},"b":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})", 4, "overlaps"},
      {R"({"__metadata__":{"k":1}})", 0, "__metadata__"},
      {R"({"__metadata__":{"k":"a","k":"b"}})", 0, "'k' twice"},
      {R"({"__metadata__":{"k":{}}})", 0, "__metadata__"},
      {R"({"a":[]})", 0, "a list"},
      {R"({"a":null})", 0, "null"},
      {"{\"a\":" + std::string(100'000, '['), 0, "a list"},
  };
  for (const Case& c : cases) {
    const std::string text = refusal(c.header, c.data_bytes);
    EXPECT_NE(text.find(c.says), std::string::npos) << c.header.substr(0, 200) << "\n  gave: " << text;
    EXPECT_EQ(text.rfind("f: ", 0), 0u) << text;
    EXPECT_TRUE(text.empty() || text.back() == '.') << text;
  }
}

TEST(Safetensors, RefusesLengthsThatCannotBe) {
  for (const uint64_t length : {uint64_t{9}, kMaxHeaderBytes, kMaxHeaderBytes + 1, UINT64_MAX}) {
    std::vector<std::byte> bytes = file_of("{}", 0);
    for (size_t i = 0; i < 8; ++i) bytes[i] = static_cast<std::byte>(length >> (8 * i) & 0xff);
    const auto file = SafetensorsFile::parse("f", bytes.data(), bytes.size());
    ASSERT_FALSE(file);
    EXPECT_NE(file.status().message().find("header length"), std::string::npos) << file.status().message();
  }
  const std::byte few[7]{};
  EXPECT_FALSE(SafetensorsFile::parse("f", few, sizeof few));
}

TEST(Safetensors, NamesInRefusalsAreHarmlessOnATerminal) {
  const std::string text = refusal(R"({"\u001b[2J)" + std::string(500, 'x') + R"(":3})");
  EXPECT_EQ(text.find('\x1b'), std::string::npos);
  EXPECT_LT(text.size(), 300u);
}

// Every kind of damage, 20,000 times, each over bytes of exactly the file's size so that sanitizers see a
// step beyond.
TEST(Safetensors, SurvivesMutatedHeaders) {
  const std::string good[] = {
      R"({"__metadata__":{"tokens":"a b"},"q":{"dtype":"F16","shape":[1,2,2,4],"data_offsets":[0,32]},)"
      R"("k":{"dtype":"F32","shape":[4],"data_offsets":[32,48]},"mask":{"dtype":"BOOL","shape":[16],"data_offsets":[48,64]}})",
      R"({"a":{"dtype":"I64","shape":[8],"data_offsets":[0,64]}})",
      R"({"b":{"dtype":"F4","shape":[2,64],"data_offsets":[0,64]},"e":{"dtype":"U8","shape":[0],"data_offsets":[64,64]}})",
  };
  const std::string pieces[] = {"{",
                                "}",
                                "[",
                                "]",
                                ",",
                                ":",
                                "\"",
                                "0",
                                "-1",
                                "1e9",
                                "18446744073709551615",
                                "64",
                                "null",
                                "\"a\"",
                                "{}",
                                "\"F32\"",
                                "\"shape\":",
                                "\\u0000",
                                " ",
                                "9223372036854775807"};
  std::mt19937_64 random(20260901);
  const auto below = [&](size_t n) { return static_cast<size_t>(random() % n); };
  int accepted = 0;
  for (int round = 0; round < 20'000; ++round) {
    std::string header = good[below(std::size(good))];
    for (size_t edits = below(4); edits > 0 && !header.empty(); --edits) {
      const size_t at = below(header.size());
      switch (below(6)) {
        case 0:
          header[at] = static_cast<char>(random());
          break;
        case 1:
          header.erase(at, 1 + below(12));
          break;
        case 2:
          header.insert(at, pieces[below(std::size(pieces))]);
          break;
        case 3:
          header.replace(at, std::min<size_t>(header.size() - at, 1 + below(3)),
                         pieces[below(std::size(pieces))]);
          break;
        case 4:
          header.insert(at, header.substr(below(header.size()), below(60)));
          break;
        case 5:
          if (header[at] >= '0' && header[at] <= '9') header[at] = static_cast<char>('0' + below(10));
          break;
      }
    }
    std::vector<std::byte> bytes = file_of(header, below(8) ? 64 : below(80));
    if (below(16) == 0) bytes[below(8)] = static_cast<std::byte>(random());
    if (below(16) == 0) bytes.resize(below(bytes.size() + 1));
    bytes.shrink_to_fit();
    const std::string fault = safetensors_fault(bytes.data(), bytes.size());
    ASSERT_EQ(fault, "") << "round " << round << ": " << header;
    accepted += SafetensorsFile::parse("f", bytes.data(), bytes.size()).ok();
  }
  EXPECT_GT(accepted, 1000);  // the undamaged ones at least
  EXPECT_LT(accepted, 12'000);
}

class SafetensorsOnDisk : public testing::Test {
 protected:
  void SetUp() override {
    char name[] = "/tmp/tilewise_safetensors_XXXXXX";
    ASSERT_NE(mkdtemp(name), nullptr);
    folder_ = name;
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }
  std::string at(const std::string& name) const { return (folder_ / name).string(); }
  size_t files() const {
    return static_cast<size_t>(std::distance(std::filesystem::directory_iterator(folder_), {}));
  }
  static FileTensor tensor(const std::string& name, DType dtype, std::vector<int64_t> shape,
                           const void* data) {
    FileTensor t;
    t.name = name;
    t.type = &file_type(dtype);
    t.shape = std::move(shape);
    t.data = static_cast<const std::byte*>(data);
    t.bytes = t.type->bits / 8;
    for (const int64_t size : t.shape) t.bytes *= size;
    return t;
  }
  std::filesystem::path folder_;
};

TEST_F(SafetensorsOnDisk, WritesWhatItReads) {
  const float floats[6] = {1, 2, 3, 4, 5, 6};
  const uint16_t halves[3] = {1, 2, 3};
  const Status written = write_safetensors(
      at("a"), {tensor("h", DType::f16, {3}, halves), tensor("f", DType::f32, {2, 3}, floats)},
      {{"n", "\"\xff"}});
  ASSERT_TRUE(written) << written.message();
  EXPECT_EQ(files(), 1u);
  const auto file = SafetensorsFile::open(at("a"));
  ASSERT_TRUE(file) << file.status().message();
  EXPECT_EQ(file->find("f")->shape, (std::vector<int64_t>{2, 3}));
  EXPECT_EQ(std::memcmp(file->find("f")->data, floats, sizeof floats), 0);
  EXPECT_EQ(std::memcmp(file->find("h")->data, halves, sizeof halves), 0);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(file->find("f")->data) % 8, 0u);
  EXPECT_EQ(file->metadata().count("n"), 1u);
}

TEST_F(SafetensorsOnDisk, KeepsLinks) {
  std::ofstream(at("target")) << "old";
  std::filesystem::create_symlink(at("target"), at("link"));
  ASSERT_TRUE(write_safetensors(at("link"), {}, {}));
  EXPECT_TRUE(std::filesystem::is_symlink(at("link")));
  EXPECT_TRUE(SafetensorsFile::open(at("target")));
}

TEST_F(SafetensorsOnDisk, AFullDiskLeavesTheOldFileAndNothingElse) {
  std::ofstream(at("a")) << "old";
  const std::vector<float> data(1 << 16);
  const auto before = std::signal(SIGXFSZ, SIG_IGN);
  rlimit limit{}, small{};
  getrlimit(RLIMIT_FSIZE, &limit);
  small = limit;
  small.rlim_cur = 4096;
  setrlimit(RLIMIT_FSIZE, &small);
  const Status written = write_safetensors(at("a"), {tensor("f", DType::f32, {1 << 16}, data.data())}, {});
  setrlimit(RLIMIT_FSIZE, &limit);
  std::signal(SIGXFSZ, before);
  EXPECT_FALSE(written);
  EXPECT_NE(written.message().find(at("a")), std::string::npos);
  EXPECT_NE(written.message().find("nothing was written"), std::string::npos);
  std::string old;
  std::ifstream(at("a")) >> old;
  EXPECT_EQ(old, "old");
  EXPECT_EQ(files(), 1u);
}

TEST_F(SafetensorsOnDisk, RefusesFoldersDevicesAndAbsentFiles) {
  EXPECT_NE(SafetensorsFile::open(folder_.string()).status().message().find("folder"), std::string::npos);
  EXPECT_NE(SafetensorsFile::open("/dev/null").status().message().find("regular"), std::string::npos);
  EXPECT_NE(SafetensorsFile::open(at("no")).status().message().find("No such file"), std::string::npos);
  std::ofstream(at("empty")).flush();
  EXPECT_NE(SafetensorsFile::open(at("empty")).status().message().find("empty"), std::string::npos);
  ASSERT_EQ(mkfifo(at("pipe").c_str(), 0600), 0);
  EXPECT_NE(SafetensorsFile::open(at("pipe")).status().message().find("regular"), std::string::npos);
  EXPECT_FALSE(can_write("/dev/full"));
  EXPECT_FALSE(can_write(at("no/file")));
  EXPECT_FALSE(can_write(folder_.string()));
  EXPECT_FALSE(can_write(""));
  EXPECT_TRUE(can_write(at("new")));
}

}  // namespace
}  // namespace tilewise::cli
