#include <gtest/gtest.h>

#include "kernels/qk_norm_rope.h"
#include "kernels/relative_error.h"

namespace flowshard::kernels {
namespace {

struct Shape {
  int64_t batch, txt, img, heads, head_dim;
};

// Every number of lanes, partly filled lanes and groups, heads in several passes; FLUX at 1024 x 1024.
const Shape kShapes[] = {{1, 1, 1, 1, 8},   {2, 3, 5, 4, 24},   {2, 2, 2, 50, 16}, {3, 17, 9, 5, 64},
                         {1, 9, 33, 7, 40}, {2, 5, 3, 30, 128}, {2, 5, 3, 3, 256}, {1, 512, 4096, 24, 128}};

class QkNormRopeGpu : public testing::TestWithParam<std::tuple<at::ScalarType, Shape>> {
 protected:
  QkNormRopeGpu() : dtype(std::get<0>(GetParam())), shape(std::get<1>(GetParam())) {
    at::manual_seed(1);
    const at::Tensor angles = at::randn({length(), shape.head_dim / 2}, at::kCUDA) * 10;
    cos = angles.cos(), sin = angles.sin();
    txt = {random({shape.batch, shape.txt, 3, shape.heads, shape.head_dim}), random({shape.head_dim}) + 1,
           random({shape.head_dim}) + 1};
    img = {random({shape.batch, shape.img, 3, shape.heads, shape.head_dim}), random({shape.head_dim}) + 1,
           random({shape.head_dim}) + 1};
    for (at::Tensor& grad : grads) grad = random({shape.batch, shape.heads, length(), shape.head_dim});
  }
  int64_t length() const { return shape.txt + shape.img; }
  at::Tensor random(std::vector<int64_t> sizes) const {
    return at::randn(sizes, at::TensorOptions(at::kCUDA).dtype(at::kFloat)).to(dtype);
  }
  double tolerance() const { return dtype == at::kFloat ? 3e-6 : 6e-3; }

  static std::vector<at::Tensor> leaves_of(const std::vector<QkvStream>& streams, at::ScalarType type) {
    std::vector<at::Tensor> leaves;
    for (const QkvStream& stream : streams)
      for (const at::Tensor& tensor : {stream.qkv, stream.q_scale, stream.k_scale})
        leaves.push_back(tensor.detach().to(type).set_requires_grad(true));
    return leaves;
  }
  static std::vector<QkvStream> streams_of(const std::vector<at::Tensor>& leaves) {
    std::vector<QkvStream> streams;
    for (size_t i = 0; i < leaves.size(); i += 3)
      streams.push_back({leaves[i], leaves[i + 1], leaves[i + 2]});
    return streams;
  }
  static void backward(const JointQkv& joint, const std::vector<at::Tensor>& gradients) {
    const at::Tensor outputs[] = {joint.q, joint.k, joint.v};
    at::Tensor loss;
    for (size_t i = 0; i < 3; ++i) {
      const at::Tensor term = (outputs[i] * gradients[i].to(outputs[i].scalar_type())).sum();
      loss = loss.defined() ? loss + term : term;
    }
    loss.backward();
  }

  void expect_exact(const std::vector<QkvStream>& streams, const at::Tensor& cos_in, const at::Tensor& sin_in,
                    const std::vector<at::Tensor>& gradients) const {
    const std::vector<at::Tensor> wide = leaves_of(streams, at::kDouble), leaves = leaves_of(streams, dtype);
    const JointQkv expected =
        reference::qk_norm_rope(streams_of(wide), cos_in.to(at::kDouble), sin_in.to(at::kDouble));
    backward(expected, gradients);
    poison_free_memory(at::kCUDA);
    const JointQkv joint = qk_norm_rope(streams_of(leaves), cos_in, sin_in);
    EXPECT_LT(relative_error(joint.q, expected.q), tolerance());
    EXPECT_LT(relative_error(joint.k, expected.k), tolerance());
    EXPECT_EQ(relative_error(joint.v, expected.v), 0);
    backward(joint, gradients);
    for (size_t i = 0; i < leaves.size(); ++i)
      EXPECT_LT(relative_error(leaves[i].grad(), wide[i].grad()), tolerance()) << "gradient of tensor " << i;
  }
  at::ScalarType dtype;
  Shape shape;
  QkvStream txt, img;
  at::Tensor cos, sin;
  std::vector<at::Tensor> grads = std::vector<at::Tensor>(3);
};

TEST_P(QkNormRopeGpu, EqualsTheReference) { expect_exact({txt, img}, cos, sin, grads); }

TEST_P(QkNormRopeGpu, OneStream) {
  const std::vector<at::Tensor> first = {grads[0].narrow(2, 0, shape.txt), grads[1].narrow(2, 0, shape.txt),
                                         grads[2].narrow(2, 0, shape.txt)};
  expect_exact({txt}, cos.narrow(0, 0, shape.txt), sin.narrow(0, 0, shape.txt), first);
}

TEST_P(QkNormRopeGpu, TakesColumnsOfAWiderLinearPermutedInputAndMergedHeads) {
  const int64_t width = 3 * shape.heads * shape.head_dim;
  const at::Tensor wide = random({shape.batch, shape.img, width + 16});
  img.qkv = wide.narrow(2, 0, width).unflatten(2, {3, shape.heads, shape.head_dim});
  txt.qkv = txt.qkv.permute({2, 3, 1, 0, 4}).contiguous().permute({3, 2, 0, 1, 4});
  for (at::Tensor& grad : grads) grad = grad.transpose(1, 2).contiguous().transpose(1, 2);
  expect_exact({txt, img}, cos, sin, grads);
}

TEST_P(QkNormRopeGpu, RoundsWhereTheReferenceRounds) {
  const JointQkv joint = qk_norm_rope({txt, img}, cos, sin);
  const JointQkv expected = reference::qk_norm_rope({txt, img}, cos, sin);
  EXPECT_LT(relative_error(joint.q, expected.q), dtype == at::kFloat ? 1e-6 : 5e-4);
  EXPECT_LT(relative_error(joint.k, expected.k), dtype == at::kFloat ? 1e-6 : 5e-4);
}

TEST_P(QkNormRopeGpu, RepeatsBitwise) {
  const auto run = [&] {
    const std::vector<at::Tensor> leaves = leaves_of({txt, img}, dtype);
    backward(qk_norm_rope(streams_of(leaves), cos, sin), grads);
    return leaves;
  };
  const std::vector<at::Tensor> first = run(), second = run();
  for (size_t i = 0; i < first.size(); ++i) EXPECT_TRUE(at::equal(first[i].grad(), second[i].grad())) << i;
}

INSTANTIATE_TEST_SUITE_P(Shapes, QkNormRopeGpu,
                         testing::Combine(testing::Values(at::kFloat, at::kBFloat16),
                                          testing::ValuesIn(kShapes)));

}  // namespace
}  // namespace flowshard::kernels
