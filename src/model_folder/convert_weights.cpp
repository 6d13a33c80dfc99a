#include "model_folder/convert_weights.h"

#include <algorithm>
#include <functional>
#include <map>

#include "core/error.h"
#include "model_folder/model_folder.h"
#include "storage/atomic_file.h"

namespace flowshard {
namespace {

namespace fs = std::filesystem;
using checkpoint::TensorSpec;
using checkpoint::Weights;

constexpr const char* kWeightsName = "diffusion_pytorch_model.safetensors";

// Loads what is stored under a key; or, with the same shape and dtype, a tensor without storage.
using Load = std::function<at::Tensor(const std::string& key)>;

at::Tensor as_bytes(const at::Tensor& tensor) { return tensor.contiguous().view(at::kByte); }

// Parts of one tensor, one below the other. By bytes: at::cat would unify dtypes, and has no fp8.
at::Tensor joined(const std::vector<at::Tensor>& parts, const std::string& name) {
  if (parts.size() == 1) return parts[0];
  std::vector<at::Tensor> bytes;
  for (const at::Tensor& part : parts) {
    if (part.scalar_type() != parts[0].scalar_type()) {
      throw ConfigError("{} is stored in parts of different dtypes ({} and {}): name one with --dtype", name,
                        checkpoint::safetensors_name(parts[0].scalar_type()),
                        checkpoint::safetensors_name(part.scalar_type()));
    }
    bytes.push_back(as_bytes(part));
  }
  return at::cat(bytes).view(parts[0].scalar_type());
}

using PartsByName = std::map<std::string, std::vector<TensorPart>>;

PartsByName parts_by(const TensorNames& names, std::string TensorPart::*name, int64_t TensorPart::*row) {
  PartsByName parts;
  for (const TensorPart& part : names) parts[part.*name].push_back(part);
  for (auto& [key, list] : parts) std::ranges::sort(list, {}, row);
  return parts;
}

at::Tensor rows_of(const at::Tensor& tensor, int64_t row, int64_t rows) {
  return rows < 0 ? tensor : tensor.narrow(0, row, rows);
}

/// The tensors of one format from those of another, by way of our parameters.
class KeyConverter {
 public:
  KeyConverter(const TensorNames& from, const TensorNames& to)
      : parameters_(parts_by(from, &TensorPart::parameter, &TensorPart::row)),
        keys_(parts_by(to, &TensorPart::key, &TensorPart::key_row)) {}

  const PartsByName& keys() const { return keys_; }

  at::Tensor tensor(const std::string& key, const Load& load) const {
    std::vector<at::Tensor> parts;
    for (const TensorPart& part : keys_.at(key)) {
      parts.push_back(rows_of(parameter(part.parameter, load), part.row, part.rows));
    }
    return joined(parts, key);
  }

 private:
  at::Tensor parameter(const std::string& name, const Load& load) const {
    std::vector<at::Tensor> parts;
    for (const TensorPart& part : parameters_.at(name)) {
      parts.push_back(rows_of(load(part.key), part.key_row, part.rows));
    }
    return joined(parts, name);
  }

