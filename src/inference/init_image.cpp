#include "inference/init_image.h"

#include "core/error.h"
#include "storage/atomic_file.h"
#include "storage/mapped_file.h"

namespace flowshard::inference {

InitImage read_init_image(const std::filesystem::path& file, const std::string& expected_xxh3) {
  try {
    const storage::MappedFile mapped(file);
    const auto bytes = mapped.bytes();
    InitImage init_image;
    init_image.xxh3 = fmt::format("{:016x}", storage::digest_of(bytes).checksum);
    if (!expected_xxh3.empty() && init_image.xxh3 != expected_xxh3) {
      throw ConfigError("init image {}: its content is another than it was (XXH3 {}, not {})", file.string(),
                        init_image.xxh3, expected_xxh3);
    }
    init_image.pixels =
        image::decode({reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size()}, file.string());
    return init_image;
  } catch (const DataError& error) {
    throw ConfigError("init image {}", error.what());
  }
}

}  // namespace flowshard::inference
