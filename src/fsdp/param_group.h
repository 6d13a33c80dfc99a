// One communication unit of fsdp: the parameters of one block (or of the root) as one flat buffer.
// The rank's shard, a contiguous slice of that buffer, is the master. Gathering is one all-gather straight
// into the buffer of which the parameters are views; backward writes gradients straight into a second flat
// buffer, which the reduce-scatter reads. Nothing is copied in or out. One thread at a time; every rank makes
// the same calls.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "distributed/process_group.h"
#include "fsdp/flat_buffer_pool.h"
#include "fsdp/policy.h"
#include "fsdp/side_stream.h"
#include "nn/parameter.h"

namespace flowshard::fsdp {

class ParamGroup {
 public:
  ParamGroup(nn::ParameterGroup& group, const ShardContext& context);

  const std::string& name() const { return group_.name; }
  const std::vector<nn::Parameter*>& parameters() const { return group_.parameters; }
  const std::vector<int64_t>& offsets() const { return offsets_; }  // of each parameter in the flat buffer
  /// Parameters lie one after another, in order, without gaps; the end is padded with zeros to a multiple of
  /// the number of shards.
  int64_t numel() const { return numel_; }
  int64_t padded_numel() const { return padded_numel_; }
  int64_t shard_numel() const { return padded_numel_ / context_.shard_count(); }
  int64_t shard_count() const { return context_.shard_count(); }
  bool is_sharded() const { return shard_count() > 1; }
  int64_t shard_begin() const { return context_.shard_index() * shard_numel(); }

  /// [shard_numel], master_dtype: the authority on the parameters. On the device or in host memory.
  const at::Tensor& master_shard() const { return master_shard_; }
  /// [shard_numel]: this rank's slice of the sum of gradients over ranks and backward passes, in fp32; with
  /// masters and sums in another precision, in that. On a GPU it exists from the group's first backward to
  /// zero_grad(): a step's gradients take the place of its activations.
  const at::Tensor& grad_shard() const { return grad_shard_; }
  void zero_grad();

  /// Materializes all parameters in fp32 on the device, lets `fill` set their values, and keeps this rank's
  /// slice.
  void initialize(const std::function<void(const nn::ParameterGroup&)>& fill);

  /// Starts the gathering of parameters; no effect if they are gathered or on their way. On a GPU the
  /// rounding to param_dtype and the all-gather run beside the computation, on `stream`.
  void unshard(FlatBufferPool& pool, SideStream& stream);
  /// Returns with every parameter's value set (on a GPU: for work on the current stream).
  void wait_for_unshard(FlatBufferPool& pool, SideStream& stream);
  /// Parameters lose their values; the buffer goes back to the pool.
  void reshard(FlatBufferPool& pool);

  /// Points every trainable parameter's gradient into a flat buffer.
  void pre_backward(FlatBufferPool& grad_pool);
  /// All gradients of one backward are written: starts their reduction. Where they can stay as they are until
  /// the last pass of a step (no_sync, or a rank that holds a whole model), only the last one does.
  void post_backward(bool is_last_pass, SideStream& stream);
  /// The reduced gradients are in grad_shard(); the buffer is given back. No effect if nothing is reduced.
  void wait_for_reduce(FlatBufferPool& grad_pool);

 private:
  at::ScalarType grad_dtype() const;
  bool aliases_master() const;
  bool aliases_grad() const;
  void round_master(const at::Tensor& own) const;
  void need_grad_shard();
  void view_parameters(const at::Tensor& flat);
  void release_gradients();
  void reduce(SideStream& stream);

  nn::ParameterGroup& group_;
  ShardContext context_;
  std::vector<int64_t> offsets_;
  int64_t numel_ = 0, padded_numel_ = 0;
  at::Tensor master_shard_, grad_shard_;
  bool grad_shard_written_ = false;

  at::Tensor unsharded_;  // defined from unshard() to reshard()
  bool is_viewed_ = false;
  std::unique_ptr<distributed::Work> gathering_;
  StreamPoint rounded_;        // the own slice of unsharded_ is written
  at::Tensor unsharded_grad_;  // defined from pre_backward() to wait_for_reduce()
  at::Tensor reduced_;         // grad_shard_ itself for the first pass of a step
  std::unique_ptr<distributed::Work> reducing_;
};

}  // namespace flowshard::fsdp
