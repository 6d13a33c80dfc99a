// main() of the GPU tests: without a GPU it says so and ends with the code that ctest reports as skipped.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cstdio>

int main(int argc, char** argv) {
  constexpr int kSkipped = 77;
  testing::InitGoogleTest(&argc, argv);
  if (!at::hasCUDA()) {
    std::puts("not run: no CUDA device");
    return kSkipped;
  }
  return RUN_ALL_TESTS();
}
