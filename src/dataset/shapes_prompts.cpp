#include "dataset/shapes_prompts.h"

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>

#include "core/error.h"

namespace flowshard::dataset {
namespace {

using nlohmann::json;

template <typename Names>
int index_of(const Names& names, const std::string& name, const char* what) {
  const auto found = std::find(names.begin(), names.end(), name);
  if (found == names.end()) throw DataError("unknown {} \"{}\"", what, name);
  return static_cast<int>(found - names.begin());
}

int color_index(const std::string& name) {
  const auto found =
      std::find_if(kColors.begin(), kColors.end(), [&](const Color& c) { return c.name == name; });
  if (found == kColors.end()) throw DataError("unknown color \"{}\"", name);
  return static_cast<int>(found - kColors.begin());
}

Scene scene_from_json(const json& value) {
  Scene scene;
  for (const json& item : value.at("objects")) {
    ShapeObject object;
    object.color = color_index(item.at("color").get<std::string>());
    object.shape = static_cast<Shape>(index_of(kShapeNames, item.at("shape").get<std::string>(), "shape"));
    object.x = item.at("x").get<double>();
    object.y = item.at("y").get<double>();
    object.radius = item.at("radius").get<double>();
    if (!(object.radius > 0 && object.radius <= kShapesImageSize && object.x >= 0 && object.y >= 0 &&
          object.x <= kShapesImageSize && object.y <= kShapesImageSize)) {
      throw DataError("an object lies outside the picture");
    }
    scene.objects.push_back(object);
  }
  if (scene.objects.empty() || scene.objects.size() > 2) throw DataError("a scene has one or two objects");
  if (scene.objects.size() == 2) {
    const std::string name = value.at("relation").get<std::string>();
    scene.relation = static_cast<Relation>(index_of(kRelationNames, name, "relation"));
  }
  return scene;
}

ShapesPrompt prompt_from_json(const json& value) {
  ShapesPrompt prompt;
  prompt.prompt = value.at("prompt").get<std::string>();
  prompt.seed = value.at("seed").get<uint64_t>();
  prompt.scene = scene_from_json(value);
  return prompt;
}

}  // namespace

nlohmann::ordered_json to_json(const Scene& scene) {
  nlohmann::ordered_json value;
  value["objects"] = nlohmann::ordered_json::array();
  for (const ShapeObject& object : scene.objects) {
    value["objects"].push_back({{"color", kColors.at(object.color).name},
                                {"shape", kShapeNames.at(static_cast<int>(object.shape))},
                                {"x", object.x},
                                {"y", object.y},
                                {"radius", object.radius}});
  }
  if (scene.objects.size() == 2) value["relation"] = kRelationNames.at(static_cast<int>(scene.relation));
  return value;
}

std::vector<ShapesPrompt> held_out_prompts(uint64_t seed, int num_singles, int num_pairs) {
  std::vector<ShapesPrompt> prompts;
  for (int i = 0; i < num_singles + num_pairs; ++i) {
    const auto index = static_cast<uint64_t>(i);
    const int color = i % static_cast<int>(kColors.size());
    const auto shape =
        static_cast<Shape>(i / static_cast<int>(kColors.size()) % static_cast<int>(kShapeNames.size()));
    Scene scene =
        i < num_singles ? evaluation_single(seed, index, color, shape) : evaluation_pair(seed, index);
    prompts.push_back({.prompt = caption(scene), .seed = index, .scene = std::move(scene)});
  }
  return prompts;
}

std::string to_json_lines(const std::vector<ShapesPrompt>& prompts) {
  std::string lines;
  for (const ShapesPrompt& prompt : prompts) {
    nlohmann::ordered_json value{{"prompt", prompt.prompt}, {"seed", prompt.seed}};
    value.update(to_json(prompt.scene));
    lines += value.dump() + "\n";
  }
  return lines;
}

std::vector<ShapesPrompt> read_prompts(const std::filesystem::path& path) {
  std::ifstream file(path);
  if (!file)
    throw ConfigError("cannot read the prompts {}: give the heldout.jsonl of the data set", path.string());
  std::vector<ShapesPrompt> prompts;
  std::string line;
  for (int number = 1; std::getline(file, line); ++number) {
    if (line.empty()) continue;
    try {
      prompts.push_back(prompt_from_json(json::parse(line)));
    } catch (const std::exception& error) {
      throw DataError("{}:{}: not a prompt of the shapes data set: {}", path.string(), number, error.what());
    }
  }
  if (prompts.empty()) throw DataError("{} holds no prompt", path.string());
  return prompts;
}

}  // namespace flowshard::dataset
