// The work of `flowshard generate`, its options read: which pictures are there already, making the others.
#pragma once

#include <cstdint>
#include <filesystem>
#include <vector>

#include "inference/memory_plan.h"
#include "inference/picture_plan.h"
#include "inference/picture_settings.h"

namespace flowshard::apps {

struct GenerateRun {
  std::vector<inference::PlannedPicture> pictures;
  /// Of all pictures, each with its own request. Fingerprints that are set are what the files had when
  /// --from's picture was made.
  inference::PictureSettings settings;
  bool resumes = false;  // pictures that are there with their settings are left alone
  bool json = false;
  inference::LowMemory low_memory = inference::LowMemory::kNone;
  int64_t preview_every = 0;   // steps, 0: never; to NAME.preview.png beside the picture
  std::filesystem::path grid;  // a picture of up to 64 of them; "": none
};

/// Throws ConfigError before anything is written; DataError if a picture cannot be.
void make_pictures(GenerateRun run);

}  // namespace flowshard::apps
