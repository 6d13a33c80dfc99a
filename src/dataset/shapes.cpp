#include "dataset/shapes.h"

#include <fmt/format.h>
#include <xxhash.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "core/error.h"
#include "dataset/random_stream.h"

namespace flowshard::dataset {
namespace {

constexpr double kSingleShare = 0.3;
constexpr double kCentre = kShapesImageSize / 2.0;
constexpr uint64_t kHeldOutOneIn = 10;
constexpr int kSubpixels = 4;  // per axis
// Streams of evaluation scenes differ from those of training scenes of the same seed.
constexpr uint64_t kEvaluationStream = 0x6576616cU;

// Hundredths of a pixel, so that the scene is exact and short in JSON.
double draw_in(RandomStream& random, double low, double high) {
  return std::round((low + (high - low) * random.uniform()) * 100) / 100;
}

ShapeObject draw_single(RandomStream& random, int color, Shape shape) {
  ShapeObject object{.color = color, .shape = shape};
  object.x = draw_in(random, kCentre - 4, kCentre + 4);
  object.y = draw_in(random, kCentre - 4, kCentre + 4);
  object.radius = draw_in(random, 14, 18);
  return object;
}

Scene draw_pair(RandomStream& random) {
  Scene scene;
  scene.relation = static_cast<Relation>(random.below(kRelationNames.size()));
  const bool horizontal = scene.relation == Relation::kLeftOf || scene.relation == Relation::kRightOf;
  const bool first_is_low = scene.relation == Relation::kLeftOf || scene.relation == Relation::kAbove;
  for (const bool is_first : {true, false}) {
    ShapeObject object;
    object.color = static_cast<int>(random.below(kColors.size() - (is_first ? 0 : 1)));
    if (!is_first && object.color >= scene.objects[0].color) ++object.color;  // never the colour of the first
    object.shape = static_cast<Shape>(random.below(kShapeNames.size()));
    const double near = is_first == first_is_low ? 17 : 47;
    const double along = draw_in(random, near - 2.5, near + 2.5);
    const double across = draw_in(random, kCentre - 2.5, kCentre + 2.5);
    object.x = horizontal ? along : across;
    object.y = horizontal ? across : along;
    object.radius = draw_in(random, 10, 12.5);
    scene.objects.push_back(object);
  }
  return scene;
}

// The same arrangement worded with "left of" or "above".
Scene canonical(Scene scene) {
  if (scene.relation == Relation::kRightOf || scene.relation == Relation::kBelow) {
    std::swap(scene.objects[0], scene.objects[1]);
    scene.relation = scene.relation == Relation::kRightOf ? Relation::kLeftOf : Relation::kAbove;
  }
  return scene;
}

std::string object_phrase(const ShapeObject& object) {
  return fmt::format("a {} {}", kColors.at(object.color).name,
                     kShapeNames.at(static_cast<int>(object.shape)));
}

// Share of pixel (x, y) that the object covers, in 1 / kSubpixels^2.
int covered_subpixels(const ShapeObject& object, int x, int y) {
  int covered = 0;
  for (int j = 0; j < kSubpixels; ++j) {
    for (int i = 0; i < kSubpixels; ++i) {
      const double px = x + (i + 0.5) / kSubpixels;
      const double py = y + (j + 0.5) / kSubpixels;
      covered += shape_covers(object.shape, (px - object.x) / object.radius, (py - object.y) / object.radius);
    }
  }
  return covered;
}

void draw_object(image::Image& image, const ShapeObject& object) {
  const auto first = [](double low) { return std::max(0, static_cast<int>(std::floor(low))); };
  const auto last = [](double high) { return std::min(kShapesImageSize, static_cast<int>(std::ceil(high))); };
  constexpr int kWhole = kSubpixels * kSubpixels;
  for (int y = first(object.y - object.radius); y < last(object.y + object.radius); ++y) {
    for (int x = first(object.x - object.radius); x < last(object.x + object.radius); ++x) {
      const int covered = covered_subpixels(object, x, y);
      for (int c = 0; c < 3; ++c) {
        uint8_t& pixel = image.pixels[(y * kShapesImageSize + x) * 3 + c];
        const int color = kColors.at(object.color).rgb[c];
        pixel = static_cast<uint8_t>((pixel * (kWhole - covered) + color * covered + kWhole / 2) / kWhole);
      }
    }
  }
}

}  // namespace

bool shape_covers(Shape shape, double x, double y) {
  switch (shape) {
    case Shape::kCircle:
      return x * x + y * y <= 1;
    case Shape::kSquare:
      return std::abs(x) <= 0.875 && std::abs(y) <= 0.875;  // about the area of the circle
    case Shape::kTriangle:
      // Apex (0, -1), base from (-1, 0.75) to (1, 0.75): nearly equilateral.
      return y <= 0.75 && std::abs(x) * 1.75 <= y + 1;
  }
  check(false, "a shape without a form");
  return false;
}

std::string caption(const Scene& scene) {
  check(scene.objects.size() == 1 || scene.objects.size() == 2, "a scene has one or two objects");
  std::string text = object_phrase(scene.objects[0]);
  if (scene.objects.size() == 2) {
    text += fmt::format(" {} {}", kRelationNames.at(static_cast<int>(scene.relation)),
                        object_phrase(scene.objects[1]));
  }
  return text;
}

bool is_held_out(const Scene& scene) {
  if (scene.objects.size() != 2) return false;
  const std::string text = caption(canonical(scene));
  return XXH64(text.data(), text.size(), 0) % kHeldOutOneIn == 0;
}

image::Image draw(const Scene& scene) {
  image::Image image{.width = kShapesImageSize, .height = kShapesImageSize, .pixels = {}};
  image.pixels.resize(size_t{kShapesImageSize} * kShapesImageSize * 3);
  for (size_t i = 0; i < image.pixels.size(); ++i) image.pixels[i] = kBackground[i % 3];
  for (const ShapeObject& object : scene.objects) draw_object(image, object);
  return image;
}

Scene training_scene(uint64_t seed, uint64_t index) {
  RandomStream random(seed, index);
  if (random.uniform() < kSingleShare) {
    const int color = static_cast<int>(random.below(kColors.size()));
    const auto shape = static_cast<Shape>(random.below(kShapeNames.size()));
    return {.objects = {draw_single(random, color, shape)}};
  }
  Scene scene = draw_pair(random);
  while (is_held_out(scene)) scene = draw_pair(random);
  return scene;
}

Scene evaluation_single(uint64_t seed, uint64_t index, int color, Shape shape) {
  RandomStream random(seed ^ kEvaluationStream, index);
  return {.objects = {draw_single(random, color, shape)}};
}

Scene evaluation_pair(uint64_t seed, uint64_t index) {
  RandomStream random(seed ^ kEvaluationStream, index);
  Scene scene = draw_pair(random);
  while (!is_held_out(scene)) scene = draw_pair(random);
  return scene;
}

}  // namespace flowshard::dataset
