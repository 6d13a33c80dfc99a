// The pictures to make and the files they go to.
#pragma once

#include <filesystem>
#include <vector>

#include "image/encode.h"
#include "inference/prompt_file.h"
#include "inference/request.h"

namespace flowshard::inference {

struct PlannedPicture {
  Request request;
  std::filesystem::path file = {};
  image::Format format = image::Format::kPng;  // that of the file's extension
  double init_ratio = 0;  // width over height of the init image, 0: none or not looked at
};

/// One picture for each line and each of its images. A line without a name of its own goes to
/// FOLDER/00000.EXTENSION, numbered by lines; image i of several goes to NAME_i. Throws ConfigError for an
/// extension of another format, for two pictures of one name, and for a number of images that is impossible.
std::vector<PlannedPicture> plan_pictures(const std::vector<PromptLine>& lines,
                                          const std::filesystem::path& folder, image::Format format);

/// Reads the init image of every picture, so that one that cannot be used is known before anything is made,
/// and sets init_image_xxh3 and init_ratio. Throws ConfigError.
void check_init_images(std::vector<PlannedPicture>& pictures);

}  // namespace flowshard::inference
