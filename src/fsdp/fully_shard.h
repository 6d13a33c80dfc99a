// Fully sharded data parallelism: applied to a model from outside, through its parameter groups and its block
// runner.
//
//   fsdp::ShardedState state(model.groups(), context);
//   state.initialize(...);                        // fill the masters
//   state.begin_step();                           // once an optimizer step
//     state.begin_forward(is_last_pass);          // once a forward pass
//     loss(model.forward(input, state)).backward();
//     state.end_backward();
//   ... the optimizer changes group(i).master_shard() from group(i).grad_shard() ...
//
// One thread at a time (backward may run on autograd's thread while the caller waits). Every rank makes the
// same calls. A failed collective throws CommError out of the call that waits for it; the state is then
// unusable.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <vector>

#include "fsdp/param_group.h"
#include "nn/block_runner.h"

namespace flowshard::fsdp {

class ShardedState : public nn::BlockRunner {
 public:
  /// groups[0] is the root, gathered for the whole of forward and backward; the others are blocks in the
  /// order of use.
  ShardedState(const std::vector<nn::ParameterGroup*>& groups, const ShardContext& context);

  /// Fills every group's parameters (fp32, on the device), one group at a time, and keeps this rank's slices.
  void initialize(const std::function<void(const nn::ParameterGroup&)>& fill);

  const std::vector<std::unique_ptr<ParamGroup>>& groups() const { return groups_; }

  void begin_step();  // gradients start from zero; on a GPU those of the step before are freed
  /// Gathers the root. With gradients enabled, `is_last_pass` tells whether this pass is the last of its
  /// step: what ShardContext lets wait is reduced in it.
  void begin_forward(bool is_last_pass = true);
  nn::Tensors run(const nn::ParameterGroup& group, const nn::BlockFunction& block,
                  const nn::Tensors& inputs) override;
  void end_backward();  // reduces the root, waits for every reduction, releases every buffer
  void end_forward();   // instead of end_backward() after a pass without gradients

  // Called by the nodes that run() puts around each block.
  void pre_backward(size_t index);
  void post_backward(size_t index);

 private:
  FlatBufferPool& pool_of(size_t index) { return *pools_[pool_index_[index]]; }
  FlatBufferPool& grad_pool_of(size_t index) { return *grad_pools_[grad_pool_index_[index]]; }

  ShardContext context_;
  std::vector<std::unique_ptr<ParamGroup>> groups_;
  std::map<const nn::ParameterGroup*, size_t> index_of_;
  SideStream gathering_stream_, reducing_stream_;
  bool is_last_pass_ = true;
  // Pool 0 is the root's, which is gathered for the whole pass. The blocks rotate through pool 1, or have one
  // each where they keep their buffers.
  std::vector<std::unique_ptr<FlatBufferPool>> pools_, grad_pools_;
  std::vector<size_t> pool_index_, grad_pool_index_;  // by group
};

}  // namespace flowshard::fsdp
