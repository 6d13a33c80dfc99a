// Judges whether a picture shows what a prompt of the coloured-shapes data set asks for, by looking at pixels
// alone: deterministic, and right about every true picture. Thread-safe: no state.
#pragma once

#include <functional>
#include <optional>
#include <vector>

#include "dataset/shapes.h"
#include "dataset/shapes_prompts.h"
#include "image/image.h"

namespace flowshard::dataset {

/// A connected patch of one colour.
struct FoundObject {
  int color = 0;
  Shape shape =
      Shape::kCircle;  // the one that overlaps the patch best, moved and scaled to its centroid and area
  double x = 0;        // of the centroid
  double y = 0;
  int num_pixels = 0;
};

/// The patches of at least 40 pixels, largest first. Each pixel counts as its nearest colour of kColors and
/// kBackground.
std::vector<FoundObject> find_objects(const image::Image& image);

/// For a single object: whether the largest patch has its colour, and its shape.
struct SingleVerdict {
  bool color = false;
  bool shape = false;
};
SingleVerdict judge_single(const image::Image& image, const ShapeObject& wanted);

/// For a pair: whether both objects are there, each in its colour and shape; and whether, moreover, their
/// centroids are more than 4 pixels apart along the axis of the relation, in its sense.
struct PairVerdict {
  bool both_present = false;
  bool relation = false;
};
PairVerdict judge_pair(const image::Image& image, const Scene& wanted);

/// Shares of all prompts of the kind; none without such prompts.
struct Adherence {
  std::optional<double> color;            // of singles
  std::optional<double> shape;            // of singles
  std::optional<double> color_and_shape;  // of singles
  std::optional<double> both_present;     // of pairs
  std::optional<double> relation;         // of pairs
};
Adherence judge(const std::vector<ShapesPrompt>& prompts,
                const std::function<image::Image(size_t index)>& image_of);

}  // namespace flowshard::dataset
