#include "dataset/shapes.h"

#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <set>

namespace flowshard::dataset {
namespace {

constexpr int kManySamples = 8192;

Scene pair(int color1, Shape shape1, Relation relation, int color2, Shape shape2) {
  return {.objects = {{.color = color1, .shape = shape1, .x = 17, .y = 32, .radius = 11},
                      {.color = color2, .shape = shape2, .x = 47, .y = 32, .radius = 11}},
          .relation = relation};
}

std::array<int, 3> pixel(const image::Image& image, int x, int y) {
  const uint8_t* p = &image.pixels[(y * image.width + x) * 3];
  return {p[0], p[1], p[2]};
}

std::array<int, 3> to_ints(const std::array<uint8_t, 3>& rgb) { return {rgb[0], rgb[1], rgb[2]}; }

TEST(Shapes, CaptionNamesColourShapeAndRelation) {
  EXPECT_EQ(caption({.objects = {{.color = 0, .shape = Shape::kCircle}}}), "a red circle");
  EXPECT_EQ(caption(pair(0, Shape::kCircle, Relation::kLeftOf, 2, Shape::kSquare)),
            "a red circle left of a blue square");
  EXPECT_EQ(caption(pair(7, Shape::kTriangle, Relation::kBelow, 6, Shape::kTriangle)),
            "a white triangle below a black triangle");
}

TEST(Shapes, BothWordingsOfAnArrangementAreHeldOutTogether) {
  int held_out = 0;
  int all = 0;
  for (int c1 = 0; c1 < 8; ++c1) {
    for (int c2 = 0; c2 < 8; ++c2) {
      for (int s = 0; s < 9 && c1 != c2; ++s) {
        const auto s1 = static_cast<Shape>(s % 3);
        const auto s2 = static_cast<Shape>(s / 3);
        const bool left = is_held_out(pair(c1, s1, Relation::kLeftOf, c2, s2));
        const bool above = is_held_out(pair(c1, s1, Relation::kAbove, c2, s2));
        EXPECT_EQ(left, is_held_out(pair(c2, s2, Relation::kRightOf, c1, s1)));
        EXPECT_EQ(above, is_held_out(pair(c2, s2, Relation::kBelow, c1, s1)));
        held_out += left + above;
        all += 2;
      }
    }
  }
  EXPECT_EQ(all, 1008);
  EXPECT_NEAR(held_out / static_cast<double>(all), 0.1, 0.03);
}

TEST(Shapes, TrainingScenesKeepTheirSharesAndPlaces) {
  int pairs = 0;
  std::map<Relation, int> relations;
  std::set<std::string> captions;
  for (uint64_t i = 0; i < kManySamples; ++i) {
    const Scene scene = training_scene(3, i);
    EXPECT_FALSE(is_held_out(scene));
    captions.insert(caption(scene));
    if (scene.objects.size() == 1) continue;
    ++pairs;
    ++relations[scene.relation];
    const ShapeObject& a = scene.objects[0];
    const ShapeObject& b = scene.objects[1];
    EXPECT_NE(a.color, b.color);
    const double dx = b.x - a.x;
    const double dy = b.y - a.y;
    const std::map<Relation, double> distance{
        {Relation::kLeftOf, dx}, {Relation::kRightOf, -dx}, {Relation::kAbove, dy}, {Relation::kBelow, -dy}};
    EXPECT_GE(distance.at(scene.relation), a.radius + b.radius);  // they never overlap
    for (const ShapeObject& object : scene.objects) {
      EXPECT_GE(std::min(object.x, object.y) - object.radius, 0);
      EXPECT_LE(std::max(object.x, object.y) + object.radius, kShapesImageSize);
    }
  }
  EXPECT_NEAR(pairs / static_cast<double>(kManySamples), 0.7, 0.02);
  for (const auto& [relation, count] : relations) EXPECT_NEAR(count, pairs / 4.0, pairs * 0.03);
  EXPECT_GT(captions.size(), 24U + 1600U);  // nearly all of those not held out
}

TEST(Shapes, EvaluationPairsAreHeldOut) {
  std::set<std::string> captions;
  for (uint64_t i = 0; i < 300; ++i) {
    const Scene scene = evaluation_pair(0, i);
    EXPECT_TRUE(is_held_out(scene));
    captions.insert(caption(scene));
  }
  EXPECT_GT(captions.size(), 100U);
}

TEST(Shapes, ASceneIsAFunctionOfSeedAndIndexAlone) {
  EXPECT_EQ(training_scene(5, 17), training_scene(5, 17));
  EXPECT_NE(training_scene(5, 17), training_scene(6, 17));
  EXPECT_NE(training_scene(5, 17), training_scene(5, 18));
  // On every machine, in every version: other data would make old results incomparable.
  EXPECT_EQ(caption(training_scene(0, 0)), "a blue square right of a green square");
  EXPECT_EQ(caption(training_scene(0, 1)), "a yellow circle");
}

TEST(Shapes, DrawingHasTheColourAndAreaOfTheShape) {
  const double r = 15;
  const std::map<Shape, double> areas{{Shape::kCircle, M_PI * r * r},
                                      {Shape::kSquare, 1.75 * 1.75 * r * r},
                                      {Shape::kTriangle, 1.75 * r * r}};
  for (const auto& [shape, area] : areas) {
    const image::Image image =
        draw({.objects = {{.color = 6, .shape = shape, .x = 32, .y = 32, .radius = r}}});
    EXPECT_EQ(pixel(image, 32, 32), to_ints(kColors[6].rgb));
    EXPECT_EQ(pixel(image, 0, 0), to_ints(kBackground));
    double drawn = 0;  // black on grey: the darkening summed up, edges in part
    for (int y = 0; y < 64; ++y) {
      for (int x = 0; x < 64; ++x) drawn += (128 - pixel(image, x, y)[0]) / 104.0;
    }
    EXPECT_NEAR(drawn, area, 0.02 * area) << kShapeNames[static_cast<int>(shape)];
  }
}

TEST(Shapes, MixturesWithTheBackgroundStayNearestToTheirOwnColour) {
  const auto distance = [](const std::array<double, 3>& a, const std::array<uint8_t, 3>& b) {
    return std::hypot(a[0] - b[0], a[1] - b[1], a[2] - b[2]);
  };
  for (const Color& color : kColors) {
    for (double t = 0.05; t <= 1; t += 0.05) {
      std::array<double, 3> mixed{};
      for (int c = 0; c < 3; ++c) mixed[c] = kBackground[c] + t * (color.rgb[c] - kBackground[c]);
      for (const Color& other : kColors) {
        if (other.name != color.name) {
          EXPECT_LT(distance(mixed, color.rgb), distance(mixed, other.rgb));
        }
      }
    }
  }
}

}  // namespace
}  // namespace flowshard::dataset
