#include "kernels/qk_norm_rope.h"

#include <gtest/gtest.h>

#include "kernels/finite_difference.h"

namespace flowshard::kernels {
namespace {

constexpr int64_t kBatch = 2, kTxt = 3, kImg = 2, kHeads = 2, kHeadDim = 6;

struct QkNormRopeTest : testing::Test {
  QkNormRopeTest() {
    at::manual_seed(0);
    const at::Tensor angles = at::randn({kTxt + kImg, kHeadDim / 2}, at::kDouble) * 3;
    cos = angles.cos(), sin = angles.sin();
    txt = {random({kBatch, kTxt, 3, kHeads, kHeadDim}), random({kHeadDim}), random({kHeadDim})};
    img = {random({kBatch, kImg, 3, kHeads, kHeadDim}), random({kHeadDim}), random({kHeadDim})};
  }
  static at::Tensor random(std::vector<int64_t> shape) { return at::randn(shape, at::kDouble); }

  /// Row l of the joint sequence, head h; part 0 is the query, 1 the key, 2 the value.
  std::vector<double> expected(int64_t part, int64_t b, int64_t l, int64_t h) const {
    const QkvStream& stream = l < kTxt ? txt : img;
    const at::Tensor row = stream.qkv[b][l < kTxt ? l : l - kTxt][part][h];
    std::vector<double> out(kHeadDim);
    for (int64_t d = 0; d < kHeadDim; ++d) out[d] = row[d].item<double>();
    if (part == 2) return out;
    double mean_square = 0;
    for (double value : out) mean_square += value * value / kHeadDim;
    const at::Tensor& scale = part == 0 ? stream.q_scale : stream.k_scale;
    for (int64_t d = 0; d < kHeadDim; ++d) out[d] *= scale[d].item<double>() / std::sqrt(mean_square + 1e-6);
    for (int64_t i = 0; i < kHeadDim / 2; ++i) {
      const double c = cos[l][i].item<double>(), s = sin[l][i].item<double>();
      const double even = out[2 * i], odd = out[2 * i + 1];
      out[2 * i] = even * c - odd * s;
      out[2 * i + 1] = odd * c + even * s;
    }
    return out;
  }
  void expect_formula(const JointQkv& joint, double tolerance) const {
    const at::Tensor parts[] = {joint.q, joint.k, joint.v};
    for (int64_t part = 0; part < 3; ++part) {
      ASSERT_EQ(parts[part].sizes(), (std::vector<int64_t>{kBatch, kHeads, kTxt + kImg, kHeadDim}));
      for (int64_t b = 0; b < kBatch; ++b)
        for (int64_t l = 0; l < kTxt + kImg; ++l)
          for (int64_t h = 0; h < kHeads; ++h) {
            const std::vector<double> want = expected(part, b, l, h);
            for (int64_t d = 0; d < kHeadDim; ++d)
              EXPECT_NEAR(parts[part][b][h][l][d].item<double>(), want[d], tolerance)
                  << "part " << part << " at " << b << ' ' << h << ' ' << l << ' ' << d;
          }
    }
  }
  static QkvStream to_float(const QkvStream& stream) {
    return {stream.qkv.to(at::kFloat), stream.q_scale.to(at::kFloat), stream.k_scale.to(at::kFloat)};
  }
  QkvStream txt, img;
  at::Tensor cos, sin;
};

TEST_F(QkNormRopeTest, EqualsTheFormulaInDouble) {
  expect_formula(qk_norm_rope({txt, img}, cos, sin), 1e-12);
}

TEST_F(QkNormRopeTest, EqualsTheFormulaInFloat) {
  expect_formula(qk_norm_rope({to_float(txt), to_float(img)}, cos.to(at::kFloat), sin.to(at::kFloat)), 1e-5);
}

TEST_F(QkNormRopeTest, OneStreamIsTheSameAsItsPartOfTwo) {
  const JointQkv joint = qk_norm_rope({txt, img}, cos, sin);
  const JointQkv alone = qk_norm_rope({txt}, cos.narrow(0, 0, kTxt), sin.narrow(0, 0, kTxt));
  EXPECT_TRUE(at::equal(alone.q, joint.q.narrow(2, 0, kTxt)));
  EXPECT_TRUE(at::equal(alone.v, joint.v.narrow(2, 0, kTxt)));
}

TEST_F(QkNormRopeTest, TakesTheFirstColumnsOfAWiderLinear) {
  const at::Tensor wide = random({kBatch, kImg, 3 * kHeads * kHeadDim + 7});
  wide.narrow(2, 0, 3 * kHeads * kHeadDim).copy_(img.qkv.flatten(2));
  img.qkv = wide.narrow(2, 0, 3 * kHeads * kHeadDim).unflatten(2, {3, kHeads, kHeadDim});
  expect_formula(qk_norm_rope({txt, img}, cos, sin), 1e-12);
}

TEST_F(QkNormRopeTest, HeadsMergeWithoutACopy) {
  const at::Tensor q = qk_norm_rope({txt, img}, cos, sin).q;
  EXPECT_EQ(q.transpose(1, 2).flatten(2).data_ptr(), q.data_ptr());
}

TEST_F(QkNormRopeTest, GradientsAreTheDerivatives) {
  const at::Tensor weight = random({3, kBatch, kHeads, kTxt + kImg, kHeadDim});
  const auto loss = [&](const std::vector<at::Tensor>& in) {
    const JointQkv joint = qk_norm_rope({{in[0], in[1], in[2]}, {in[3], in[4], in[5]}}, cos, sin);
    return (at::stack({joint.q, joint.k, joint.v}) * weight).sum();
  };
  EXPECT_LT(gradient_error(loss, {txt.qkv, txt.q_scale, txt.k_scale, img.qkv, img.q_scale, img.k_scale}),
            1e-7);
}

TEST_F(QkNormRopeTest, RefusesTablesOfAnotherLengthAndStreamsThatDiffer) {
  EXPECT_THROW(qk_norm_rope({txt}, cos, sin), c10::Error);
  EXPECT_THROW(qk_norm_rope({txt, to_float(img)}, cos, sin), c10::Error);
  EXPECT_THROW(qk_norm_rope({}, cos, sin), c10::Error);
}

}  // namespace
}  // namespace flowshard::kernels
