#include "checkpoint/safetensors.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <limits>
#include <nlohmann/json.hpp>

#include "checkpoint/checkpoint_json.h"
#include "core/error.h"

namespace flowshard::checkpoint {
namespace {

using Json = nlohmann::json;

constexpr size_t kLengthBytes = 8;
constexpr uint64_t kMaxHeaderBytes = 100'000'000;  // as the reference library
constexpr const char* kMetadataKey = "__metadata__";

struct DtypeName {
  const char* name;
  at::ScalarType dtype;
};
constexpr std::array kDtypeNames = {
    DtypeName{"F64", at::kDouble},
    DtypeName{"F32", at::kFloat},
    DtypeName{"F16", at::kHalf},
    DtypeName{"BF16", at::kBFloat16},
    DtypeName{"F8_E4M3", at::kFloat8_e4m3fn},
    DtypeName{"F8_E5M2", at::kFloat8_e5m2},
    DtypeName{"I64", at::kLong},
    DtypeName{"I32", at::kInt},
    DtypeName{"I16", at::kShort},
    DtypeName{"I8", at::kChar},
    DtypeName{"U64", at::kUInt64},
    DtypeName{"U32", at::kUInt32},
    DtypeName{"U16", at::kUInt16},
    DtypeName{"U8", at::kByte},
    DtypeName{"BOOL", at::kBool},
};

// Reads the header of one file. `where` begins every message.
class HeaderReader {
 public:
  HeaderReader(std::string where, std::string_view file) : where_(std::move(where)), file_(file) {}

  void read(std::map<std::string, TensorInfo>& tensors, Metadata& metadata) {
    const Json header = parse_json(header_text(), where_);
    if (!header.is_object()) throw CheckpointError("{}: its header is not a JSON object", where_);
    for (const auto& [key, value] : header.items()) {
      if (key == kMetadataKey) {
        metadata = read_metadata(value);
      } else {
        tensors.emplace(key, read_tensor(key, value));
      }
    }
    check_ranges(tensors);
  }

 private:
  std::string_view header_text() {
    if (file_.size() < kLengthBytes) {
      throw CheckpointError("{}: {} bytes long, shorter than any safetensors file: cut off?", where_,
                            file_.size());
    }
    uint64_t length = 0;
    for (size_t i = kLengthBytes; i-- > 0;) length = length << 8 | static_cast<unsigned char>(file_[i]);
    if (length > kMaxHeaderBytes) {
      throw CheckpointError(
          "{}: its header would be {} bytes long, over the limit of {}: not a safetensors file?", where_,
          length, kMaxHeaderBytes);
    }
    if (length > file_.size() - kLengthBytes) {
      throw CheckpointError("{}: {} bytes long, but its header alone ends at byte {}: cut off?", where_,
                            file_.size(), length + kLengthBytes);
    }
    data_begin_ = kLengthBytes + length;
    const std::string_view text = file_.substr(kLengthBytes, length);
    if (!text.starts_with('{')) throw CheckpointError("{}: its header does not begin with '{{'", where_);
    return text;
  }

  Metadata read_metadata(const Json& value) const {
    if (!value.is_object()) throw CheckpointError("{}: {} is not an object", where_, kMetadataKey);
    Metadata metadata;
    for (const auto& [key, text] : value.items()) {
      if (!text.is_string()) {
        throw CheckpointError("{}: {} holds {} for the key {}, where only strings are allowed", where_,
                              kMetadataKey, text.dump(), in_quotes(key));
      }
      metadata.emplace(key, text.get<std::string>());
    }
    return metadata;
  }

  TensorInfo read_tensor(const std::string& key, const Json& value) const {
    const std::string tensor = fmt::format("{}: tensor {}", where_, in_quotes(key));
    const Json dtype = value.is_object() ? value.value("dtype", Json()) : Json();
    if (!dtype.is_string()) throw CheckpointError("{} has no dtype", tensor);
    TensorInfo info{.dtype = dtype_of(tensor, dtype), .shape = {}, .offset_bytes = 0, .size_bytes = 0};
    info.shape = read_integers(tensor, value, "shape");
    const std::vector<int64_t> range = read_integers(tensor, value, "data_offsets");
    if (range.size() != 2 || range[0] > range[1]) {
      throw CheckpointError("{}: data_offsets [{}] is no range", tensor, fmt::join(range, ", "));
    }
    info.size_bytes = range[1] - range[0];
    const int64_t wanted = byte_count(tensor, info);
    if (wanted != info.size_bytes) {
      throw CheckpointError("{}: {} of shape [{}] takes {} bytes, but its range holds {}", tensor,
                            dtype.get<std::string>(), fmt::join(info.shape, ", "), wanted, info.size_bytes);
    }
    if (__builtin_add_overflow(range[0], static_cast<int64_t>(data_begin_), &info.offset_bytes)) {
      throw CheckpointError("{} begins beyond any file", tensor);
    }
    return info;
  }

