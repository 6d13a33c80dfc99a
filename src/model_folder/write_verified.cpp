#include "model_folder/write_verified.h"

#include <cstring>

#include "core/error.h"

namespace flowshard {

void write_verified(const std::filesystem::path& path, const std::vector<checkpoint::TensorSpec>& specs,
                    const checkpoint::Metadata& metadata,
                    const std::function<at::Tensor(const checkpoint::TensorSpec&)>& load) {
  checkpoint::SafetensorsWriter writer(path, specs, metadata);
  for (const checkpoint::TensorSpec& spec : writer.tensors()) writer.write(load(spec));
  writer.publish();

  const checkpoint::SafetensorsFile file(path);
  for (const checkpoint::TensorSpec& spec : specs) {
    const at::Tensor written = file.tensor(spec.name);
    const at::Tensor wanted = load(spec).contiguous();
    if (written.scalar_type() != wanted.scalar_type() || written.sizes() != wanted.sizes() ||
        std::memcmp(written.const_data_ptr(), wanted.const_data_ptr(), wanted.nbytes()) != 0) {
      throw CheckpointError(
          "{}: \"{}\" was read back with other values than were written: is the disk sound?", path.string(),
          spec.name);
    }
  }
}

}  // namespace flowshard
