// Times the fused operations of src/kernels on one GPU, forward and backward, beside the same operations as a
// composition of ATen operations, at the sizes of FLUX.1-dev at 1024 x 1024 (4608 tokens, bf16), and the
// optimizer step of one of its double blocks beside ATen's in fp32.
//
// Every measurement replays a CUDA graph of kCalls calls, so that no launch gap counts for either side. The
// calls go around several sets of inputs and outputs, together larger than the L2 cache.
#include <ATen/cuda/CUDAEvent.h>
#include <ATen/cuda/CUDAGraph.h>
#include <c10/cuda/CUDAGuard.h>
#include <fmt/format.h>
#include <torch/csrc/autograd/autograd.h>

#include <cstdio>

#include "kernels/adamw.h"
#include "kernels/attention.h"
#include "kernels/blockwise_quantization.h"
#include "kernels/gate_residual.h"
#include "kernels/layer_norm_modulate.h"
#include "kernels/qk_norm_rope.h"

namespace {

namespace kernels = flowshard::kernels;
using Tensors = std::vector<at::Tensor>;

constexpr int kSets = 4, kCalls = 12, kReplays = 40;
constexpr int64_t kTxt = 512, kImg = 4096, kTokens = kTxt + kImg, kHeads = 24, kHeadDim = 128;
constexpr int64_t kChannels = kHeads * kHeadDim;
constexpr double kCopyLimit = 4.3e12;  // bytes a second, H200

struct Timing {
  double microseconds, low, high;  // of one call: median, 10th and 90th percentile of the replays
};

/// call(set) works on one set of inputs and returns what it made.
Timing time_on_gpu(const std::function<Tensors(int)>& call) {
  std::vector<Tensors> results(kSets);  // kept, so that outputs take turns as inputs do
  for (int i = 0; i < kSets; ++i) results[i] = call(i);
  at::cuda::CUDAGraph graph;
  graph.capture_begin();
  for (int i = 0; i < kCalls; ++i) results[i % kSets] = call(i % kSets);
  graph.capture_end();

  std::vector<double> times;
  for (int replay = 0; replay < kReplays + 3; ++replay) {
    at::cuda::CUDAEvent begin(cudaEventDefault), end(cudaEventDefault);
    begin.record();
    graph.replay();
    end.record();
    end.synchronize();
    if (replay >= 3) times.push_back(begin.elapsed_time(end) * 1e3 / kCalls);
  }
  std::sort(times.begin(), times.end());
  return {times[kReplays / 2], times[kReplays / 10], times[kReplays * 9 / 10]};
}

/// One operation: its differentiable inputs and how it is called, fused and as ATen operations.
struct Operation {
  std::string name;
  double forward_bytes, backward_bytes;  // the least that must move
  std::function<Tensors()> make_inputs;
  std::function<Tensors(const Tensors&)> fused, reference;
};

Timing time_forward(const std::vector<Tensors>& sets,
                    const std::function<Tensors(const Tensors&)>& function) {
  const at::NoGradGuard no_grad;
  return time_on_gpu([&](int set) { return function(sets[set]); });
}

Timing time_backward(const std::vector<Tensors>& sets,
                     const std::function<Tensors(const Tensors&)>& function) {
  std::vector<Tensors> outputs, grads(kSets);
  for (const Tensors& inputs : sets) outputs.push_back(function(inputs));
  for (int i = 0; i < kSets; ++i)
    for (const at::Tensor& output : outputs[i]) grads[i].push_back(at::randn_like(output));
  return time_on_gpu([&](int set) {
    return torch::autograd::grad(outputs[set], sets[set], grads[set], /*retain_graph=*/true);
  });
}

void print_row(const std::string& name, double bytes, const Timing& fused, const Timing& reference) {
  fmt::print("{:<34} {:>7.1f} {:>8.1f} {:>8.1f} {:>6.1f}-{:<6.1f} {:>5.2f} {:>4.0f} % {:>9.1f} {:>6.2f}\n",
             name, bytes / 1e6, bytes / kCopyLimit * 1e6, fused.microseconds, fused.low, fused.high,
             bytes / fused.microseconds / 1e6, 100 * bytes / kCopyLimit * 1e6 / fused.microseconds,
             reference.microseconds, fused.microseconds / reference.microseconds);
}

void bench(const Operation& operation) {
  std::vector<Tensors> sets(kSets);
  for (Tensors& inputs : sets) inputs = operation.make_inputs();
  print_row(operation.name + " forward", operation.forward_bytes, time_forward(sets, operation.fused),
            time_forward(sets, operation.reference));
  print_row(operation.name + " backward", operation.backward_bytes, time_backward(sets, operation.fused),
            time_backward(sets, operation.reference));
}

at::Tensor random(std::vector<int64_t> shape) {
  return at::randn(shape, at::TensorOptions(at::kCUDA).dtype(at::kBFloat16));
}

at::Tensor leaf(std::vector<int64_t> shape) { return random(std::move(shape)).set_requires_grad(true); }

kernels::QkvStream stream(const at::Tensor& linear_output, const at::Tensor& q_scale,
                          const at::Tensor& k_scale) {
  return {linear_output.unflatten(2, {3, kHeads, kHeadDim}), q_scale, k_scale};
}

Tensors list(const kernels::JointQkv& joint) { return {joint.q, joint.k, joint.v}; }

void bench_memory_bound() {
  const double row_bytes = 2.0 * kTokens * kChannels;  // one [1, 4608, 3072] bf16 tensor
  fmt::print("{:<34} {:>7} {:>8} {:>8} {:^13} {:>5} {:>6} {:>9} {:>6}\n", "[1, 4608, 3072] bf16", "MB",
             "limit us", "fused us", "p10-p90", "TB/s", "limit", "ATen us", "ratio");
  const at::Tensor source = at::randn({1 << 28}, at::kCUDA);
  at::Tensor target = at::empty_like(source);
  const Timing pass = time_on_gpu([&](int) { return at::neg_out(target, source), Tensors{}; });
  print_row("ATen neg of 1 GiB", 2.0 * (1 << 30), pass, pass);

  bench({"layer_norm_modulate", 2 * row_bytes, 3 * row_bytes,
         [] {
           return Tensors{leaf({1, kTokens, kChannels}), leaf({1, kChannels}), leaf({1, kChannels})};
         },
         [](const Tensors& in) { return Tensors{kernels::layer_norm_modulate(in[0], in[1], in[2])}; },
         [](const Tensors& in) {
           return Tensors{kernels::reference::layer_norm_modulate(in[0], in[1], in[2])};
         }});
  bench({"gate_residual", 3 * row_bytes, 3 * row_bytes,
         [] {
           return Tensors{leaf({1, kTokens, kChannels}), leaf({1, kTokens, kChannels}), leaf({1, kChannels})};
         },
         [](const Tensors& in) { return Tensors{kernels::gate_residual(in[0], in[1], in[2])}; },
         [](const Tensors& in) { return Tensors{kernels::reference::gate_residual(in[0], in[1], in[2])}; }});

  const at::Tensor angles = at::randn({kTokens, kHeadDim / 2}, at::kCUDA);
  const at::Tensor cos = angles.cos(), sin = angles.sin();
  const auto double_streams = [](const Tensors& in) {
    return std::vector<kernels::QkvStream>{stream(in[0], in[1], in[2]), stream(in[3], in[4], in[5])};
  };
  bench({"qk_norm_rope double block", 6 * row_bytes, 8 * row_bytes,
         [] {
           return Tensors{leaf({1, kTxt, 3 * kChannels}), leaf({kHeadDim}), leaf({kHeadDim}),
                          leaf({1, kImg, 3 * kChannels}), leaf({kHeadDim}), leaf({kHeadDim})};
         },
         [&](const Tensors& in) { return list(kernels::qk_norm_rope(double_streams(in), cos, sin)); },
         [&](const Tensors& in) {
           return list(kernels::reference::qk_norm_rope(double_streams(in), cos, sin));
         }});
  const auto single_stream = [](const Tensors& in) {
    return std::vector<kernels::QkvStream>{stream(in[0], in[1], in[2])};
  };
  bench({"qk_norm_rope single block", 6 * row_bytes, 8 * row_bytes,
         [] {
           return Tensors{leaf({1, kTokens, 3 * kChannels}), leaf({kHeadDim}), leaf({kHeadDim})};
         },
         [&](const Tensors& in) { return list(kernels::qk_norm_rope(single_stream(in), cos, sin)); },
         [&](const Tensors& in) {
           return list(kernels::reference::qk_norm_rope(single_stream(in), cos, sin));
         }});
}

constexpr int64_t kBlockParameters = 339'831'296;  // of a double block

at::Tensor zeros(at::ScalarType type, int64_t count = kBlockParameters) {
  return at::zeros({count}, at::TensorOptions(at::kCUDA).dtype(type));
}

Timing time_fused_adamw() {
  const at::Tensor param = zeros(at::kFloat), exp_avg = zeros(at::kFloat), exp_avg_sq = zeros(at::kFloat);
  const at::Tensor gradient = at::randn_like(param), step_count = at::ones({}, at::kCUDA);
  return time_on_gpu([&](int) {
    at::_fused_adamw_(param, gradient, exp_avg, exp_avg_sq, /*max_exp_avg_sqs=*/{}, step_count, 1e-4, 0.9,
                      0.999, 0.01, 1e-8, /*amsgrad=*/false, /*maximize=*/false);
    return Tensors{};
  });
}

void bench_adamw(at::ScalarType param, at::ScalarType gradient, bool codes, const Timing& reference) {
  const at::ScalarType moment = codes ? at::kByte : at::kFloat;
  kernels::AdamWTensors tensors{.param = zeros(param),
                                .grad = at::randn({kBlockParameters}, at::kCUDA).to(gradient),
                                .exp_avg = zeros(moment),
                                .exp_avg_sq = zeros(moment)};
  if (codes) {
    tensors.exp_avg.fill_(kernels::zero_code(kernels::CodeKind::kSigned));
    tensors.exp_avg_scale = zeros(at::kFloat, kernels::num_code_blocks(kBlockParameters));
    tensors.exp_avg_sq_scale = tensors.exp_avg_scale.clone();
  }
  double bytes = codes ? 4.0 * static_cast<double>(tensors.exp_avg_scale.nbytes()) : 0;
  for (const at::Tensor& tensor : {tensors.param, tensors.exp_avg, tensors.exp_avg_sq})
    bytes += 2.0 * static_cast<double>(tensor.nbytes());
  bytes += static_cast<double>(tensors.grad.nbytes());
  const Timing fused = time_on_gpu([&](int) {
    kernels::adamw_step(tensors, {.lr = 1e-4, .weight_decay = 0.01});
    return Tensors{};
  });
  print_row(fmt::format("adamw {}, grad {}, moments {}", param == at::kFloat ? "fp32" : "bf16",
                        gradient == at::kFloat ? "fp32" : "bf16", codes ? "8-bit" : "fp32"),
            bytes, fused, reference);
}

void bench_optimizer() {
  fmt::print("\nAdamW of a double block, {} parameters; ATen is _fused_adamw_ in fp32\n", kBlockParameters);
  const Timing reference = time_fused_adamw();
  for (const at::ScalarType param : {at::kFloat, at::kBFloat16})
    for (const at::ScalarType gradient : {at::kFloat, at::kBFloat16})
      for (const bool codes : {false, true}) bench_adamw(param, gradient, codes, reference);
}

/// Attention and the merge of its heads.
void bench_attention(const std::string& name, bool tokens_first, bool deterministic) {
  at::globalContext().setDeterministicAlgorithms(deterministic, false);
  std::vector<Tensors> sets(kSets);
  for (Tensors& inputs : sets)
    for (int i = 0; i < 3; ++i) {
      const at::Tensor x = tokens_first ? random({1, kTokens, kHeads, kHeadDim}).transpose(1, 2)
                                        : random({1, kHeads, kTokens, kHeadDim});
      inputs.push_back(x.set_requires_grad(true));
    }
  const auto merged = [](const Tensors& in) {
    return Tensors{kernels::attention(in[0], in[1], in[2]).transpose(1, 2).flatten(2)};
  };
  const Timing forward = time_forward(sets, merged), backward = time_backward(sets, merged);
  at::globalContext().setDeterministicAlgorithms(false, false);
  const double flops = 4.0 * kTokens * kTokens * kChannels;
  fmt::print("{:<34} forward {:>7.1f} us {:>4.0f} TFLOP/s, backward {:>7.1f} us {:>4.0f} TFLOP/s\n", name,
             forward.microseconds, flops / forward.microseconds / 1e6, backward.microseconds,
             2.5 * flops / backward.microseconds / 1e6);
}

}  // namespace

int main() {
  if (!at::hasCUDA()) {
    fmt::print("not run: no CUDA device\n");
    return 77;
  }
  std::setvbuf(stdout, nullptr, _IOLBF, 0);
  at::manual_seed(0);
  const c10::cuda::CUDAStreamGuard stream(c10::cuda::getStreamFromPool());  // graphs need one of their own
  bench_memory_bound();
  bench_optimizer();
  fmt::print("\nattention and merge of heads, [1, 24, 4608, 128] bf16\n");
  bench_attention("in memory [B, L, H, Dh]", true, false);
  bench_attention("in memory [B, H, L, Dh]", false, false);
  bench_attention("[B, L, H, Dh], deterministic", true, true);
  return 0;
}