  static at::ScalarType dtype_of(const std::string& tensor, const std::string& name) {
    if (const auto dtype = safetensors_dtype(name)) return *dtype;
    throw CheckpointError("{} has the unknown dtype {}", tensor, in_quotes(name));
  }

  static std::vector<int64_t> read_integers(const std::string& tensor, const Json& value, const char* key) {
    const Json list = value.value(key, Json());
    if (!list.is_array()) throw CheckpointError("{} has no {}", tensor, key);
    std::vector<int64_t> integers;
    for (const Json& item : list) {
      if (!item.is_number_unsigned() || item.get<uint64_t>() > std::numeric_limits<int64_t>::max()) {
        throw CheckpointError("{}: {} holds {}, which is no size", tensor, key, item.dump());
      }
      integers.push_back(item.get<int64_t>());
    }
    return integers;
  }

  static int64_t byte_count(const std::string& tensor, const TensorInfo& info) {
    int64_t bytes = static_cast<int64_t>(at::elementSize(info.dtype));
    bool empty = false;
    for (const int64_t size : info.shape) {
      // A zero counts as one here: the strides of an empty tensor must not overflow either.
      empty |= size == 0;
      if (__builtin_mul_overflow(bytes, std::max<int64_t>(size, 1), &bytes)) {
        throw CheckpointError("{}: shape [{}] is larger than any memory", tensor,
                              fmt::join(info.shape, ", "));
      }
    }
    return empty ? 0 : bytes;
  }

  void check_ranges(const std::map<std::string, TensorInfo>& tensors) const {
    std::vector<const std::pair<const std::string, TensorInfo>*> in_order;
    for (const auto& entry : tensors) in_order.push_back(&entry);
    std::ranges::sort(in_order, {}, [](const auto* entry) {
      return std::pair(entry->second.offset_bytes, entry->second.size_bytes);
    });
    auto end = static_cast<int64_t>(data_begin_);
    for (const auto* entry : in_order) {
      const TensorInfo& info = entry->second;
      if (info.offset_bytes != end) {
        throw CheckpointError(
            "{}: tensor {} begins at byte {} of the file, but the bytes before it end at {}: {}", where_,
            in_quotes(entry->first), info.offset_bytes, end,
            info.offset_bytes < end ? "they overlap" : "there is a gap");
      }
      if (__builtin_add_overflow(end, info.size_bytes, &end)) {
        throw CheckpointError("{}: tensor {} ends beyond any file", where_, in_quotes(entry->first));
      }
    }
    const auto size = static_cast<int64_t>(file_.size());
    if (size < end) {
      throw CheckpointError(
          "{}: {} bytes long, but its header promises {}: cut off? copy or download it again", where_, size,
          end);
    }
    if (size > end) {
      throw CheckpointError(
          "{}: {} bytes are left over after the last tensor ({} bytes long, its header promises {})", where_,
          size - end, size, end);
    }
  }

