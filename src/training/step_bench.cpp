#include "training/step_bench.h"

#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>
#include <chrono>
#include <cmath>

#include "core/error.h"
#include "core/error_context.h"
#include "distributed/process_group.h"
#include "distributed/timed_group.h"
#include "model_folder/model_folder.h"
#include "training/gradient_norm.h"
#include "training/model_sizes.h"
#include "training/optimizer.h"
#include "training/out_of_memory.h"
#include "training/parallelize.h"
#include "training/precision.h"
#include "training/step_estimate.h"
#include "training/transformer_pass.h"

namespace flowshard::training {
namespace {

constexpr auto kAll = static_cast<size_t>(c10::CachingAllocator::StatType::AGGREGATE);

void synchronize(at::Device device) {
  if (!device.is_cpu()) c10::impl::VirtualGuardImpl(device.type()).synchronizeDevice(device.index());
}

void fill(const nn::ParameterGroup& group) {
  const at::NoGradGuard no_grad;
  for (nn::Parameter* parameter : group.parameters) {
    if (parameter->name.ends_with(".scale")) {
      parameter->value.fill_(1);
    } else {
      parameter->value.normal_(0, 0.02);
    }
  }
}

/// The parts of a job that trains, without data, encoders and checkpoints.
class Job {
 public:
  Job(const TrainConfig& config, const distributed::Environment& environment)
      : config_(config),
        environment_(environment),
        device_(device_of(config, environment)),
        folder_{config.model.path},
        sizes_(model_sizes(folder_)),
        transformer_(
            models::FlowTransformerConfig::from_diffusers(folder_.part("transformer") / "config.json")),
        ranks_(distributed::make_timed_group(connect_ranks(config, environment, device_), waited_)),
        mesh_(*ranks_, shard_size(config, environment)),
        host_memory_(device_, host_budget(config, environment)),
        state_((make_trainable(), transformer_.groups()),
               shard_context(config, mesh_, device_, host_memory_)),
        pass_(config, transformer_, sizes_.downsampling) {
    state_.initialize(fill);
    optimizer_ = std::make_unique<Optimizer>(state_, config, device_,
                                             config.memory.offload_optimizer ? &host_memory_ : nullptr);
    make_batch();
  }

  StepBench run(int64_t warm_up, int64_t steps) {
    StepBench result;
    try {
      for (int64_t i = -warm_up; i < steps; ++i) {
        if (i == 0) *waited_ = 0;
        StepPhases phases;
        const auto start = std::chrono::steady_clock::now();
        result.last_loss = step(phases);
        synchronize(device_);
        const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
        if (i >= 0) result.step_seconds.push_back(seconds.count());
      }
      result.waiting_seconds = *waited_ / static_cast<double>(steps);
      StepPhases phases([this] { synchronize(device_); });
      step(phases);
      phases.begin("");
      for (const auto& [name, seconds] : phases.all_seconds()) {
        if (!name.empty()) result.phase_seconds[name] = seconds;
      }
    } catch (const Error&) {
      rethrow_within("a measured step");
    }
    describe(result);
    return result;
  }

 private:
  void make_trainable() {
    for (nn::Parameter* parameter : transformer_.parameters()) parameter->trainable = true;
  }

  void make_batch() {
    const auto fp32 = at::TensorOptions(at::kFloat).device(device_);
    const auto embedding = fp32.dtype(precision_of(config_).buffer_dtype);
    const auto& model = transformer_.config();
    const int64_t size = config_.train.batch_size, side = 2 * sizes_.downsampling;
    const int64_t tokens = config_.data.height / side * (config_.data.width / side);
    batch_ = {.x0 = at::randn({size, tokens, model.in_channels}, fp32),
              .txt = at::randn({size, config_.text.max_sequence_length, model.context_in_dim}, embedding),
              .y = at::randn({size, model.vec_in_dim}, embedding)};
  }

  double step(StepPhases& phases) {
    const int64_t passes = config_.train.gradient_accumulation_steps, size = config_.train.batch_size;
    const int64_t step = optimizer_->step_count() + 1;
    phases.begin_step(step);
    state_.begin_step();
    at::Tensor loss = at::zeros({1}, at::TensorOptions(at::kFloat).device(device_));
    for (int64_t pass = 0; pass < passes; ++pass) {
      std::vector<flow_matching::SampleKey> keys;
      for (int64_t i = 0; i < size; ++i) {
        keys.push_back(
            {static_cast<uint64_t>((pass * environment_.world_size + environment_.rank) * size + i),
             static_cast<uint64_t>(step)});
      }
      loss.add_(pass_.backward(
          batch_, keys,
          {.global_samples = size * environment_.world_size * passes, .is_last_of_step = pass == passes - 1},
          state_, phases));
    }
    phases.begin("gradient norm");
    ranks_->all_reduce_sum(loss)->wait();
    const double norm = global_grad_norm(state_, mesh_);
    phases.begin("optimizer step");
    const double limit = config_.train.max_grad_norm;
    if (std::isfinite(norm)) {
      optimizer_->step(config_.optimizer.lr, limit > 0 && norm > limit ? limit / norm : 1);
    } else {
      optimizer_->skip_step();
    }
    return loss.item<float>();
  }

  void describe(StepBench& result) const {
    const JobSize job = job_size(environment_);
    const auto samples =
        static_cast<double>(config_.train.batch_size * config_.train.gradient_accumulation_steps);
    result.train_flops = estimate_step(config_, sizes_, job, {}).train_flops * samples;
    result.host_bytes = host_memory_.used_bytes();
    if (device_.is_cpu()) return;
    const auto stats = c10::getDeviceAllocator(device_.type())->getDeviceStats(device_.index());
    result.allocated = stats.allocated_bytes[kAll].peak;
    result.reserved = stats.reserved_bytes[kAll].peak;
    ModelSizes without_encoders = sizes_;
    without_encoders.text_encoders = without_encoders.autoencoder = 0;
    result.predicted = estimate_memory(config_, without_encoders, job).tensors();
  }

  TrainConfig config_;
  distributed::Environment environment_;
  at::Device device_;
  ModelFolder folder_;
  ModelSizes sizes_;
  models::FlowTransformer transformer_;
  std::shared_ptr<double> waited_ = std::make_shared<double>(0);
  std::unique_ptr<distributed::ProcessGroup> ranks_;
  distributed::DeviceMesh mesh_;
  fsdp::HostMemory host_memory_;
  fsdp::ShardedState state_;
  std::unique_ptr<Optimizer> optimizer_;
  TransformerPass pass_;
  EncodedBatch batch_;
};

}  // namespace

double StepBench::median_seconds() const {
  std::vector<double> sorted = step_seconds;
  std::ranges::sort(sorted);
  return sorted.empty() ? 0 : sorted[sorted.size() / 2];
}

StepBench bench_step(const TrainConfig& config, const distributed::Environment& environment, int64_t warm_up,
                     int64_t steps) {
  try {
    return Job(config, environment).run(warm_up, steps);
  } catch (const Error&) {
    throw;
  } catch (const std::exception&) {
    rethrow_out_of_memory("a measured step", [&] { return advise(config, environment); });
    throw;
  }
}

}  // namespace flowshard::training
