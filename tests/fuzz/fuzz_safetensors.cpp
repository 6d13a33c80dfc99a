// The header of a safetensors file, and the tensors that it describes.
#include <algorithm>
#include <cstring>

#include "checkpoint/safetensors.h"
#include "core/error.h"
#include "fuzz.h"

using namespace flowshard;

extern "C" size_t LLVMFuzzerMutate(uint8_t* data, size_t size, size_t max_size);

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static fuzz::MemoryFile memory;
  memory.set(data, size);
  fuzz::expect_result_or_error<CheckpointError>([&] {
    const checkpoint::SafetensorsFile file(memory.path());
    int64_t bytes = 0;
    for (const auto& [key, info] : file.tensors()) {
      const at::Tensor tensor = file.tensor(key);
      fuzz::require(tensor.sizes() == at::IntArrayRef(info.shape), "a tensor has the shape of the header");
      fuzz::require(static_cast<int64_t>(tensor.nbytes()) == info.size_bytes, "and its bytes");
      bytes += info.size_bytes;
      if (info.size_bytes == 0) continue;
      const auto* first = static_cast<const uint8_t*>(tensor.const_data_ptr());
      fuzz::require(first[0] == data[info.offset_bytes], "the first byte is that of the file");
      fuzz::require(first[info.size_bytes - 1] == data[info.offset_bytes + info.size_bytes - 1],
                    "and so is the last");
    }
    fuzz::require(bytes <= static_cast<int64_t>(size), "no byte is in two tensors");
  });
  return 0;
}

// A changed header with its old length would seldom be read at all.
extern "C" size_t LLVMFuzzerCustomMutator(uint8_t* data, size_t size, size_t max_size, unsigned int seed) {
  size = LLVMFuzzerMutate(data, size, max_size);
  if (seed % 8 == 0 || size < 10) return size;
  const uint8_t* end =
      std::find(std::reverse_iterator(data + size), std::reverse_iterator(data + 8), '}').base();
  const uint64_t length = end - (data + 8);
  if (end > data + 8) std::memcpy(data, &length, sizeof(length));
  return size;
}