  std::string where_;
  std::string_view file_;
  uint64_t data_begin_ = 0;
};

}  // namespace

SafetensorsFile::SafetensorsFile(const std::filesystem::path& path) : path_(path) {
  try {
    file_ = std::make_shared<const storage::MappedFile>(path);
  } catch (const DataError& error) {
    throw CheckpointError("{}", error.what());
  }
  HeaderReader(path.string(), file_->text()).read(tensors_, metadata_);
}

at::Tensor SafetensorsFile::tensor(const std::string& key) const {
  const auto found = tensors_.find(key);
  if (found == tensors_.end())
    throw CheckpointError("{}: there is no tensor {}", path_.string(), in_quotes(key));
  const TensorInfo& info = found->second;
  const auto options = at::TensorOptions().dtype(info.dtype);
  if (info.size_bytes == 0) return at::empty(info.shape, options);
  const std::byte* bytes = file_->bytes().data() + info.offset_bytes;
  // A header of odd length, or a narrow tensor before a wide one, shifts what follows off its alignment.
  if (reinterpret_cast<uintptr_t>(bytes) % at::elementSize(info.dtype) != 0) {
    at::Tensor copy = at::empty(info.shape, options);
    std::memcpy(copy.mutable_data_ptr(), bytes, static_cast<size_t>(info.size_bytes));
    return copy;
  }
  return at::from_blob(
      const_cast<std::byte*>(bytes), info.shape, [file = file_](void*) {}, options);
}

std::optional<at::ScalarType> safetensors_dtype(const std::string& name) {
  for (const DtypeName& known : kDtypeNames) {
    if (name == known.name) return known.dtype;
  }
  return {};
}

std::string safetensors_name(at::ScalarType dtype) {
  const auto known = std::ranges::find(kDtypeNames, dtype, &DtypeName::dtype);
  check(known != kDtypeNames.end(), fmt::format("safetensors has no dtype {}", at::toString(dtype)));
  return known->name;
}

namespace {

// The header, its length before it.
std::string header_of(const std::string& path, const std::vector<TensorSpec>& tensors,
                      const Metadata& metadata) {
  Json header = Json::object();
  if (!metadata.empty()) header[kMetadataKey] = metadata;
  int64_t offset = 0;
  for (const auto& [name, dtype, shape] : tensors) {
    check(!header.contains(name) && name != kMetadataKey, fmt::format("{} is written twice", name));
    const auto size = static_cast<int64_t>(at::elementSize(dtype)) * c10::multiply_integers(shape);
    header[name] = {
        {"dtype", safetensors_name(dtype)}, {"shape", shape}, {"data_offsets", {offset, offset + size}}};
    offset += size;
  }
  std::string text;
  try {
    text = header.dump();
  } catch (const Json::type_error&) {
    throw CheckpointError("cannot write {}: a name or its metadata is not UTF-8", path);
  }
  text.resize((text.size() + 7) / 8 * 8, ' ');
  if (text.size() > kMaxHeaderBytes) {
    throw CheckpointError("cannot write {}: its header would be {} bytes long, over the limit of {}", path,
                          text.size(), kMaxHeaderBytes);
  }
  std::string length(kLengthBytes, '\0');
  for (size_t i = 0; i < kLengthBytes; ++i) length[i] = static_cast<char>(text.size() >> (8 * i) & 0xff);
  return length + text;
}

// What a file operation returns, its DataError as the CheckpointError that callers expect.
template <typename Operation>
auto as_checkpoint(const Operation& operation) {
  try {
    return operation();
  } catch (const DataError& error) {
    throw CheckpointError("{}", error.what());
  }
}

}  // namespace

SafetensorsWriter::SafetensorsWriter(const std::filesystem::path& path, std::vector<TensorSpec> tensors,
                                     const Metadata& metadata)
    : tensors_(std::move(tensors)) {
  std::ranges::stable_sort(tensors_, std::greater(),
                           [](const TensorSpec& tensor) { return at::elementSize(tensor.dtype); });
  const std::string header = header_of(path.string(), tensors_, metadata);
  auto size_bytes = static_cast<int64_t>(header.size());
  for (const auto& [name, dtype, shape] : tensors_) {
    size_bytes += static_cast<int64_t>(at::elementSize(dtype)) * c10::multiply_integers(shape);
  }
  as_checkpoint([&] {
    file_ = std::make_unique<storage::AtomicFile>(path, size_bytes);
    file_->write(header);
  });
}

void SafetensorsWriter::write(const at::Tensor& tensor) {
  check(num_written_ < tensors_.size(), "more tensors are written than were said");
  const auto& [name, dtype, shape] = tensors_[num_written_++];
  check(tensor.scalar_type() == dtype && tensor.sizes() == at::IntArrayRef(shape),
        fmt::format("{} is not what was said", name));
  const at::Tensor bytes = tensor.detach().cpu().contiguous();
  as_checkpoint([&] {
    file_->write({static_cast<const std::byte*>(bytes.const_data_ptr()), bytes.nbytes()});
  });
}

storage::FileDigest SafetensorsWriter::publish() {
  check(num_written_ == tensors_.size(), "fewer tensors are written than were said");
  return as_checkpoint([&] { return file_->publish(); });
}

storage::FileDigest write_safetensors(const std::filesystem::path& path,
                                      const std::vector<NamedTensor>& tensors, const Metadata& metadata) {
  std::map<std::string, const at::Tensor*> by_name;
  std::vector<TensorSpec> specs;
  for (const auto& [name, tensor] : tensors) {
    specs.push_back({name, tensor.scalar_type(), tensor.sizes().vec()});
    by_name.emplace(name, &tensor);
  }
  SafetensorsWriter writer(path, std::move(specs), metadata);
  for (const TensorSpec& spec : writer.tensors()) writer.write(*by_name.at(spec.name));
  return writer.publish();
}

}  // namespace flowshard::checkpoint
