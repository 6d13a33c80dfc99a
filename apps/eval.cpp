#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "core/error.h"
#include "dataset/shapes_checker.h"
#include "dataset/shapes_prompts.h"
#include "subcommands.h"

namespace flowshard::apps {
namespace {

namespace fs = std::filesystem;
using dataset::Adherence;

struct Options {
  std::string images;
  std::string prompts;
  std::vector<std::string> compare;
  bool json = false;
};

struct Column {
  std::string name;
  Adherence adherence;
};

struct Row {
  const char* title;
  const char* key;
  std::optional<double> Adherence::*value;
};

constexpr Row kRows[] = {
    {"one object: colour", "color", &Adherence::color},
    {"one object: shape", "shape", &Adherence::shape},
    {"one object: colour and shape", "color_and_shape", &Adherence::color_and_shape},
    {"two objects: both objects present", "both_present", &Adherence::both_present},
    {"two objects: relation", "relation", &Adherence::relation},
};

fs::path image_path(const fs::path& folder, size_t index) { return folder / fmt::format("{:05}.png", index); }

void require_images(const fs::path& folder, size_t count) {
  std::vector<std::string> missing;
  for (size_t i = 0; i < count; ++i) {
    if (!fs::exists(image_path(folder, i))) missing.push_back(image_path(folder, i).string());
  }
  if (!missing.empty()) {
    throw ConfigError(
        "{} of {} images are missing, the first is {}: make one for each prompt with "
        "flowshard generate --prompts",
        missing.size(), count, missing[0]);
  }
}

image::Image read_image(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  const std::vector<char> bytes{std::istreambuf_iterator<char>(file), {}};
  image::Image image =
      image::decode({reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size()}, path.string());
  if (image.width != dataset::kShapesImageSize || image.height != dataset::kShapesImageSize) {
    throw DataError("{} is {} x {}: the checker judges pictures of {} x {}", path.string(), image.width,
                    image.height, dataset::kShapesImageSize, dataset::kShapesImageSize);
  }
  return image;
}

// The last part of the path, or all of it if another folder ends alike.
std::string column_name(const std::string& folder, const std::vector<std::string>& folders) {
  const auto last_part = [](const std::string& path) {
    return fs::absolute(path + "/.").parent_path().filename();
  };
  const auto alike = std::count_if(folders.begin(), folders.end(), [&](const std::string& other) {
    return last_part(other) == last_part(folder);
  });
  return alike > 1 ? folder : last_part(folder).string();
}

void print_table(const std::vector<Column>& columns) {
  size_t title_width = 0;
  for (const Row& row : kRows) title_width = std::max(title_width, std::string_view(row.title).size());
  fmt::print("{:{}}", "", title_width);
  for (const Column& column : columns) fmt::print("  {:>4}", column.name);
  fmt::print("\n");
  for (const Row& row : kRows) {
    fmt::print("{:{}}", row.title, title_width);
    for (const Column& column : columns) {
      const std::optional<double> value = column.adherence.*row.value;
      fmt::print("  {:>{}}", value ? fmt::format("{:.2f}", *value) : "-",
                 std::max<size_t>(4, column.name.size()));
    }
    fmt::print("\n");
  }
}

void print_json(const std::vector<Column>& columns, const std::vector<dataset::ShapesPrompt>& prompts) {
  const auto singles = std::count_if(prompts.begin(), prompts.end(), [](const dataset::ShapesPrompt& prompt) {
    return prompt.scene.objects.size() == 1;
  });
  nlohmann::ordered_json result{{"num_single_prompts", singles},
                                {"num_pair_prompts", static_cast<int64_t>(prompts.size()) - singles},
                                {"columns", nlohmann::ordered_json::array()}};
  for (const Column& column : columns) {
    nlohmann::ordered_json object{{"name", column.name}};
    for (const Row& row : kRows) {
      const std::optional<double> value = column.adherence.*row.value;
      object[row.key] = value ? nlohmann::ordered_json(*value) : nlohmann::ordered_json();
    }
    result["columns"].push_back(object);
  }
  fmt::print("{}\n", result.dump(2));
}

void run(const Options& options) {
  const std::vector<dataset::ShapesPrompt> prompts = dataset::read_prompts(options.prompts);
  std::vector<std::string> folders{options.images};
  folders.insert(folders.end(), options.compare.begin(), options.compare.end());
  for (const std::string& folder : folders) require_images(folder, prompts.size());

  std::vector<Column> columns;
  for (const std::string& folder : folders) {
    columns.push_back({column_name(folder, folders),
                       judge(prompts, [&](size_t i) { return read_image(image_path(folder, i)); })});
  }
  columns.push_back({"true images", judge(prompts, [&](size_t i) { return draw(prompts[i].scene); })});
  options.json ? print_json(columns, prompts) : print_table(columns);
}

}  // namespace

void add_eval(CLI::App& app) {
  auto options = std::make_shared<Options>();
  CLI::App* eval =
      app.add_subcommand("eval", "Measure how well images follow the prompts of the shapes data set");
  eval->add_option("--images", options->images, "Folder of 00000.png, 00001.png, ..., one for each prompt")
      ->required();
  eval->add_option("--prompts", options->prompts, "The heldout.jsonl of the data set")->required();
  eval->add_option("--compare", options->compare, "More folders, each a column of the table");
  eval->add_flag("--json", options->json, "Print JSON instead of a table");
  eval->footer(
      "Example:\n  flowshard eval --images out/trained --compare out/untrained --prompts "
      "data/shapes/heldout.jsonl");
  eval->callback([options] { run(*options); });
}

}  // namespace flowshard::apps