  PartsByName parameters_, keys_;
};

struct Target {
  TensorNames names;
  std::function<std::vector<int64_t>(const std::string& key, std::vector<int64_t> shape)> shape;
  std::map<std::string, std::string> metadata;
  std::string config_json;  // "" if the format has none
};

// The stored tensor, its scale applied, in the dtype asked for.
at::Tensor load_tensor(const Weights& weights, const std::string& key, std::optional<at::ScalarType> dtype) {
  const at::Tensor stored = weights.tensor(key);
  const std::string scale = checkpoint::scale_key(weights, key);
  if (scale.empty()) return dtype ? stored.to(*dtype) : stored;
  return checkpoint::dequantized(stored, weights.tensor(scale).flatten()).to(*dtype);
}

at::Tensor without_storage(const Weights& weights, const std::string& key,
                           std::optional<at::ScalarType> dtype) {
  const checkpoint::TensorInfo& info = weights.info(key);
  return at::empty(info.shape, at::TensorOptions(dtype.value_or(info.dtype)).device(at::kMeta));
}

void write_weights(const Weights& weights, const TensorNames& from, const Target& target,
                   const fs::path& path, std::optional<at::ScalarType> dtype) {
  const KeyConverter converter(from, target.names);
  std::vector<TensorSpec> specs;
  for (const auto& [key, parts] : converter.keys()) {
    const at::Tensor like =
        converter.tensor(key, [&](const std::string& name) { return without_storage(weights, name, dtype); });
    specs.push_back({key, like.scalar_type(), target.shape(key, like.sizes().vec())});
  }
  checkpoint::SafetensorsWriter writer(path, std::move(specs), target.metadata);
  for (const TensorSpec& spec : writer.tensors()) {
    const at::Tensor tensor = converter.tensor(
        spec.name, [&](const std::string& name) { return load_tensor(weights, name, dtype); });
    writer.write(tensor.reshape(spec.shape));
  }
  writer.publish();
}

// A folder written under another name: it appears whole or not at all.
class NewFolder {
 public:
  explicit NewFolder(const fs::path& path)
      : path_(path.has_filename() ? path : path.parent_path()), temporary_(path_.string() + ".tmp") {
    std::error_code error;
    if (fs::exists(path_)) throw ConfigError("{}: it exists already: name a new folder", path_.string());
    fs::remove_all(temporary_, error);
    if (!fs::create_directory(temporary_, error)) {
      throw ConfigError("{}: the folder cannot be made: {}", path_.string(), error.message());
    }
  }
  ~NewFolder() {
    std::error_code ignored;
    fs::remove_all(temporary_, ignored);
  }
  NewFolder(const NewFolder&) = delete;

  const fs::path& temporary() const { return temporary_; }
  void publish() const {
    storage::sync_folder(temporary_);
    std::error_code error;
    fs::rename(temporary_, path_, error);
    if (error) throw CheckpointError("cannot write {}: {}", path_.string(), error.message());
    storage::sync_folder(fs::absolute(path_).parent_path());
  }

 private:
  fs::path path_, temporary_;
};

void convert(const Weights& weights, const TensorNames& from, const Target& target,
             const ConvertOptions& options) {
  const bool scaled = std::ranges::any_of(weights.keys(), checkpoint::is_quantization_key);
  if (scaled && !options.dtype) {
    throw ConfigError(
        "{}: its fp8 weights have scales, which {} files have not: name what to convert them to with "
        "--dtype bf16",
        weights.source(), options.to == KeyFormat::kBfl ? "official" : "diffusers");
  }
  try {
    if (target.config_json.empty())
      return write_weights(weights, from, target, options.output, options.dtype);
    const NewFolder folder(options.output);
    write_weights(weights, from, target, folder.temporary() / kWeightsName, options.dtype);
    storage::write_file(folder.temporary() / "config.json", target.config_json);
    folder.publish();
  } catch (const DataError& error) {
    throw CheckpointError("{}", error.what());
  }
}

std::vector<int64_t> same_shape(const std::string&, std::vector<int64_t> shape) { return shape; }

std::map<std::string, std::string> with_format(std::map<std::string, std::string> metadata) {
  metadata.emplace("format", "pt");  // transformers and diffusers want it
  return metadata;
}

}  // namespace

void convert(const TransformerFiles& files, const ConvertOptions& options) {
  models::FlowTransformer model(files.config);
  files.fill(model);  // nothing is materialized: checks that all tensors fit
  const Target target = options.to == KeyFormat::kBfl
                            ? Target{flow_transformer_bfl_names(files.config), same_shape,
                                     with_format(files.config.bfl_metadata()), ""}
                            : Target{flow_transformer_diffusers_names(files.config), same_shape,
                                     with_format({}), files.config.to_diffusers()};
  convert(files.weights, files.names, target, options);
}

void convert(const AutoencoderFiles& files, const ConvertOptions& options) {
  const models::Autoencoder model(files.config);
  checkpoint::fill_parameters(files.weights, files.names, values_of(model.parameters()));
  std::map<std::string, std::vector<int64_t>> official_shapes;
  for (const nn::Parameter* parameter : model.parameters())
    official_shapes[parameter->name] = parameter->shape;
  const auto to_official = [&](const std::string& key, const std::vector<int64_t>&) {
    return official_shapes.at(key);
  };
  const Target target =
      options.to == KeyFormat::kBfl
          ? Target{autoencoder_bfl_names(files.config), to_official, with_format(files.config.bfl_metadata()),
                   ""}
          : Target{autoencoder_diffusers_names(files.config), models::autoencoder_diffusers_shape,
                   with_format({}), files.config.to_diffusers()};
  convert(files.weights, files.names, target, options);
}

}  // namespace flowshard
