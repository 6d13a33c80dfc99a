#include "dataset/shapes_checker.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "core/error.h"

namespace flowshard::dataset {
namespace {

constexpr int kMinPixels = 40;
constexpr double kMinDistance = 4;
constexpr int kBackgroundColor = -1;

// A shape of radius 1 around the origin: its area, and the height of its centroid.
struct ShapeMoments {
  double area;
  double centroid_y;
};
constexpr std::array<ShapeMoments, 3> kMoments{{{M_PI, 0}, {1.75 * 1.75, 0}, {1.75, 1.0 / 6}}};

int squared_distance(const uint8_t* pixel, const std::array<uint8_t, 3>& rgb) {
  int sum = 0;
  for (int c = 0; c < 3; ++c) sum += (pixel[c] - rgb[c]) * (pixel[c] - rgb[c]);
  return sum;
}

int nearest_color(const uint8_t* pixel) {
  int nearest = kBackgroundColor;
  int least = squared_distance(pixel, kBackground);
  for (int i = 0; i < static_cast<int>(kColors.size()); ++i) {
    const int distance = squared_distance(pixel, kColors[i].rgb);
    if (distance < least) {
      nearest = i;
      least = distance;
    }
  }
  return nearest;
}

// Indices of the pixels that hang together with `start` by their sides and share its color; they become
// background.
std::vector<int> take_patch(std::vector<int>& colors, int width, int start) {
  const int color = colors[start];
  const int size = static_cast<int>(colors.size());
  std::vector<int> patch;
  const auto visit = [&](int index) {
    if (colors[index] != color) return;
    colors[index] = kBackgroundColor;
    patch.push_back(index);
  };
  visit(start);
  for (size_t next = 0; next < patch.size(); ++next) {
    const int index = patch[next];
    if (index % width > 0) visit(index - 1);
    if (index % width < width - 1) visit(index + 1);
    if (index >= width) visit(index - width);
    if (index < size - width) visit(index + width);
  }
  return patch;
}

// Intersection over union of the patch and the shape of the same centroid and area.
double overlap(const std::vector<int>& patch, int width, int height, const FoundObject& object, Shape shape) {
  const ShapeMoments& moments = kMoments.at(static_cast<int>(shape));
  const double radius = std::sqrt(object.num_pixels / moments.area);
  const double centre_y = object.y - radius * moments.centroid_y;
  const auto covers = [&](int x, int y) {
    return shape_covers(shape, (x + 0.5 - object.x) / radius, (y + 0.5 - centre_y) / radius);
  };
  int both = 0;
  for (const int index : patch) both += covers(index % width, index / width);
  int in_shape = 0;
  const auto reach = static_cast<int>(radius) + 2;
  for (int y = std::max(0, int(centre_y) - reach); y < std::min(height, int(centre_y) + reach); ++y) {
    for (int x = std::max(0, int(object.x) - reach); x < std::min(width, int(object.x) + reach); ++x) {
      in_shape += covers(x, y);
    }
  }
  return static_cast<double>(both) / (in_shape + object.num_pixels - both);
}

FoundObject describe(const std::vector<int>& patch, int width, int height, int color) {
  FoundObject object{.color = color, .num_pixels = static_cast<int>(patch.size())};
  for (const int index : patch) {
    object.x += (index % width + 0.5) / static_cast<double>(patch.size());
    object.y += (index / width + 0.5) / static_cast<double>(patch.size());
  }
  double best = -1;
  for (const Shape shape : {Shape::kCircle, Shape::kSquare, Shape::kTriangle}) {
    const double value = overlap(patch, width, height, object, shape);
    if (value > best) {
      best = value;
      object.shape = shape;
    }
  }
  return object;
}

const FoundObject* find(const std::vector<FoundObject>& objects, const ShapeObject& wanted) {
  const auto found = std::find_if(objects.begin(), objects.end(), [&](const FoundObject& object) {
    return object.color == wanted.color && object.shape == wanted.shape;
  });
  return found == objects.end() ? nullptr : &*found;
}

// How far `a` lies from `b` in the sense of the relation.
double distance_along(Relation relation, const FoundObject& a, const FoundObject& b) {
  switch (relation) {
    case Relation::kLeftOf:
      return b.x - a.x;
    case Relation::kRightOf:
      return a.x - b.x;
    case Relation::kAbove:
      return b.y - a.y;
    case Relation::kBelow:
      return a.y - b.y;
  }
  check(false, "a relation without an axis");
  return 0;
}

std::optional<double> share(int count, int all) {
  if (all == 0) return std::nullopt;
  return static_cast<double>(count) / all;
}

}  // namespace

std::vector<FoundObject> find_objects(const image::Image& image) {
  std::vector<int> colors(image.pixels.size() / 3);
  for (size_t i = 0; i < colors.size(); ++i) colors[i] = nearest_color(&image.pixels[i * 3]);
  std::vector<FoundObject> objects;
  for (int i = 0; i < static_cast<int>(colors.size()); ++i) {
    const int color = colors[i];
    if (color == kBackgroundColor) continue;
    const std::vector<int> patch = take_patch(colors, image.width, i);
    if (patch.size() >= kMinPixels) objects.push_back(describe(patch, image.width, image.height, color));
  }
  std::stable_sort(objects.begin(), objects.end(),
                   [](const FoundObject& a, const FoundObject& b) { return a.num_pixels > b.num_pixels; });
  return objects;
}

SingleVerdict judge_single(const image::Image& image, const ShapeObject& wanted) {
  const std::vector<FoundObject> objects = find_objects(image);
  if (objects.empty()) return {};
  return {.color = objects[0].color == wanted.color, .shape = objects[0].shape == wanted.shape};
}

PairVerdict judge_pair(const image::Image& image, const Scene& wanted) {
  const std::vector<FoundObject> objects = find_objects(image);
  const FoundObject* first = find(objects, wanted.objects.at(0));
  const FoundObject* second = find(objects, wanted.objects.at(1));
  if (first == nullptr || second == nullptr) return {};
  return {.both_present = true, .relation = distance_along(wanted.relation, *first, *second) > kMinDistance};
}

Adherence judge(const std::vector<ShapesPrompt>& prompts,
                const std::function<image::Image(size_t index)>& image_of) {
  int singles = 0, color = 0, shape = 0, color_and_shape = 0;
  int pairs = 0, both_present = 0, relation = 0;
  for (size_t i = 0; i < prompts.size(); ++i) {
    const Scene& scene = prompts[i].scene;
    if (scene.objects.size() == 1) {
      const SingleVerdict verdict = judge_single(image_of(i), scene.objects[0]);
      ++singles;
      color += verdict.color;
      shape += verdict.shape;
      color_and_shape += verdict.color && verdict.shape;
    } else {
      const PairVerdict verdict = judge_pair(image_of(i), scene);
      ++pairs;
      both_present += verdict.both_present;
      relation += verdict.relation;
    }
  }
  return {.color = share(color, singles),
          .shape = share(shape, singles),
          .color_and_shape = share(color_and_shape, singles),
          .both_present = share(both_present, pairs),
          .relation = share(relation, pairs)};
}

}  // namespace flowshard::dataset
