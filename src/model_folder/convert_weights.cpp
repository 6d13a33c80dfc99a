#include "model_folder/convert_weights.h"

#include <algorithm>
#include <functional>
#include <map>

#include "core/error.h"
#include "model_folder/model_folder.h"
#include "model_folder/unpublished_path.h"
#include "model_folder/write_verified.h"
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

// Where stored tensors come from.
struct Source {
  Load like;  // without storage
  Load load;
};

void write_weights(const Source& source, const TensorNames& from, const Target& target,
                   const fs::path& path) {
  const KeyConverter converter(from, target.names);
  std::vector<TensorSpec> specs;
  for (const auto& [key, parts] : converter.keys()) {
    const at::Tensor like = converter.tensor(key, source.like);
    specs.push_back({key, like.scalar_type(), target.shape(key, like.sizes().vec())});
  }
  write_verified(path, specs, target.metadata, [&](const TensorSpec& spec) {
    return converter.tensor(spec.name, source.load).reshape(spec.shape);
  });
}

void convert(const Source& source, const TensorNames& from, const Target& target,
             const ConvertOptions& options) {
  const UnpublishedPath path(options.output, options.replaces_file && options.to == KeyFormat::kBfl);
  if (target.config_json.empty()) {
    write_weights(source, from, target, path.temporary());
    return path.publish();
  }
  path.make_folder();
  write_weights(source, from, target, path.temporary() / kWeightsName);
  try {
    storage::write_file(path.temporary() / "config.json", target.config_json);
  } catch (const DataError& error) {
    throw CheckpointError("{}", error.what());
  }
  path.publish();
}

void convert(const Weights& weights, const TensorNames& from, const Target& target,
             const ConvertOptions& options) {
  const bool scaled = std::ranges::any_of(weights.keys(), checkpoint::is_quantization_key);
  if (scaled && !options.dtype) {
    throw ConfigError(
        "{}: its fp8 weights have scales, which {} files have not: name what to convert them to with "
        "--dtype bf16",
        weights.source(), options.to == KeyFormat::kBfl ? "official" : "diffusers");
  }
  const Source source{
      .like = [&](const std::string& key) { return without_storage(weights, key, options.dtype); },
      .load = [&](const std::string& key) { return load_tensor(weights, key, options.dtype); }};
  convert(source, from, target, options);
}

std::vector<int64_t> same_shape(const std::string&, std::vector<int64_t> shape) { return shape; }

std::map<std::string, std::string> with_format(std::map<std::string, std::string> metadata) {
  metadata.emplace("format", "pt");  // transformers and diffusers want it
  return metadata;
}

Target transformer_target(const models::FlowTransformerConfig& config, KeyFormat to) {
  if (to == KeyFormat::kBfl) {
    return {flow_transformer_bfl_names(config), same_shape, with_format(config.bfl_metadata()), ""};
  }
  return {flow_transformer_diffusers_names(config), same_shape, with_format({}), config.to_diffusers()};
}

}  // namespace

void convert(const TransformerFiles& files, const ConvertOptions& options) {
  models::FlowTransformer model(files.config);
  files.fill(model);  // nothing is materialized: checks that all tensors fit
  convert(files.weights, files.names, transformer_target(files.config, options.to), options);
}

void convert(const checkpoint::TrainingCheckpoint& saved, const std::string& state,
             const models::FlowTransformerConfig& config, const ConvertOptions& options) {
  models::FlowTransformer model(config);
  std::map<std::string, std::vector<int64_t>> shapes;
  std::vector<checkpoint::GroupLayout::Entry> wanted;
  for (const nn::Parameter* parameter : model.parameters()) {
    shapes[parameter->name] = parameter->shape;
    wanted.push_back({parameter->name, parameter->shape, 0});
  }
  saved.require_parameters(wanted);
  const auto dtype_of = [&](const std::string& parameter) {
    return options.dtype.value_or(saved.dtype(state, parameter));
  };
  const Source source{.like =
                          [&](const std::string& parameter) {
                            const at::TensorOptions meta(at::kMeta);
                            return at::empty(shapes.at(parameter), meta.dtype(dtype_of(parameter)));
                          },
                      .load =
                          [&](const std::string& parameter) {
                            return saved.read_parameter(state, parameter).to(dtype_of(parameter));
                          }};
  // The names in a checkpoint are our own, which are those of the official code.
  convert(source, flow_transformer_bfl_names(config), transformer_target(config, options.to), options);
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
