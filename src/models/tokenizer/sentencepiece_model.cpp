#include "models/tokenizer/sentencepiece_model.h"

#include <bit>
#include <cstring>
#include <fstream>
#include <functional>
#include <iterator>
#include <optional>

#include "core/error.h"
#include "models/tokenizer/tokenizer_files.h"
#include "models/tokenizer/unicode.h"

namespace flowshard::models {
namespace {

using nlohmann::json;
namespace fs = std::filesystem;

// Fields of sentencepiece_model.proto.
constexpr uint64_t kModelPieces = 1, kModelNormalizer = 3;
constexpr uint64_t kPieceText = 1, kPieceScore = 2, kPieceType = 3;
constexpr uint64_t kNormalizerCharsmap = 2;
constexpr uint64_t kControlType = 3, kUserDefinedType = 4;

/// Walks the fields of one protocol buffer message.
class Message {
 public:
  Message(std::string_view bytes, const fs::path& file) : bytes_(bytes), file_(file) {}

  struct Field {
    uint64_t number;
    uint64_t integer;        // of a varint
    std::string_view bytes;  // of every other kind
  };

  /// The next field; nothing after the last.
  std::optional<Field> next() {
    if (position_ == bytes_.size()) {
      return {};
    }
    const uint64_t key = varint();
    Field field{.number = key >> 3, .integer = 0, .bytes = {}};
    switch (key & 7) {
      case 0:
        field.integer = varint();
        break;
      case 1:
        field.bytes = take(8);
        break;
      case 2:
        field.bytes = take(varint());
        break;
      case 5:
        field.bytes = take(4);
        break;
      default:
        fail();
    }
    return field;
  }

 private:
  uint64_t varint() {
    uint64_t value = 0;
    for (unsigned shift = 0; shift < 64; shift += 7) {
      const auto byte = static_cast<unsigned char>(take(1).front());
      value |= static_cast<uint64_t>(byte & 0x7F) << shift;
      if (byte < 0x80) {
        return value;
      }
    }
    fail();
  }

  std::string_view take(uint64_t size) {
    if (size > bytes_.size() - position_) {
      fail();
    }
    position_ += size;
    return bytes_.substr(position_ - size, size);
  }

  [[noreturn]] void fail() const {
    throw ConfigError("{} is cut short or is not a sentencepiece model", file_.string());
  }

  std::string_view bytes_;
  const fs::path& file_;
  size_t position_ = 0;
};

float to_float(std::string_view bytes) {
  static_assert(std::endian::native == std::endian::little, "the format is little-endian");
  float value = 0;  // also of a field that is no float: protocol buffers pass over it
  if (bytes.size() == sizeof(value)) std::memcpy(&value, bytes.data(), sizeof(value));
  return value;
}

void read_piece(std::string_view bytes, const fs::path& file, SentencepieceModel& model) {
  ScoredPiece piece{.text = {}, .score = 0};
  uint64_t type = 0;
  Message message(bytes, file);
  while (const auto field = message.next()) {
    if (field->number == kPieceText) {
      piece.text = field->bytes;
    } else if (field->number == kPieceScore) {
      piece.score = to_float(field->bytes);
    } else if (field->number == kPieceType) {
      type = field->integer;
    }
  }
  if (unicode::replace_invalid(piece.text) != piece.text) {
    throw ConfigError("{}: piece {} is not UTF-8", file.string(), model.pieces.size());
  }
  if (type == kControlType || type == kUserDefinedType) {
    model.control.push_back({.content = piece.text});
  }
  model.pieces.push_back(std::move(piece));
}

std::string decode_base64(std::string_view text, const fs::path& file) {
  constexpr std::string_view kDigits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string bytes;
  uint32_t bits = 0;
  unsigned num_bits = 0;
  for (const char c : text.substr(0, text.find('='))) {
    const auto digit = kDigits.find(c);
    if (digit == std::string_view::npos) {
      throw ConfigError("{}: precompiled_charsmap is not base64", file.string());
    }
    bits = bits << 6 | static_cast<uint32_t>(digit);
    num_bits += 6;
    if (num_bits >= 8) {
      num_bits -= 8;
      bytes += static_cast<char>(bits >> num_bits & 0xFF);
    }
  }
  return bytes;
}

/// The first character map among the normalizers, or none.
std::string charsmap_of(const json& normalizer, const fs::path& file) {
  if (!normalizer.is_object()) {
    return {};
  }
  const bool sequence = normalizer.at("type") == "Sequence";
  for (const auto& step : sequence ? normalizer.at("normalizers") : json::array({normalizer})) {
    if (step.at("type") == "Precompiled") {
      return decode_base64(step.at("precompiled_charsmap").get<std::string>(), file);
    }
  }
  return {};
}

}  // namespace

SentencepieceModel read_spiece_model(const fs::path& file) {
  std::ifstream stream;
  if (fs::is_regular_file(file)) stream.open(file, std::ios::binary);
  if (!stream.is_open()) {
    throw ConfigError("cannot read {}: check the path of the tokenizer folder", file.string());
  }
  const std::string bytes(std::istreambuf_iterator<char>(stream), {});
  SentencepieceModel model;
  Message message(bytes, file);
  while (const auto field = message.next()) {
    if (field->number == kModelPieces) {
      read_piece(field->bytes, file, model);
    } else if (field->number == kModelNormalizer) {
      Message normalizer(field->bytes, file);
      while (const auto inner = normalizer.next()) {
        if (inner->number == kNormalizerCharsmap) {
          model.charsmap = inner->bytes;
        }
      }
    }
  }
  return model;
}

SentencepieceModel read_unigram_json(const fs::path& file) {
  const auto whole = read_json(file);
  return read_shape(file, [&] {
    SentencepieceModel model;
    for (const auto& piece : whole.at("model").at("vocab")) {
      model.pieces.push_back({.text = piece.at(0).get<std::string>(), .score = piece.at(1).get<double>()});
    }
    model.charsmap = charsmap_of(whole.value("normalizer", json()), file);
    return model;
  });
}

}  // namespace flowshard::models
