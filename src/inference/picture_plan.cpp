#include "inference/picture_plan.h"

#include <fmt/format.h>

#include <map>
#include <set>

#include "core/error.h"
#include "inference/init_image.h"

namespace flowshard::inference {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kMaxImages = 100'000;     // of a prompt
constexpr size_t kMaxPictures = 1'000'000;  // of a run: all are planned before the first is made

image::Format format_of_output(const fs::path& file) {
  const auto format = image::format_of(file);
  if (!format) throw ConfigError("output {}: name a .png, .jpg or .webp file", file.string());
  return *format;
}

}  // namespace

std::vector<PlannedPicture> plan_pictures(const std::vector<PromptLine>& lines, const fs::path& folder,
                                          image::Format format) {
  std::vector<PlannedPicture> pictures;
  std::set<fs::path> names;
  for (size_t i = 0; i < lines.size(); ++i) {
    const PromptLine& line = lines[i];
    if (line.num_images < 1 || line.num_images > kMaxImages)
      throw ConfigError("number of images is {}: it must be from 1 to {}", line.num_images, kMaxImages);
    const fs::path name =
        line.output.empty() ? fs::path(fmt::format("{:05}{}", i, image::extension_of(format))) : line.output;
    PlannedPicture picture{.request = line.request, .format = format_of_output(name)};
    if (pictures.size() + static_cast<size_t>(line.num_images) > kMaxPictures)
      throw ConfigError("more than {} pictures in one run: split the prompt file", kMaxPictures);
    for (int64_t j = 0; j < line.num_images; ++j) {
      picture.file = folder / name;
      if (line.num_images > 1) {
        picture.file.replace_filename(
            fmt::format("{}_{}{}", name.stem().string(), j, name.extension().string()));
      }
      if (!names.insert(picture.file.lexically_normal()).second)
        throw ConfigError("output {}: two pictures would have this name", picture.file.string());
      pictures.push_back(picture);
      ++picture.request.seed;
    }
  }
  return pictures;
}

void check_init_images(std::vector<PlannedPicture>& pictures) {
  struct Known {
    std::string xxh3;
    double ratio;
  };
  std::map<fs::path, Known> known;
  for (PlannedPicture& picture : pictures) {
    Request& request = picture.request;
    if (request.init_image.empty()) continue;
    auto found = known.find(request.init_image);
    if (found == known.end() ||
        (!request.init_image_xxh3.empty() && request.init_image_xxh3 != found->second.xxh3)) {
      const InitImage read = read_init_image(request.init_image, request.init_image_xxh3);
      const double ratio = static_cast<double>(read.pixels.width) / read.pixels.height;
      found = known.insert_or_assign(request.init_image, Known{read.xxh3, ratio}).first;
    }
    request.init_image_xxh3 = found->second.xxh3;
    picture.init_ratio = found->second.ratio;
  }
}

}  // namespace flowshard::inference
