#include "dataset/shapes_checker.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "dataset/random_stream.h"

namespace flowshard::dataset {
namespace {

Scene single(int color, Shape shape) {
  return {.objects = {{.color = color, .shape = shape, .x = 32, .y = 32, .radius = 15}}};
}

Scene pair(Relation relation) {
  return {.objects = {{.color = 0, .shape = Shape::kCircle, .x = 17, .y = 17, .radius = 11},
                      {.color = 2, .shape = Shape::kSquare, .x = 47, .y = 17, .radius = 11}},
          .relation = relation};
}

TEST(ShapesChecker, EveryTruePictureIsRight) {
  for (uint64_t i = 0; i < 2000; ++i) {
    const Scene scene = training_scene(11, i);
    if (scene.objects.size() == 1) {
      const SingleVerdict verdict = judge_single(draw(scene), scene.objects[0]);
      EXPECT_TRUE(verdict.color && verdict.shape) << i << " " << caption(scene);
    } else {
      EXPECT_TRUE(judge_pair(draw(scene), scene).relation) << i << " " << caption(scene);
    }
  }
}

TEST(ShapesChecker, ObjectsAreFoundWhereTheyWereDrawn) {
  Scene scene = pair(Relation::kLeftOf);
  scene.objects[0].radius = 14;
  const std::vector<FoundObject> objects = find_objects(draw(scene));
  ASSERT_EQ(objects.size(), 2U);
  EXPECT_EQ(objects[0].color, 0);  // the larger one
  EXPECT_NEAR(objects[0].x, 17, 0.2);
  EXPECT_NEAR(objects[1].x, 47, 0.2);
  EXPECT_NEAR(objects[1].y, 17, 0.2);
}

TEST(ShapesChecker, AnotherColourShapeOrPlaceIsWrong) {
  const image::Image red_circle = draw(single(0, Shape::kCircle));
  const SingleVerdict other_color = judge_single(red_circle, single(1, Shape::kCircle).objects[0]);
  EXPECT_FALSE(other_color.color);
  EXPECT_TRUE(other_color.shape);
  const SingleVerdict other_shape = judge_single(red_circle, single(0, Shape::kSquare).objects[0]);
  EXPECT_TRUE(other_shape.color);
  EXPECT_FALSE(other_shape.shape);

  const image::Image image = draw(pair(Relation::kLeftOf));
  EXPECT_TRUE(judge_pair(image, pair(Relation::kLeftOf)).relation);
  for (const Relation wrong : {Relation::kRightOf, Relation::kAbove, Relation::kBelow}) {
    EXPECT_TRUE(judge_pair(image, pair(wrong)).both_present);
    EXPECT_FALSE(judge_pair(image, pair(wrong)).relation);
  }
  Scene swapped_colors = pair(Relation::kLeftOf);
  std::swap(swapped_colors.objects[0].color, swapped_colors.objects[1].color);
  EXPECT_FALSE(judge_pair(image, swapped_colors).both_present);
  EXPECT_FALSE(judge_pair(red_circle, pair(Relation::kLeftOf)).both_present);
}

TEST(ShapesChecker, BlurAndNoiseOfAnAutoencoderDoNotMatter) {
  RandomStream random(1, 1);
  for (uint64_t i = 0; i < 100; ++i) {
    const Scene scene = training_scene(12, i);
    const image::Image sharp = draw(scene);
    image::Image image = sharp;
    for (int y = 1; y < 63; ++y) {
      for (int x = 1; x < 63; ++x) {
        for (int c = 0; c < 3; ++c) {
          int sum = 0;  // of 3 x 3 pixels
          for (int k = 0; k < 9; ++k) sum += sharp.pixels[((y + k / 3 - 1) * 64 + x + k % 3 - 1) * 3 + c];
          const int noise = static_cast<int>(random.below(41)) - 20;
          image.pixels[(y * 64 + x) * 3 + c] = static_cast<uint8_t>(std::clamp(sum / 9 + noise, 0, 255));
        }
      }
    }
    if (scene.objects.size() == 1) {
      const SingleVerdict verdict = judge_single(image, scene.objects[0]);
      EXPECT_TRUE(verdict.color && verdict.shape) << i << " " << caption(scene);
    } else {
      EXPECT_TRUE(judge_pair(image, scene).relation) << i << " " << caption(scene);
    }
  }
}

TEST(ShapesChecker, NoisePicturesScoreNothing) {
  RandomStream random(2, 2);
  const std::vector<ShapesPrompt> prompts = held_out_prompts(0, 24, 24);
  const Adherence adherence = judge(prompts, [&](size_t) {
    image::Image image{.width = 64, .height = 64, .pixels = std::vector<uint8_t>(64 * 64 * 3)};
    for (uint8_t& value : image.pixels) value = static_cast<uint8_t>(random.below(256));
    return image;
  });
  EXPECT_EQ(adherence.color, 0);
  EXPECT_EQ(adherence.both_present, 0);
}

TEST(ShapesChecker, SharesCountThePromptsOfTheirKind) {
  std::vector<ShapesPrompt> prompts(4);
  prompts[0].scene = single(0, Shape::kCircle);
  prompts[1].scene = single(1, Shape::kCircle);
  prompts[2].scene = pair(Relation::kLeftOf);
  prompts[3].scene = pair(Relation::kRightOf);
  const auto image_of = [&](size_t i) {
    return draw(i < 2 ? single(0, Shape::kCircle) : pair(Relation::kLeftOf));
  };
  const Adherence adherence = judge(prompts, image_of);
  EXPECT_EQ(adherence.color, 0.5);
  EXPECT_EQ(adherence.shape, 1.0);
  EXPECT_EQ(adherence.color_and_shape, 0.5);
  EXPECT_EQ(adherence.both_present, 1.0);
  EXPECT_EQ(adherence.relation, 0.5);
  EXPECT_EQ(judge({prompts[0]}, image_of).relation, std::nullopt);
}

}  // namespace
}  // namespace flowshard::dataset
