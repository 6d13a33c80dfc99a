// The CUDA side of a build without a CUDA compiler: every operation takes its reference path, on any device.
#include "core/error.h"
#include "kernels/device.h"

namespace flowshard::kernels::cuda {
namespace {
[[noreturn]] void unreachable() { throw InternalError("a CUDA kernel is called in a build that has none"); }
}  // namespace

bool compiled() { return false; }
bool has_code_for_device() { unreachable(); }
Stream current_stream(c10::DeviceIndex) { unreachable(); }
void check_launch() { unreachable(); }
void enqueue(const LayerNormModulateForward&, Stream) { unreachable(); }
void enqueue(const LayerNormModulateBackward&, Stream) { unreachable(); }
void enqueue(const GateResidualForward&, Stream) { unreachable(); }
void enqueue(const GateResidualBackward&, Stream) { unreachable(); }
void enqueue(const QkNormRopeForward&, Stream) { unreachable(); }
void enqueue(const QkNormRopeBackward&, Stream) { unreachable(); }
void enqueue(const LinearGelu&, Stream) { unreachable(); }
void enqueue(const QuantizeBlockwise&, Stream) { unreachable(); }
void enqueue(const DequantizeBlockwise&, Stream) { unreachable(); }
void enqueue(const AdamW&, Stream) { unreachable(); }
void enqueue(const SumColumns&, Stream) { unreachable(); }

}  // namespace flowshard::kernels::cuda
