#include "training/out_of_memory.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <exception>
#include <new>

#include "core/error.h"

namespace flowshard::training {
namespace {

/// What the handler makes of `fault`: the new message, or "" if it leaves it.
template <typename Fault>
std::string message_of(const Fault& fault) {
  try {
    try {
      fault();
    } catch (const std::exception&) {
      rethrow_out_of_memory("step 3 (backward pass)", [] {
        return std::vector<MemoryAdvice>{{"a.b=c", int64_t{3} << 30}, {"d.e=f", int64_t{1} << 30}};
      });
    }
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "";
}

constexpr const char* kAdvice =
    "; a.b=c saves 3.00 GiB, d.e=f saves 1.00 GiB on each rank (flowshard plan shows all)";

TEST(OutOfMemory, OfAGpuSaysWhatWasAskedForAndFreeAndWhatWouldHelp) {
  const std::string message = message_of([] {
    throw c10::OutOfMemoryError(
        c10::SourceLocation{__func__, __FILE__, __LINE__},
        "CUDA out of memory. Tried to allocate 1.27 GiB. GPU 3 has a total capacity of 79.11 GiB of "
        "which 830.50 MiB is free. Including non-PyTorch memory, this process has 78.30 GiB memory in "
        "use.");
  });
  EXPECT_EQ(
      message,
      std::string("step 3 (backward pass): out of memory: the GPU has no room for 1.27 GiB more: 830.50 "
                  "MiB of 79.11 GiB are free") +
          kAdvice);
}

TEST(OutOfMemory, OfTheHostIsKnownToo) {
  // More than any address space: LibTorch's allocator fails at once.
  const std::string of_tensor = message_of([] { at::empty({int64_t{1} << 55}, at::kByte); });
  const std::string others = message_of([] { throw std::bad_alloc(); });
  const std::string where = "step 3 (backward pass): out of memory: the host has no room for ";
  EXPECT_TRUE(of_tensor.starts_with(where + "33554432.00 GiB more: ")) << of_tensor;
  EXPECT_TRUE(of_tensor.ends_with(std::string(" GiB of the machine are free") + kAdvice)) << of_tensor;
  EXPECT_TRUE(others.starts_with(where + "more: ")) << others;
  EXPECT_TRUE(others.ends_with(std::string(" GiB of the machine are free") + kAdvice)) << others;
}

TEST(OutOfMemory, OtherFaultsAreLeftAlone) {
  EXPECT_EQ(message_of([] { throw DataError("bad"); }), "");
  EXPECT_EQ(message_of([] { throw c10::Error({__func__, __FILE__, __LINE__}, "a shape does not fit"); }), "");
}

}  // namespace
}  // namespace flowshard::training
