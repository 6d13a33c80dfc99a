#include "checkpoint/safetensors.h"

#include <gtest/gtest.h>

#include <cstring>
#include <fstream>

#include "core/error.h"
#include "core/temporary_folder.h"

namespace flowshard::checkpoint {
namespace {

namespace fs = std::filesystem;

// The bytes of a file with this header and data.
std::string file_of(const std::string& header, size_t data_bytes = 0) {
  std::string length(8, '\0');
  const uint64_t size = header.size();
  std::memcpy(length.data(), &size, sizeof(size));
  return length + header + std::string(data_bytes, '\1');
}

std::string entry(const std::string& dtype, const std::string& shape, const std::string& offsets) {
  return R"({"dtype":")" + dtype + R"(","shape":)" + shape + R"(,"data_offsets":)" + offsets + "}";
}

class Safetensors : public testing::Test {
 protected:
  // What the reader says about these bytes.
  std::string error_of(const std::string& bytes) const {
    std::ofstream(path_, std::ios::binary) << bytes;
    try {
      const SafetensorsFile file(path_);
    } catch (const CheckpointError& error) {
      EXPECT_NE(std::string(error.what()).find(path_.string()), std::string::npos) << error.what();
      EXPECT_EQ(std::string(error.what()).find('\n'), std::string::npos) << error.what();
      return error.what();
    }
    return "no error";
  }
  void expect_error(const std::string& bytes, const std::string& part) const {
    EXPECT_NE(error_of(bytes).find(part), std::string::npos) << error_of(bytes) << "\n   lacks: " << part;
  }
  SafetensorsFile open(const std::string& bytes) const {
    std::ofstream(path_, std::ios::binary) << bytes;
    return SafetensorsFile(path_);
  }

