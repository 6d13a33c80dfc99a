#include "inference/prompt_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <fstream>
#include <map>

#include "core/error.h"
#include "core/error_context.h"
#include "core/nearest_name.h"
#include "core/strict_json.h"
#include "inference/json_value.h"

namespace flowshard::inference {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

constexpr size_t kMaxFileBytes = (size_t{1} << 20) + 2;  // a prompt of 1 MiB and a line's end
constexpr double kMisspelt = 1.0 / 3;                    // of the letters of a key

// What diffusers calls them.
const std::map<std::string, std::string> kOtherNames = {{"guidance_scale", "guidance"},
                                                        {"num_images_per_prompt", "num_images"},
                                                        {"num_inference_steps", "steps"}};

std::ifstream open_file(const fs::path& path) {
  std::ifstream stream(path, std::ios::binary);
  if (!stream || fs::is_directory(path)) throw ConfigError("{}: cannot be read", path.string());
  return stream;
}

const std::vector<std::string>& line_keys() {
  static const std::vector<std::string> keys = [] {
    std::vector<std::string> all = request_keys();
    all.insert(all.end(), {"num_images", "output"});
    return all;
  }();
  return keys;
}

void check_key(const std::string& key) {
  if (std::find(line_keys().begin(), line_keys().end(), key) != line_keys().end()) return;
  const auto other = kOtherNames.find(key);
  const auto meant =
      other != kOtherNames.end() ? std::optional(other->second) : nearest_name(key, line_keys(), kMisspelt);
  if (meant) throw ConfigError("unknown key {}; did you mean {}?", in_quotes(key), *meant);
}

// Its name must not leave the output folder, where another line's may not be overwritten either.
void check_output(const fs::path& output) {
  const bool leaves = output.is_absolute() || std::any_of(output.begin(), output.end(),
                                                          [](const fs::path& part) { return part == ".."; });
  if (leaves || !output.has_filename())
    throw ConfigError("output is \"{}\": it must name a file below the output folder", output.string());
}

Json parse(const std::string& text) {
  Json object;
  try {
    object = parse_json(text, "the line");
  } catch (const ConfigError& error) {
    throw ConfigError("not a prompt object: {}", error.what());
  }
  if (!object.is_object()) throw ConfigError("not a prompt object: it is a JSON {}", object.type_name());
  if (!object.contains("prompt")) throw ConfigError("not a prompt object: it has no key \"prompt\"");
  return object;
}

PromptLine read_line(const std::string& text, const PromptLine& defaults) {
  const Json object = parse(text);
  for (const auto& [key, value] : object.items()) check_key(key);
  PromptLine line = defaults;
  read_request(object, line.request);
  if (object.contains("strength") && line.request.init_image.empty())
    throw ConfigError("strength is for image to image: there is no init_image");
  read_value(object, "num_images", line.num_images);
  if (object.contains("output")) {
    std::string output;
    read_value(object, "output", output);
    line.output = output;
    check_output(line.output);
  }
  return line;
}

}  // namespace

std::vector<PromptLine> read_prompt_file(const fs::path& file, const PromptLine& defaults) {
  std::vector<PromptLine> lines;
  std::ifstream stream = open_file(file);
  std::string text;
  for (int number = 1; std::getline(stream, text); ++number) {
    if (text.find_first_not_of(" \t\r") == std::string::npos) continue;
    try {
      lines.push_back(read_line(text, defaults));
    } catch (const ConfigError&) {
      rethrow_within(fmt::format("{}:{}", file.string(), number));
    }
  }
  if (stream.bad()) throw ConfigError("{}: cannot be read to its end", file.string());
  if (lines.empty()) throw ConfigError("{}: holds no prompt", file.string());
  return lines;
}

std::string read_prompt(const fs::path& file) {
  std::ifstream stream = open_file(file);
  std::string text(kMaxFileBytes + 1, '\0');
  stream.read(text.data(), static_cast<std::streamsize>(text.size()));
  text.resize(static_cast<size_t>(stream.gcount()));
  while (text.ends_with('\n') || text.ends_with('\r')) text.pop_back();
  check_prompt(text, file.string());
  return text;
}

}  // namespace flowshard::inference
