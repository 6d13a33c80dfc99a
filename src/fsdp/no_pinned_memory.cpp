#include "fsdp/host_memory.h"

namespace flowshard::fsdp {

at::Tensor pinned_zeros(int64_t numel, at::ScalarType dtype) { return at::zeros({numel}, dtype); }

}  // namespace flowshard::fsdp