  TemporaryFolder folder_;
  fs::path path_ = folder_.path() / "weights.safetensors";
};

TEST_F(Safetensors, CutOffAnywhereIsRefused) {
  write_safetensors(path_, {{"a", at::ones({4})}, {"b", at::ones({4})}}, {{"format", "pt"}});
  std::string whole(fs::file_size(path_), '\0');
  std::ifstream(path_, std::ios::binary).read(whole.data(), static_cast<int64_t>(whole.size()));
  for (size_t size = 0; size < whole.size(); ++size) {
    EXPECT_NE(error_of(whole.substr(0, size)).find("cut off?"), std::string::npos) << size;
  }
  expect_error(whole.substr(0, whole.size() - 5),
               fmt::format("{} bytes long, but its header promises {}", whole.size() - 5, whole.size()));
  expect_error(whole + std::string(16, '\0'), "16 bytes are left over");
}

TEST_F(Safetensors, SizeThatTheShapeDoesNotHaveIsRefused) {
  expect_error(file_of("{\"w\":" + entry("F32", "[16,32]", "[0,512]") + "}", 512),
               "tensor \"w\": F32 of shape [16, 32] takes 2048 bytes, but its range holds 512");
  expect_error(file_of("{\"w\":" + entry("F32", "[4294967296,4294967296]", "[0,0]") + "}"),
               "larger than any memory");
  expect_error(file_of("{\"w\":" + entry("F32", "[4611686018427387904]", "[0,0]") + "}"),
               "larger than any memory");
  expect_error(file_of("{\"w\":" + entry("F32", "[0,9223372036854775807,4]", "[0,0]") + "}"),
               "larger than any memory");
}

TEST_F(Safetensors, RangesThatDoNotTileTheFileAreRefused) {
  const auto two = [](const std::string& a, const std::string& b) {
    return "{\"a\":" + entry("F32", "[1]", a) + ",\"b\":" + entry("F32", "[1]", b) + "}";
  };
  EXPECT_EQ(error_of(file_of(two("[0,4]", "[4,8]"), 8)), "no error");
  EXPECT_EQ(error_of(file_of(two("[4,8]", "[0,4]"), 8)), "no error");
  expect_error(file_of(two("[0,4]", "[0,4]"), 8), "they overlap");
  expect_error(file_of(two("[0,4]", "[2,6]"), 8), "they overlap");
  expect_error(file_of(two("[0,4]", "[6,10]"), 10), "there is a gap");
  expect_error(file_of(two("[2,6]", "[6,10]"), 10), "there is a gap");
  expect_error(file_of(two("[4,0]", "[4,8]"), 8), "data_offsets [4, 0] is no range");
  expect_error(file_of(two("[0,4,8]", "[4,8]"), 8), "is no range");
  expect_error(file_of(two("[-4,0]", "[4,8]"), 8), "holds -4, which is no size");
  expect_error(file_of(two("[0,4.0]", "[4,8]"), 8), "holds 4.0, which is no size");
  expect_error(file_of(two("[9223372036854775803,9223372036854775807]", "[0,4]"), 8),
               "begins beyond any file");
  expect_error(file_of(two("[18446744073709551612,18446744073709551616]", "[0,4]"), 8), "which is no size");
}

TEST_F(Safetensors, HeaderThatIsNoHeaderIsRefused) {
  expect_error(file_of(""), "does not begin with '{'");
  expect_error(file_of(" {}"), "does not begin with '{'");
  expect_error(file_of("[]"), "does not begin with '{'");
  expect_error(file_of("{"), "JSON is damaged");
  expect_error(file_of("{}x"), "JSON is damaged");
  expect_error(file_of(std::string("{}\0", 3)), "JSON is damaged");
  expect_error(file_of("{\"\xff\":1}"), "JSON is damaged");
  expect_error(file_of("{\"a\":" + std::string(100'000, '[')), "nested too deeply");
  expect_error(file_of("{\"a\":1e999}"), "a number that is too large");
  expect_error(file_of("{\"a\":1}"), "tensor \"a\" has no dtype");
  expect_error(file_of("{\"a\\n\":{\"dtype\":\"F32\"}}"), "tensor \"a\\n\" has no shape");
  expect_error(file_of("{\"a\":{\"dtype\":\"F32\",\"shape\":[1]}}", 4), "has no data_offsets");
  expect_error(std::string(7, '\0') + "\1{}", "over the limit of 100000000");
  EXPECT_EQ(error_of(file_of("{}  ")), "no error");
}

TEST_F(Safetensors, KeyThatStandsTwiceIsRefused) {
  const std::string a = "\"a\":" + entry("F32", "[1]", "[0,4]");
  expect_error(file_of("{" + a + "," + a + "}", 4), "the key \"a\" stands twice");
  expect_error(file_of(R"({"__metadata__":{"k":"1","k":"2"}})"), "the key \"k\" stands twice");
}

TEST_F(Safetensors, UnknownDtypeIsNamedWithItsTensor) {
  expect_error(file_of("{\"w\":" + entry("F8_E8M0", "[1]", "[0,1]") + "}", 1),
               "tensor \"w\" has the unknown dtype \"F8_E8M0\"");
}

TEST_F(Safetensors, MetadataHoldsStringsOnly) {
  EXPECT_EQ(open(file_of(R"({"__metadata__":{"step":"0"}})")).metadata(), (Metadata{{"step", "0"}}));
  expect_error(file_of(R"({"__metadata__":{"step":0}})"), "holds 0 for the key \"step\"");
  expect_error(file_of(R"({"__metadata__":[]})"), "__metadata__ is not an object");
}

TEST_F(Safetensors, EmptyTensorsAndScalarsKeepShapeAndDtype) {
  write_safetensors(path_, {{"a", at::empty({0})},
                            {"b", at::empty({2, 0}, at::kHalf)},
                            {"c", at::scalar_tensor(3.0, at::kDouble)}});
  const SafetensorsFile file(path_);
  EXPECT_EQ(file.tensor("a").sizes(), at::IntArrayRef({0}));
  EXPECT_EQ(file.tensor("b").sizes(), at::IntArrayRef({2, 0}));
  EXPECT_EQ(file.tensor("b").scalar_type(), at::kHalf);
  EXPECT_EQ(file.tensor("c").dim(), 0);
  EXPECT_EQ(file.tensor("c").item<double>(), 3.0);
}

TEST_F(Safetensors, MetadataWithoutTensorsIsReadBack) {
  write_safetensors(path_, {}, {{"key", "value"}});
  const SafetensorsFile file(path_);
  EXPECT_TRUE(file.tensors().empty());
  EXPECT_EQ(file.metadata(), (Metadata{{"key", "value"}}));
}

TEST_F(Safetensors, Fp8BytesMeanWhatTheyMean) {
  const SafetensorsFile file =
      open(file_of("{\"w\":" + entry("F8_E4M3", "[3]", "[0,3]") + "}") + "\x38\x7e\x7f");
  const at::Tensor values = file.tensor("w").to(at::kFloat);
  EXPECT_EQ(values[0].item<float>(), 1.0F);
  EXPECT_EQ(values[1].item<float>(), 448.0F);
  EXPECT_TRUE(std::isnan(values[2].item<float>()));
}

TEST_F(Safetensors, ReadsWithoutCopyAndOutlivesItsReader) {
  write_safetensors(path_, {{"a", at::arange(6.0).view({2, 3})}});
  at::Tensor first, second;
  {
    const SafetensorsFile file(path_);
    first = file.tensor("a");
    second = file.tensor("a");
  }
  EXPECT_EQ(first.const_data_ptr(), second.const_data_ptr());
  write_safetensors(path_, {{"a", at::zeros({2, 3})}});
  EXPECT_TRUE(at::equal(first, at::arange(6.0).view({2, 3})));
}

TEST_F(Safetensors, UnalignedTensorsAreReadRight) {
  const std::string header = "{\"w\":" + entry("F32", "[1]", "[0,4]") + "}";
  for (size_t padding = 0; padding < 4; ++padding) {
    const SafetensorsFile file =
        open(file_of(header + std::string(padding, ' ')) + std::string("\0\0\x80\x3f", 4));
    EXPECT_EQ(file.tensor("w").item<float>(), 1.0F);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(file.tensor("w").const_data_ptr()) % alignof(float), 0U);
  }
}

TEST_F(Safetensors, WrittenTensorsAreAlignedWhateverTheirOrder) {
  const at::Tensor transposed = at::arange(6.0, at::kFloat).view({2, 3}).t();
  write_safetensors(path_, {{"bytes", at::ones({3}, at::kByte)},
                            {"transposed", transposed},
                            {"wide", at::ones({1}, at::kDouble)},
                            {"expanded", at::ones({1}).expand({5})}});
  const SafetensorsFile file(path_);
  for (const auto& [key, info] : file.tensors()) {
    EXPECT_EQ(info.offset_bytes % static_cast<int64_t>(at::elementSize(info.dtype)), 0) << key;
  }
  EXPECT_TRUE(at::equal(file.tensor("transposed"), transposed));
  EXPECT_TRUE(at::equal(file.tensor("expanded"), at::ones({5})));
}

TEST_F(Safetensors, WritingWhereNothingCanBeWrittenIsAnError) {
  EXPECT_THROW(write_safetensors(folder_.path() / "none" / "w", {{"a", at::ones({1})}}), CheckpointError);
  EXPECT_THROW(write_safetensors(path_, {{"a", at::ones({1})}}, {{"note", "\xff"}}), CheckpointError);
  EXPECT_THROW(write_safetensors(path_, {{"a", at::ones({1})}, {"a", at::ones({1})}}), InternalError);
  EXPECT_TRUE(fs::is_empty(folder_.path()));
}

TEST_F(Safetensors, OneTensorAfterTheOtherGivesTheSameFile) {
  const at::Tensor narrow = at::ones({3}, at::kByte), wide = at::arange(4.0).view({2, 2});
  const fs::path at_once = folder_.path() / "at_once.safetensors";
  write_safetensors(at_once, {{"narrow", narrow}, {"wide", wide}}, {{"format", "pt"}});

  SafetensorsWriter writer(path_, {{"narrow", at::kByte, {3}}, {"wide", at::kFloat, {2, 2}}},
                           {{"format", "pt"}});
  ASSERT_EQ(writer.tensors()[0].name, "wide");
  writer.write(wide);
  EXPECT_THROW(writer.publish(), InternalError);
  EXPECT_FALSE(fs::exists(path_));
  writer.write(narrow);
  EXPECT_THROW(writer.write(narrow), InternalError);
  writer.publish();
  std::ifstream ours(path_, std::ios::binary), theirs(at_once, std::ios::binary);
  EXPECT_EQ(std::string(std::istreambuf_iterator<char>(ours), {}),
            std::string(std::istreambuf_iterator<char>(theirs), {}));
}

TEST_F(Safetensors, WriterThatIsGivenUpLeavesNothing) {
  {
    SafetensorsWriter writer(path_, {{"a", at::kFloat, {2}}, {"b", at::kFloat, {2}}});
    writer.write(at::ones({2}));
    EXPECT_THROW(writer.write(at::ones({3})), InternalError);
  }
  EXPECT_TRUE(fs::is_empty(folder_.path()));
}

TEST_F(Safetensors, TensorThatIsNotThereIsNamed) {
  write_safetensors(path_, {{"a", at::ones({1})}});
  EXPECT_THROW(SafetensorsFile(path_).tensor("b"), CheckpointError);
  EXPECT_THROW(SafetensorsFile(folder_.path() / "none"), CheckpointError);
  EXPECT_THROW(SafetensorsFile(folder_.path()), CheckpointError);
}

}  // namespace
}  // namespace flowshard::checkpoint
