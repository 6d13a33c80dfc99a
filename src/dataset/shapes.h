// The coloured-shapes data set: pictures of one or two plain shapes with captions that name colour, shape and
// relation, so that a program can say exactly whether a picture shows what its caption asks for. Everything
// is a pure function of (seed, index). Thread-safe: no state.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "image/image.h"

namespace flowshard::dataset {

inline constexpr int kShapesImageSize = 64;

struct Color {
  std::string_view name;
  std::array<uint8_t, 3> rgb;
};

/// The corners of a cube in RGB, around the background at its centre: every mixture of one colour with the
/// background, as on an antialiased or blurred edge, is nearer to these two than to any other colour.
inline constexpr std::array<Color, 8> kColors{{{"red", {232, 24, 24}},
                                               {"green", {24, 232, 24}},
                                               {"blue", {24, 24, 232}},
                                               {"yellow", {232, 232, 24}},
                                               {"cyan", {24, 232, 232}},
                                               {"magenta", {232, 24, 232}},
                                               {"black", {24, 24, 24}},
                                               {"white", {232, 232, 232}}}};
inline constexpr std::array<uint8_t, 3> kBackground{128, 128, 128};

enum class Shape : int { kCircle, kSquare, kTriangle };
inline constexpr std::array<std::string_view, 3> kShapeNames{"circle", "square", "triangle"};

enum class Relation : int { kLeftOf, kRightOf, kAbove, kBelow };
inline constexpr std::array<std::string_view, 4> kRelationNames{"left of", "right of", "above", "below"};

/// Lies within `radius` pixels of (x, y) along either axis. Pixel (i, j) covers [i, i + 1) x [j, j + 1).
struct ShapeObject {
  int color = 0;  // index into kColors
  Shape shape = Shape::kCircle;
  double x = 0;
  double y = 0;
  double radius = 0;
  bool operator==(const ShapeObject&) const = default;
};

/// One object, or two of different colours; with two, objects[0] is `relation` objects[1].
struct Scene {
  std::vector<ShapeObject> objects;
  Relation relation = Relation::kLeftOf;  // means nothing for a single object
  bool operator==(const Scene&) const = default;
};

/// Whether the shape of radius 1 around the origin covers the point (y points down).
bool shape_covers(Shape shape, double x, double y);

/// "a red circle", "a red circle left of a blue square".
std::string caption(const Scene& scene);

/// Whether a pair is kept out of all training data: by a hash of its caption, about one in ten. Both wordings
/// of one arrangement ("A left of B", "B right of A") share the answer. Singles are never held out.
bool is_held_out(const Scene& scene);

/// The picture, kShapesImageSize squared, antialiased.
image::Image draw(const Scene& scene);

/// Sample `index` of the training set of `seed`: three singles for every seven pairs, none held out.
Scene training_scene(uint64_t seed, uint64_t index);

/// A single object of the given kind, or a pair drawn from those held out, placed and sized as in training.
Scene evaluation_single(uint64_t seed, uint64_t index, int color, Shape shape);
Scene evaluation_pair(uint64_t seed, uint64_t index);

}  // namespace flowshard::dataset
